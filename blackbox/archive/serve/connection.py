"""Connections to archives: send a request, receive its answer and check the answer's blocks."""

from __future__ import annotations

import itertools
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

import zmq

from blackbox.archive.serve.protocol import (
    ANSWERS,
    ENCODER,
    FRAMES_OF_BLOCK,
    About,
    Answer,
    AskAbout,
    Gone,
    Piece,
    Refusal,
    Request,
    check_version,
)
from blackbox.block.form.block import Block
from blackbox.documents import DecodeError
from blackbox.errors import ArchiveError, BlockError, ConfigError, EndpointError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.routing.key_rule import rule_text
from blackbox.native.system.awake_clock import awake_s, spread
from blackbox.native.system.limits import Needs
from blackbox.repeated_log import RepeatedLog
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import ClientKeys, keys_of_archive, refusal_of, use_keys
from blackbox.transport.tcp_info import Connections, Failure

_LOOK_S: Final = 0.05
"""Interval between calls of `is_over`."""
_MOST_BYTES: Final = 64 << 20
_IPC: Final = "ipc://"
_HEAD_FRAMES: Final = 2
_SHARED_BYTES: Final = 8_192
"""Frames up to this size may share a libzmq buffer; keeping one would keep the whole buffer."""
_NEEDS: Final = Needs(descriptors=5)


Answered = tuple[Answer, list[bytes | memoryview]]
"""An answer and the frames of its blocks."""


class Fetched(NamedTuple):
    """A recorded block, checked, with its publisher's header."""

    block: Block
    ts_recv: int
    """Time of receipt by the recorder, ns since 1970."""
    first_row: int
    """Earlier rows were not requested, or came before."""
    stop_row: int
    """Rows from here on were not requested."""


class SilentArchiveError(ArchiveError):
    """An archive did not answer in time."""


class StaleError(Exception):
    """The archive was restarted: start again from the last position."""


class Connection:
    """A socket to one archive, used for one request after the other."""

    def __init__(self, endpoint: str, keys: ClientKeys | None) -> None:
        """Connect. Raises EndpointError."""
        self.endpoint = endpoint
        self.is_known = False
        """True once the archive is known to be one of the feed."""
        self.heard = 0.0
        """Time of its last answer, by `awake_s`; 0: none in this use."""
        self.is_over: Callable[[], bool] = _never
        """Returns True if the answer is no longer needed."""
        self.timeout = 0.0
        """Time to wait for an answer, in seconds."""
        self.is_hasty = False
        """True to give up after a failed attempt to connect, before the timeout."""
        self._numbers = itertools.count(1)
        self._number = b""
        self._context = new_context("archive client", _NEEDS)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        allow_ipv6(self._socket, self.endpoint)
        keep_alive(self._socket)
        use_keys(self._socket, keys)
        self._keys, self._connections = keys, Connections(self._socket, counts_retries=True)
        try:
            self._socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(error.errno, f"cannot connect to archive {self.endpoint}: {error.strerror}") from error

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()
        self._socket.close()
        self._context.term()

    def is_connected(self) -> bool:
        """Return True if the archive's host holds the connection, even if its process does not answer."""
        if self.endpoint.startswith(_IPC):
            return _accepts(self.endpoint.removeprefix(_IPC))
        return any(each.is_answered() for each in self._connections.look())

    def ask(self, request: Request) -> Answered:
        """Send a request and return its answer. Raises as `send` and `answer`."""
        self.send(request)
        return self.answer()

    def send(self, request: Request) -> None:
        """Send a request. Raises ArchiveError if it is not accepted."""
        self._number = next(self._numbers).to_bytes(8, "little")
        try:
            self._socket.send_multipart([self._number, ENCODER.encode(request)], zmq.NOBLOCK)
        except zmq.Again:
            raise ArchiveError(f"{self.endpoint}: took no request") from None

    def answer(self) -> Answered:
        """Return the answer to the last request, and the frames of its blocks, large ones as views of their messages.

        Raises ArchiveError if none arrives in time, or if the request or our key is rejected.
        """
        until, is_late = awake_s() + self.timeout, False
        while not self.is_over() and not is_late:
            left_s = until - awake_s()
            is_late = left_s <= 0  # poll once more, in case the process was suspended
            if not self._socket.poll(round(1e3 * min(max(0.0, left_s), _LOOK_S))):
                self._connections.look()
                # A peer that closes the connection may be restarting.
                certain = self._connections.failures.keys() - {Failure.LEFT}
                if why := refusal_of(certain, self._keys):
                    raise ArchiveError(f"{self.endpoint}: {why}")
                if self.is_hasty and self._connections.retries and not self.is_connected():
                    raise ArchiveError(f"{self.endpoint} took no connection")
                continue
            frames = [_taken(frame) for frame in self._socket.recv_multipart(copy=False)]
            if len(frames) < _HEAD_FRAMES or frames[0] != self._number:
                continue
            try:
                if not self.is_known:
                    check_version(frames[1])
                answer = ANSWERS.decode(frames[1])
            except ArchiveError as error:
                raise ArchiveError(f"{self.endpoint}: {error}") from None
            except DecodeError as error:
                raise ArchiveError(f"{self.endpoint} did not answer as an archive does: {error}") from error
            if isinstance(answer, Refusal) and not answer.is_stale:
                raise ArchiveError(f"{self.endpoint}: {answer.why}")
            self.heard = awake_s()
            return answer, frames[_HEAD_FRAMES:]
        why = refusal_of(self._connections.failures, self._keys)
        text = f"{self.endpoint} did not answer within {self.timeout:.3g} s"
        raise SilentArchiveError(text + (f": {why}" if why else ""))


