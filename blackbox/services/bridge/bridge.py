"""Find the bridge for a URL's scheme, for `blackbox bridge`. Other packages register theirs as entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol, cast

from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes, covering
from blackbox.feed.schema.schema import load_registered

OUT_GROUP: Final = "blackbox.bridges"
"""Entry points by scheme for bridges from a feed to another system."""
IN_GROUP: Final = "blackbox.bridges_in"
"""Entry points by scheme for bridges from another system into a feed."""

Say = Callable[[str], None]


class Bridge(Protocol):
    """Made by an entry point, which is called with a feed, a URL, a tuple of prefixes, and options by name.

    The entry point raises ConfigError. No prefix covers another one; `(b"",)` means all topics. If it has a parameter
    `symbols`, it is also called with a list of symbols, or without one for all symbols.
    """

    def carry(self, say: Say) -> Coroutine[None, None, None] | None:
        """Run until a signal; call `say` when running, and at the end with a summary.

        Or return a coroutine that does so. Raises BridgeError if the other side refuses; KeyboardInterrupt or
        SystemExit on the signal.
        """


def open_bridge(
    feed: Feed,
    url: str,
    prefix: Prefixes = b"",
    *,
    symbols: Iterable[str | bytes] | None = None,
    into: bool = False,
    **options: Any,
) -> Bridge:
    """Return the bridge for a URL, without opening anything. `into`: one into the feed.

    Raises ConfigError if no bridge has the scheme or the option.
    """
    scheme, colon, _ = url.partition("://")
    if not colon:  # it may hold a password
        raise ConfigError("URL had no scheme, expected one such as redis://127.0.0.1:6379/0")
    noun = "scheme of a bridge into a feed" if into else "scheme of a bridge"
    kind = cast("Callable[..., Bridge]", load_registered(IN_GROUP if into else OUT_GROUP, scheme, noun))
    known = dict(list(inspect.signature(kind).parameters.items())[3:])
    takes_symbols = known.pop("symbols", None) is not None
    if symbols is not None and not takes_symbols:
        raise ConfigError(f"symbols were {symbols!r}, expected none with {scheme}://, which does not take any")
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"option was {name}={value}, expected one of {scheme}://: {', '.join(known) or 'none'}")
        wanted = str(known[name].annotation).split(" | ")
        if "int" in wanted and isinstance(value, str):
            raise ConfigError(f"option was {name}={value}, expected a number, such as {name}=1000")
        if "str" in wanted:  # digits were parsed as a number
            options[name] = str(value)
    if symbols is not None:
        options["symbols"] = symbols
    return kind(feed, url, covering(prefix), **options)
