"""Settings shared by feeds: the topic template, and the UDP port of a capture."""

from __future__ import annotations

from operator import itemgetter
from string import Formatter

from blackbox.errors import ConfigError

DEFAULT_TOPIC = "{symbol}.{type}"


def check_port(port: object) -> int | None:
    """Return `port` if it is a UDP port or None.

    Raises:
        ConfigError: it is neither.
    """
    if port is None or (isinstance(port, int) and 0 <= port <= 0xFFFF):
        return port
    raise ConfigError(f"port was {port!r}, expected a UDP port, 0 to 65535")


class TopicForm:
    """A checked topic template such as "{symbol}.{type}".

    `locates`: True if the format has a `{locate}`.

    Raises:
        ConfigError: the template is empty, malformed, or has an unknown field.
    """

    def __init__(self, template: str, locates: bool) -> None:
        known = ("symbol", "type", "locate") if locates else ("symbol", "type")
        expected = "expected text with " + ", ".join(f"{{{name}}}" for name in known)
        try:
            parsed = list(Formatter().parse(template))
            template.encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"topic template was {template!r}, {expected}: {error}") from None
        if not template or template.startswith("\0"):
            raise ConfigError(f"topic template was {template!r}, {expected}, not starting with a zero")
        form = []
        order = []
        self.pieces: list[tuple[bytes, str | None]] = []
        """Fixed texts, each with the name of the field after it, if any."""
        for text, name, spec, conversion in parsed:
            self.pieces.append((text.encode(), name))
            form.append(text.replace("%", "%%"))
            if name is not None:
                if name not in known or spec or conversion:
                    raise ConfigError(f"topic template was {template!r}, {expected}")
                form.append("%b")
                order.append(known.index(name))
        self.template = template
        self.names = frozenset(known[place] for place in order)
        self._form = "".join(form).encode()
        self._pick = itemgetter(*order) if order else lambda _values: ()

    def topic(self, symbol: bytes, kind: bytes, locate: int) -> bytes:
        """Return the topic of a message."""
        return self._form % self._pick((symbol, kind, b"%d" % locate))