def _accepts(path: str) -> bool:
    """Return True if a process listens at a path."""
    with socket.socket(socket.AF_UNIX) as ours, suppress(OSError):
        ours.settimeout(_LOOK_S)
        ours.connect(path)
        return True
    return False


def _taken(frame: zmq.Frame) -> bytes | memoryview:
    return frame.buffer if len(frame) > _SHARED_BYTES else frame.bytes


def in_place(endpoint: str, piece: Piece, frames: list[bytes | memoryview]) -> Iterator[Fetched | Gone]:
    """Yield the blocks of a piece, checked, and the gaps between them."""
    gone = iter([*piece.gone, (len(piece.blocks) + 1, None)])
    before, missing = next(gone)
    for number, (ts_recv, first_row) in enumerate([*piece.blocks, (0, 0)]):
        while before <= number and missing is not None:
            yield missing
            before, missing = next(gone)
        if number < len(piece.blocks):
            block = block_of(endpoint, frames, number)
            yield Fetched(block, ts_recv, first_row, block.count)


def block_of(endpoint: str, frames: list[bytes | memoryview], number: int) -> Block:
    """Return one block of an answer, checked. Raises ArchiveError."""
    start = FRAMES_OF_BLOCK * number
    try:
        key, header, body = frames[start : start + FRAMES_OF_BLOCK]
        return Block.decode(bytes(key), bytes(header), body)
    except BlockError as error:
        raise ArchiveError(f"{endpoint}: a block of its answer is damaged: {error}") from error


log = logging.getLogger("blackbox")
_AnswerT = TypeVar("_AnswerT")

RETRY_S: Final = 0.32
"""Pause before all archives are asked again. Unit: s."""
_MOST_WAIT_S: Final = 60.0
"""Time for which a connected archive that does not answer is asked again, with growing timeouts. Unit: s."""
_MOST_ANSWER_S: Final = 32.0


