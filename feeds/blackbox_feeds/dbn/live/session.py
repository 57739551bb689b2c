"""Sessions with Databento's live gateway, in a thread with its own event loop, through Databento's own protocol class.

    record from the gateway  ->  its bytes, upgraded to version 3  ->  Inbox  ->  the publishing thread

A session that was interrupted is opened again after a delay. Once the publishing thread has processed all records, it
returns the time from which the gateway must replay. If the gateway rejects that, the session continues with new
records and a mark says that some may be missing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.live_source import LiveStatistics
from blackbox_feeds.live.inbox import InboxThread, Mark
from blackbox_feeds.live.retries import Retries

DEFAULT_PORT: Final = 13_000
_CONNECT_S: Final = 10.0
_LOGIN_S: Final = 30.0
_HEARTBEAT_S: Final = 10
_STALE_S: Final = 30.0
_POLL_S: Final = 1.0
_log = logging.getLogger(__name__)


class Request(NamedTuple):
    """A subscription, and the gateway's address."""

    dataset: str
    schema: str
    symbols: list[str] | str
    stype_in: str
    start: int | None
    is_snapshot: bool
    host: str
    port: int


class Client(InboxThread):
    """Receives records until it is stopped. `resume` is called by the publishing thread."""

    def __init__(self, request: Request, key: str, counts: LiveStatistics) -> None:
        """`counts`: those of the source; the connection adds to them."""
        super().__init__("blackbox-databento", f"the session with {request.host}")
        self.metadata = b""
        """The metadata of the first session, before any record is in the inbox."""
        self.can_resume = True
        """False if the gateway rejected the replay of missed records."""
        self._request, self._key, self._counts = request, key, counts
        self._resumed: asyncio.Future[int | None] | None = None
        self._protocol: Any = None

    def resume(self, start_ns: int | None) -> None:
        """Continue after an interruption with the records from a time on; None: with new ones."""

        def settle() -> None:
            if self._resumed is not None and not self._resumed.done():
                self._resumed.set_result(start_ns)

        self._soon(settle)

    def _go_on(self) -> None:
        protocol = self._protocol
        if protocol is not None and protocol.is_paused:
            self._soon(protocol.go_on)

    async def _main(self) -> None:
        loop, retries = asyncio.get_running_loop(), Retries()
        start, is_snapshot, is_first = self._request.start, self._request.is_snapshot, True
        while True:
            began_at = loop.time()
            has_streamed, is_rejected = await self._session(start, is_snapshot, is_first=is_first)
            self._counts.connected = False
            retries.ended(loop.time() - began_at)
            if has_streamed:
                is_first = False
                self.can_resume = not is_rejected
                self._resumed = loop.create_future()
                self.inbox.put(Mark.INTERRUPTED)
                start = await self._resumed
                is_snapshot = is_snapshot and start is None
            await asyncio.sleep(retries.delay_s())

    async def _session(self, start: int | None, is_snapshot: bool, *, is_first: bool) -> tuple[bool, bool]:
        """Run one session; return (True if records came, True if the gateway rejected the request before any)."""
        from databento.common.error import BentoError

        asked, protocol = self._request, None
        try:
            protocol = await self._connected()
            protocol.subscribe(
                schema=asked.schema,
                symbols=asked.symbols,
                stype_in=asked.stype_in,
                start=start,
                snapshot=is_snapshot,
            )
            protocol.start()
            if not is_first:
                self._counts.reconnects += 1
            self._protocol = protocol
            await self._wait_for_end(protocol)
        except (OSError, TimeoutError, BentoError) as error:
            _log.warning("session with %s:%d: %s", asked.host, asked.port, str(error) or type(error).__name__)
            has_login = protocol is not None and protocol.authenticated.done()
            if is_first and not has_login and isinstance(error, BentoError):
                raise SourceError(f"{asked.host}:{asked.port} rejected the login: {error}") from None
        finally:
            self._protocol = None
            if protocol is not None:
                protocol.transport.abort()
        is_rejected = protocol is not None and not protocol.records and bool(protocol.rejection)
        has_streamed = protocol is not None and protocol.received > 0
        if is_first and is_rejected and protocol is not None:
            raise SourceError(f"{asked.host}:{asked.port} rejected the subscription: {protocol.rejection}")
        return has_streamed, is_rejected

    async def _connected(self) -> Any:
        """Return the protocol of a connection after the login. Raises OSError, TimeoutError or BentoError."""
        from blackbox_feeds.dbn.live.protocol import RecordProtocol

        asked = self._request
        async with asyncio.timeout(_CONNECT_S):  # wait_for of Python 3.11 may lose a cancellation, and `stop` hang
            _, protocol = await asyncio.get_running_loop().create_connection(
                lambda: RecordProtocol(self._key, asked.dataset, _HEARTBEAT_S, self), asked.host, asked.port
            )
        try:
            done, _ = await asyncio.wait(
                {protocol.authenticated, protocol.disconnected},
                timeout=_LOGIN_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if protocol.authenticated in done:
                await protocol.authenticated
                return protocol
            raise ConnectionError("the gateway closed the connection during the login") if done else TimeoutError
        except BaseException:
            protocol.transport.abort()
            raise

    async def _wait_for_end(self, protocol: Any) -> None:
        """Wait until the session has ended, or nothing came for too long. Raises as the protocol."""
        loop = asyncio.get_running_loop()
        seen, seen_at = -1, loop.time()
        while not protocol.disconnected.done():
            await asyncio.wait({protocol.disconnected}, timeout=_POLL_S)
            if protocol.received != seen or protocol.is_paused:
                seen, seen_at = protocol.received, loop.time()
            elif loop.time() - seen_at > _STALE_S:
                self._counts.stale += 1
                raise TimeoutError(f"nothing came for {_STALE_S:g} s, not even a heartbeat")
        await protocol.disconnected

    def take_metadata(self, content: bytes) -> None:
        """Keep the metadata of the first session. Called by the protocol."""
        if not self.metadata:
            self.metadata = content

    def take_record(self, content: bytes) -> None:
        """Put a record into the inbox. Called by the protocol."""
        self._counts.packets += 1
        self._counts.bytes += len(content)
        self._counts.connected = True
        self.inbox.put(content)


def check_libraries() -> None:
    """Raise ConfigError if a library of live sessions is not installed."""
    try:
        import databento  # noqa: F401
        import uvloop  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "live sessions with Databento need databento and uvloop: pip install 'blackbox-md[databento,live]' "
            f"({error})"
        ) from error
