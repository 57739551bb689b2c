"""The symbols behind topics: what a feed's template made the topics from, read back."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

NO_SYMBOL = b"#system"
"""The symbol part of messages about the whole market."""

_FIELDS = {"symbol": b"(?P<symbol>.+)", "type": b"[^.]+?", "locate": rb"\d+"}
_OTHER_FIELD = b".*"


class SymbolOf:
    """Call it with a topic to get its symbol: `{symbol}.{type}` finds `BRK.A` in `BRK.A.P`.

    A topic that is not of the template is its own symbol.
    """

    def __init__(self, template: str) -> None:
        pattern, seen = b"", set()
        for literal, name, _, _ in string.Formatter().parse(template):
            pattern += re.escape(literal.encode())
            if name is not None:
                pattern += _OTHER_FIELD if name in seen else _FIELDS.get(name, _OTHER_FIELD)
                seen.add(name)
        self._match = re.compile(pattern, re.DOTALL).fullmatch if "symbol" in seen else None

    def __call__(self, topic: bytes) -> bytes:
        """The symbol of a topic."""
        found = self._match(topic) if self._match is not None else None
        return topic if found is None else found["symbol"]

    def count(self, topics: Iterable[bytes]) -> int:
        """How many instruments the topics are about."""
        return len(set(map(self, topics)) - {NO_SYMBOL})