class ConnectionPool:
    """Opens connections to the archives of a feed, and notes which archives are silent.

    Attributes: `order`, the endpoints as they are asked: in the order of the feed file, but those that failed come
    last; `silent`, by endpoint the time since which an archive has not answered, by `awake_s`.
    """

    def __init__(self, feed: Feed, timeout: float, *, keeps: bool) -> None:
        """`timeout`: see `ArchiveClient`. With `keeps`, connections stay open for later requests of the same thread.

        Raises ConfigError if the feed has no archive, or a key of `[security]` is missing or malformed.
        """
        check_is_feed(feed)
        if not feed.archives:
            raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
        if not timeout > 0:
            raise ValueError(f"timeout was {timeout}, expected more than 0 s")
        self.feed, self.timeout = feed, timeout
        self.order: tuple[str, ...] = feed.archives
        self.silent: dict[str, float] = {}
        self._keys = {endpoint: keys_of_archive(feed, endpoint) for endpoint in feed.archives}
        self._waited: dict[str, float] = {}
        """Seconds spent waiting for each connected archive since its last answer."""
        self._repeated = RepeatedLog(log)
        self._idle: dict[str, Connection] | None = {} if keeps else None

    def close(self) -> None:
        """Close the idle connections."""
        for connection in (self._idle or {}).values():
            connection.close()

    @contextmanager
    def connection(
        self, endpoint: str, is_over: Callable[[], bool] | None = None, timeout: float = 0.0, *, is_hasty: bool = False
    ) -> Iterator[Connection]:
        """Yield a connection to an archive of this feed; `timeout` applies if it is longer than the pool's.

        With `is_over`, an archive that did not answer before gets a longer timeout. `is_hasty`: see `Connection`.
        """
        began, timeout = awake_s(), max(timeout, self.timeout)
        if is_over is not None and self.may_answer([endpoint]):
            timeout = max(timeout, min(self._waited[endpoint], _MOST_ANSWER_S))
        asking = (self._idle or {}).pop(endpoint, None) or Connection(endpoint, self._keys[endpoint])
        asking.is_over, asking.heard, asking.timeout, asking.is_hasty = is_over or _never, 0.0, timeout, is_hasty
        try:
            if not asking.is_known:
                self.about(asking, AskAbout())
                asking.is_known = True
            yield asking
        except GeneratorExit:  # its late answer must not be taken for that to the next request
            self._keep(asking)
            raise
        except BaseException as error:
            try:
                if isinstance(error, ArchiveError) and not asking.is_over():
                    self.silent[endpoint] = asking.heard or self.silent.get(endpoint, began)
                    self._note_silence(asking, error)
            finally:
                asking.close()
            raise
        self._keep(asking)

    def about(self, asking: Connection, request: AskAbout) -> About:
        """Return the answer of an archive. Raises ArchiveError if it is not an archive of this feed."""
        about, ours = asking.ask(request)[0], (self.feed.name, self.feed.key_rule)
        if isinstance(about, About) and (about.feed, about.key_rule) == ours:
            return about
        what = f"feed {about.feed!r}, {rule_text(about.key_rule)}" if isinstance(about, About) else repr(about)
        expected = f"feed {self.feed.name!r}, {rule_text(self.feed.key_rule)}"
        raise ArchiveError(f"{asking.endpoint}: archive was of {what}, expected {expected}")

    def first_answer(self, until: float, ask: Callable[[Connection], _AnswerT]) -> _AnswerT:
        """Return the answer of the first archive that gives one. Ask all again until a time, by `time.monotonic`.

        Each attempt doubles the timeout, for busy hosts. Raises ArchiveError with the failure of each archive.
        """
        patience_s = self.timeout
        while True:
            failures: list[str] = []
            for endpoint in self.order:
                try:
                    with self.connection(endpoint, timeout=min(patience_s, until - time.monotonic())) as asking:
                        return ask(asking)
                except ArchiveError as error:
                    self.put_last(endpoint)
                    failures.append(str(error))
            if time.monotonic() >= until:
                raise self.no_answer(failures)
            patience_s *= 2
            time.sleep(spread(RETRY_S))

    def may_answer(self, endpoints: Collection[str]) -> bool:
        """Return True if one of them missed its deadline but is connected and was waited for less than a minute."""
        return any(self._waited.get(each, _MOST_WAIT_S) < _MOST_WAIT_S for each in endpoints)

    def put_last(self, endpoint: str) -> None:
        """Move an archive that failed to the end of the order."""
        self.order = (*(each for each in self.order if each != endpoint), endpoint)

    def no_answer(self, failures: Collection[str]) -> ArchiveError:
        """Return the error for a request that no archive answered."""
        return ArchiveError(f"no archive of feed {self.feed.name!r} answered: {'; '.join(failures)}")

    def _keep(self, asking: Connection) -> None:
        """Keep a connection for the next request, or close it."""
        self.silent.pop(asking.endpoint, None)
        self._waited.pop(asking.endpoint, None)
        if self._idle is None or asking.endpoint in self._idle:  # a nested request has kept its own connection
            asking.close()
        else:
            self._idle[asking.endpoint] = asking

    def _note_silence(self, asking: Connection, error: ArchiveError) -> None:
        """Note that an archive did not answer in time. Warn if it is connected, because it is asked again."""
        if not isinstance(error, SilentArchiveError) or not asking.is_connected():
            self._waited.pop(asking.endpoint, None)
            return
        before_s = 0.0 if asking.heard else self._waited.get(asking.endpoint, 0.0)
        self._waited[asking.endpoint] = before_s + asking.timeout
        text = "%s but is connected: it is asked again, for up to %g s, with more patience"
        self._repeated.warning(asking.endpoint, text, error, _MOST_WAIT_S)


def _never() -> bool:
    return False
