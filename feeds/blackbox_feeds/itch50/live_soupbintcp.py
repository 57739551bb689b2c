"""SoupBinTCP live: NASDAQ TotalView-ITCH 5.0 over TCP, resumed at the next message after a disconnect."""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from datetime import date as Date  # noqa: N812 - `date` is the parameter's name
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.live_source import LiveSource
from blackbox.feed.source import Chunk, make_source
from blackbox.feed.venue_url import VenueUrl, options_of
from blackbox.timestamps import zone_of
from blackbox.transport.wakeup import readable
from blackbox_feeds.io.dates import NEW_YORK, midnight_ns, trading_day
from blackbox_feeds.io.statistics import new_counts, skipped
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm
from blackbox_feeds.itch50.decoder import FrameDecoder
from blackbox_feeds.itch50.messages import SCHEMA
from blackbox_feeds.itch50.moldudp64 import Spans
from blackbox_feeds.itch50.soupbintcp import LOGOUT_REQUEST, MOST_SEQUENCE, Login, packet
from blackbox_feeds.itch50.soupbintcp_client import Frames, SoupBinTcpSession
from blackbox_feeds.live.retries import Retries

log = logging.getLogger("blackbox")

PASSWORD_VARIABLE: Final = "BLACKBOX_SOUPBINTCP_PASSWORD"
"""Environment variable with the password, unless the option `password_file` names a file that has it."""
_READ_BYTES: Final = 1 << 18
_CONNECT_S: Final = 5.0
_STEP_S: Final = 0.2
_CHUNK_MESSAGES: Final = 8_192


class SoupBinTcpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the URL."""

    session: str = ""
    """Session to log in to; default: the current one."""
    sequence: int = 1
    """First message wanted; 0: the most recent one."""
    stale: float = 15.0
    """Seconds without any packet after which the connection counts as lost."""
    retry: float = 0.25
    """Seconds before the second attempt to connect; they double up to 30."""
    password_file: str | None = None
    """File with the password."""

    def __post_init__(self) -> None:
        for name, least, most in (("sequence", 0, MOST_SEQUENCE), ("stale", 0.01, 86_400), ("retry", 0.001, 30)):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"option {name} was {value}, expected {least} to {most}")

    def password(self) -> str:
        """Return the password from the file or the environment; "" without either."""
        if self.password_file is None:
            return os.environ.get(PASSWORD_VARIABLE, "")
        try:
            return Path(self.password_file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"option password_file was {self.password_file!r}: {error}") from error


class SoupBinTcpClient(LiveSource):
    """The messages of a SoupBinTCP session, until it ends.

    `url`: `//USER@HOST:PORT?NAME=VALUE&...`, with the options of `SoupBinTcpSettings`. The password is in the
    environment variable BLACKBOX_SOUPBINTCP_PASSWORD, or in a file. `date` is the trading day in New York, from which
    times count; default: today. `topic` as in `Itch50`.

    After a disconnect the client resumes at the next message. Messages that the server skips are a gap, and so is a
    message that is too short for its type.

    Raises:
        ConfigError: an invalid URL, date or topic; a user or a password that is too long.
    """

    schema = SCHEMA
    date: Date

    def __init__(self, url: str, date: str | Date | None = None, topic: str = DEFAULT_TOPIC) -> None:
        super().__init__()
        text = url if "://" in url else f"soupbintcp:{url}"
        scheme, _, rest = text.partition("://")
        authority, query, asked = rest.partition("?")
        user, at, address = authority.rpartition("@")
        if not at or not user or ":" in user:
            raise ConfigError(
                f"URL had user {user!r}, expected {scheme}://USER@HOST:PORT, with the password in {PASSWORD_VARIABLE}"
            )
        parsed = VenueUrl.of(f"{scheme}://{address}{query}{asked}")
        parsed.address.check_port()
        self._settings = options_of(parsed, SoupBinTcpSettings)
        self._address, self._text = parsed.address, f"{user}@{parsed.address}"
        login = Login(user, self._settings.password(), self._settings.session, self._settings.sequence)
        try:
            login.pack()
        except ValueError as error:
            raise ConfigError(f"login to {parsed.address}: {error}") from None
        self._session = SoupBinTcpSession(login, self._settings.stale)
        self.date = datetime.now(UTC).astimezone(zone_of(NEW_YORK)).date() if date is None else trading_day(date, url)
        self._input_counts = new_counts()
        form = TopicForm(topic, locates=True)
        self._decoder = FrameDecoder(form, midnight_ns(self.date), self._input_counts, _CHUNK_MESSAGES)

    def __repr__(self) -> str:
        return f"<SoupBinTcpClient {self._text}>"

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Make a client of the part of a specification after `soupbintcp:`; see `Source.from_spec`."""
        return make_source(cls, argument, options)

    def compile(self) -> None:
        """Compile everything before packets arrive."""
        super().compile()
        list(self._decode(self._session.compile()))

    def _notes(self) -> tuple[str, ...]:
        return (*super()._notes(), *skipped(self._input_counts).notes())

    def _receive(self) -> Generator[Chunk, None, None]:
        retries, has_connected = Retries(self._settings.retry), False
        while not self.is_stopping:
            began = time.monotonic()
            connected = self._connect()
            if connected is not None:
                self.counts.reconnects += has_connected
                has_connected = True
                with connected:
                    yield from self._follow(connected)
                retries.ended(time.monotonic() - began)
            self.counts.connected = False
            if self._session.rejected is not None:
                raise SourceError(f"{self!r}: {self._session.rejected}")
            if self._session.has_ended:
                return
            if not self.is_stopping:
                readable(self.stop_fd, timeout=retries.delay_s())

    def _connect(self) -> socket.socket | None:
        """Return a connection, or None; waits up to some seconds."""
        try:
            opened = socket.create_connection((self._address.host, self._address.port), _CONNECT_S)
        except OSError as error:
            log.warning("connection to %s: %s", self._address, error.strerror or error)
            return None
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def _follow(self, connected: socket.socket) -> Iterator[Chunk]:
        """Yield the messages of a connection until it ends."""
        session, counts = self._session, self.counts
        poll = select.poll()
        for each in (connected.fileno(), self.stop_fd):
            poll.register(each, select.POLLIN)
        session.begin(time.monotonic())
        while not self.is_stopping and not session.is_over:
            try:
                answer = session.due(time.monotonic())
                if answer is None:
                    break
                connected.sendall(answer)
                if connected.fileno() not in {fd for fd, _ in poll.poll(_STEP_S * 1e3)}:
                    continue
                data = connected.recv(_READ_BYTES)
            except OSError:
                return
            if not data:
                return
            counts.bytes += len(data)
            frames = session.received(data, time.monotonic())
            counts.connected = session.is_logged_in
            counts.packets, counts.malformed, counts.foreign = session.packets, session.malformed, session.unexpected
            if len(frames.starts) or frames.gaps:
                yield from self._decode(frames)
        if session.is_silent:
            counts.stale += 1
        if self.is_stopping and session.is_logged_in:
            with suppress(OSError):
                connected.send(packet(LOGOUT_REQUEST), socket.MSG_DONTWAIT)

    def _decode(self, frames: Frames) -> Iterator[Chunk]:
        """Yield the messages, and the gaps between them."""
        data = frames.data
        spans = Spans(frames.starts, frames.ends, frames.gaps)
        yield from self._decoder.chunks(data, spans, is_framed=True)
        if self._decoder.stop is not None:
            raise SourceError(f"{self!r}: a checked message cannot be decoded: {self._decoder.stop}")
