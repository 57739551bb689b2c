"""Serve a replay in the venue's own protocol, for `blackbox replay --serve`. Other packages register their servers.

moldudp64://127.0.0.1:26400  --entry point "moldudp64" of blackbox.venue_servers-->  a VenueServer
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self, cast

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError
from blackbox.feed.schema.schema import load_registered
from blackbox.feed.venue_url import Address, VenueUrl, options_of

SERVER_GROUP: Final = "blackbox.venue_servers"
"""The entry-point group of venue servers, which are registered by the schemes of their URLs."""


class VenueMessages(NamedTuple):
    """Consecutive messages in the venue's order. Addresses are valid only during `VenueServer.send`."""

    ts_event: NDArray[numpy.int64]
    """int64[n]: time at the venue, ns since 1970."""
    addresses: NDArray[numpy.int64]
    """int64[n]: address of each payload."""
    lengths: NDArray[numpy.int32]
    """int32[n]: size of each payload in bytes."""
    topic_index: NDArray[numpy.int32]
    """int32[n]: index of each topic in `topics`."""
    topics: tuple[bytes, ...]
    """All topics so far. An index keeps its topic during a replay."""

    def payloads(self) -> Iterator[bytes]:
        """Yield a copy of each payload."""
        for address, length in zip(self.addresses.tolist(), self.lengths.tolist(), strict=True):
            yield ctypes.string_at(address, length)


class VenueServer:
    """Base of the servers, which bind on `open` and send what `send` gives them.

    An entry point is a subclass, called with the address, the recordings, and its `Options` as the URL has them. It
    raises ConfigError.

    The playing thread calls every method, from `open` to `close`. A server that answers clients has its own thread, and
    needs a lock for what both use. A command pauses or moves the replay between two calls of `send`.
    """

    schemas: ClassVar[frozenset[str]]
    """Names of the schemas whose payloads the protocol carries."""
    Options: ClassVar[type[msgspec.Struct]]
    """The options of the URL, with their defaults."""

    def __init__(self, address: Address, recordings: Sequence[Recording], options: Any) -> None:
        """`options`: of type `Options`. Opens nothing."""

    def open(self) -> None:
        """Bind. Raises EndpointError."""
        raise NotImplementedError

    def wait_for(self, clients: int, timeout: float | None) -> None:
        """Wait for clients to connect; `timeout` None: without a limit.

        Raises NoSubscriberError. Does nothing if the protocol has no connections.
        """

    def send(self, messages: VenueMessages) -> None:
        """Send messages that are due now. Must not wait for clients without a bound."""
        raise NotImplementedError

    def jump(self, *, is_back: bool) -> None:
        """Prepare for messages that do not follow the last ones. `is_back`: messages may be repeated."""

    def end(self, *, at_once: bool) -> None:
        """Announce the end of the session. `at_once`: do not wait for clients, because the user stopped the replay."""

    def close(self) -> None:
        """Close sockets and end threads. Also used after an error, and without `open`."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Return counters by name, such as packets."""
        return {}

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_venue_server(url: str, recordings: Sequence[Recording]) -> VenueServer:
    """Return the server for a URL, without opening anything.

    Raises ConfigError if no server has the scheme or an option, or if it does not serve the recordings' schema.
    """
    parsed = VenueUrl.of(url)
    kind = cast("type[VenueServer]", load_registered(SERVER_GROUP, parsed.scheme, "scheme of a venue server"))
    check_schemas(kind, parsed.scheme, recordings)
    if parsed.path not in ("", "/"):
        raise ConfigError(f"URL had the path {parsed.path!r}, expected none with {parsed.scheme}://")
    options = options_of(parsed, kind.Options)
    return kind(parsed.address, recordings, options)


def check_schemas(kind: type[VenueServer], scheme: str, recordings: Sequence[Recording]) -> None:
    """Raise ConfigError if a server does not serve the recordings' schemas."""
    for recording in recordings:
        if (name := recording.feed.schema_name) not in kind.schemas:
            raise ConfigError(
                f"{recording.path} has payloads of schema {name!r}, but {scheme}:// serves "
                f"{' and '.join(sorted(kind.schemas))}"
            )


__all__ = ["SERVER_GROUP", "Address", "VenueMessages", "VenueServer", "make_venue_server"]
