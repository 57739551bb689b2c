"""Read missing messages of a slice from archives in a thread, for the slice thread."""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import numpy
import zmq

from blackbox.block.form.block import Block
from blackbox.block.form.format import FLAG_IMAGE, HEADER
from blackbox.block.position import End, Position
from blackbox.errors import BlackBoxError, SubscriberError
from blackbox.native.system.awake_clock import awake_s, spread
from blackbox.native.system.limits import Needs, start_thread
from blackbox.native.system.priority import give_way, giving_way, let_others_go_first
from blackbox.receive.deliver.arbitration import Note
from blackbox.receive.order.state import UNKNOWN, Answers, OrderState, Phase
from blackbox.repeated_log import RepeatedLog
from blackbox.transport.inproc import new_endpoint
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe, readable

if TYPE_CHECKING:
    from blackbox.receive.slices.options import SliceSettings
    from blackbox.receive.slices.slice_errors import SliceErrors
    from blackbox.receive.slices.slice_status import SliceStatus
    from blackbox.receive.slices.tables import Tables

log = logging.getLogger("blackbox")

CATCH_UP_NEEDS: Final = (PIPE_NEEDS, Needs(descriptors=2, threads=1))
_REPEAT_S: Final = 0.004
_QUEUE_BLOCKS: Final = 64
_FEW_BLOCKS: Final = 4
"""Largest number of waiting frames at which the slice thread may sleep and must be woken."""
_SEND_MS: Final = 20
_CLOSE_S: Final = 10.0
_MOST_WAITS: Final = 10
"""A slice that begins in the past asks silent archives for this many times `wait_ns`."""
_PROBE_S: Final = 1.0
"""Seconds between two attempts to reach a silent archive."""
_MOST_WAKES: Final = 1_024
_NOTE: Final = struct.Struct("<qqqq")


class Passed(NamedTuple):
    """All wanted messages before a position were yielded or are lost."""

    position: Position
    is_all: bool = False
    """True if archives have no more at present."""
    has_waited: bool = False
    """True if nothing more came within the wait."""


class Gone(NamedTuple):
    """No archive has the next messages, up to a position."""

    position: Position


class Told(NamedTuple):
    """End of an ended epoch, from an archive."""

    epoch: int
    following: int
    """End of the slice."""
    ends: Mapping[bytes, End]
    """End of each key at that sequence."""


class Since(NamedTuple):
    """Start of a slice in the past."""

    position: Position | None = None
    """None: it starts at a time."""
    start_ns: int = 0
    """Time of receipt from which messages are wanted, by the recorder's clock, ns since 1970."""
    image: deque[Block] | None = None
    """Newest message of each topic, or books, at the position. Delivered first, and removed from here."""
    is_unsure: bool = False
    """True if its books may lack orders."""

    @property
    def image_epoch(self) -> int:
        """Epoch of the position after an image; 0: there is no image."""
        return 0 if self.position is None or self.image is None else self.position.epoch


class Wanted(NamedTuple):
    """Prefixes that a slice reads from archives."""

    keys: Collection[bytes]
    """Prefixes of keys: all blocks of these are read."""
    topics: Collection[bytes] = (b"",)
    """Prefixes of topics: only messages of these are missed."""


class Archives(Protocol):
    """Source of recorded blocks."""

    def kept(self) -> AbstractContextManager[Self]:
        """Return a client for repeated requests of one thread."""

    def answers(self) -> bool:
        """Return True if an archive answers now, or may answer later."""

    def read(
        self,
        slice_id: int,
        start: Position | int,
        wanted: Wanted,
        wait_s: float,
        is_over: Callable[[], bool],
        *,
        patience_s: float,
    ) -> Iterator[Block | Passed | Gone | Told]:
        """Yield blocks of a slice in order from a position or time on, of wanted keys.

        Yield progress, missing ranges and ends of epochs between them. End when `is_over`. Raises BlackBoxError if no
        archive answers for `patience_s`.
        """


class _Outlet:
    """Sends blocks and notes to the slice thread; waits while its queue is full. Used by the thread of `CatchUp`."""

    def __init__(
        self, out: zmq.Socket[bytes], state: OrderState, wake: Callable[[], None], over: threading.Event
    ) -> None:
        self._out, self._state, self._wake, self._over = out, state, wake, over
        out.sndhwm, out.linger, out.sndtimeo = _QUEUE_BLOCKS, 0, _SEND_MS

    def note(self, what: Note, epoch: int, number: int, count: int = 0, key: bytes = b"") -> None:
        """Send a note."""
        self.send([key, b"", _NOTE.pack(what, epoch, number, count)])

    def send(self, frames: list[bytes | memoryview | zmq.Frame]) -> None:
        """Send a block, or return because the slice has ended."""
        while not self._over.is_set():
            try:
                self._out.send_multipart(frames)
            except zmq.Again:
                continue
            self._state.sent += 1
            if self._state.sent - self._state.taken <= _FEW_BLOCKS:
                self._wake()
            return


class CatchUp:
    """Reads archives in a thread while a slice is CATCHING_UP.

    Created and closed in the slice thread, which receives from `socket`.
    """

    def __init__(
        self,
        settings: SliceSettings,
        status: SliceStatus,
        since: Since | None,
        tables: Tables,
        errors: SliceErrors,
        context: zmq.Context[zmq.Socket[bytes]],
    ) -> None:
        """`since`: start in the past."""
        assert settings.archives is not None
        self._archives, self._wait_s = settings.archives, settings.options.repair_wait_ns / 1e9
        self._slice_id, self._status, self._state = status.slice_id, status, status.order.state
        self._since, self._tables, self._errors = since, tables, errors
        self._pipe, self._over = Pipe(), threading.Event()
        self._state.wake_fd, self._state.answers = self._pipe.writer, Answers.EXPECTED
        self.socket = context.socket(zmq.PAIR)
        self.socket.rcvhwm, self.socket.linger = _QUEUE_BLOCKS, 0
        self._repeated = RepeatedLog(log)
        self._thread: threading.Thread | None = None

    def start(
        self, context: zmq.Context[zmq.Socket[bytes]], wake: Callable[[], None], threads: Sequence[threading.Thread]
    ) -> None:
        """Start the thread and wait until it has tried to reach an archive.

        `wake` wakes the slice thread. `threads` deliver the blocks.
        """
        endpoint, has_begun = new_endpoint("catch-up"), threading.Event()
        self.socket.bind(endpoint)
        self._thread = threading.Thread(
            target=self._run,
            args=(context, endpoint, wake, threads, has_begun),
            name=f"blackbox-catch-up-{self._slice_id}",
            daemon=True,
        )
        start_thread(self._thread)
        has_begun.wait()

    def close(self) -> None:
        """Stop the thread and close the socket."""
        self._over.set()
        self._pipe.poke()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                log.error("slice %d: an archive is still being asked", self._slice_id)
        self.socket.close()

    def _run(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        wake: Callable[[], None],
        threads: Sequence[threading.Thread],
        has_begun: threading.Event,
    ) -> None:
        try:
            with context.socket(zmq.PAIR) as out, self._archives.kept() as self._archives:
                self._outlet = _Outlet(out, self._state, wake, self._over)
                out.connect(endpoint)
                if self._since is None and self._archives.answers():
                    self._state.answers = Answers.SOME
                has_begun.set()
                if self._since is not None:
                    give_way()
                    let_others_go_first()
                    with giving_way(threads):
                        self._begin(self._since)
                while not self._over.is_set():
                    if self._state.phase != Phase.LIVE:
                        with giving_way(threads):
                            self._catch_up(None, self._wait_s)
                    elif not self._state.answers and self._archives.answers():
                        self._state.answers = Answers.SOME
                    else:
                        self._sleep(None if self._state.answers else _PROBE_S)
        except Exception as error:  # noqa: BLE001 - any error that ends this thread must be raised by run()
            failure = SubscriberError(f"slice {self._slice_id}: archives could not be read: {error}")
            failure.__cause__ = error
            self._errors.report(failure)
        finally:
            has_begun.set()

    def _sleep(self, most_s: float | None) -> None:
        """Sleep until the slice has a request, or for about `most_s`."""
        readable(self._pipe.reader, timeout=most_s and spread(most_s))
        with suppress(BlockingIOError):
            os.read(self._pipe.reader, _MOST_WAKES)

    def _begin(self, since: Since) -> None:
        """Send the image, if any, then earlier messages."""
        # Slow callbacks would block the slice thread before it receives the confirmation.
        until = awake_s() + _MOST_WAITS * self._wait_s
        while not self._status.confirmed_lines and awake_s() < until and not self._over.wait(_REPEAT_S):
            pass
        while since.image and not self._over.is_set():
            block = since.image.popleft()
            header = numpy.frombuffer(bytearray(block.header), HEADER)
            header["flags"] |= FLAG_IMAGE
            self._outlet.send([block.key, header.data, _body_of(block)])
        self._catch_up(since, _MOST_WAITS * self._wait_s)

    def _catch_up(self, since: Since | None, patience_s: float) -> None:
        """Send messages for the current request until the slice is live or has a new request.

        If no archive answers, a live slice continues with a gap, and one that begins in the past fails.
        """
        request, start = self._request()
        if since is not None and since.position is None:
            start = since.start_ns
        self._outlet.note(Note.BEGIN, 0, request)
        try:
            self._bring(request, start, patience_s)
        except BlackBoxError as error:
            if self._is_over(request):
                return
            if since is not None:
                failure = SubscriberError(f"slice {self._slice_id} could not catch up: {error}")
                failure.__cause__ = error
                self._errors.report(failure)
                self._over.wait()
                return
            self._state.answers = Answers.NONE
            self._notice(error)
            while not self._is_over(request):
                self._outlet.note(Note.GIVE_UP, 0, 0)
                self._over.wait(_REPEAT_S)

    def _request(self) -> tuple[int, Position | int]:
        """Return the number and the start of the current request."""
        while True:
            request = self._state.request
            position = Position(self._state.epoch, self._state.first)
            if request == self._state.request:
                return request, position

    def _is_over(self, request: int) -> bool:
        """Return True if a request is obsolete."""
        state = self._state
        return self._over.is_set() or state.phase == Phase.LIVE or state.request != request

    def _bring(self, request: int, start: Position | int, patience_s: float) -> None:
        def is_over() -> bool:
            return self._is_over(request)

        wanted = Wanted(self._tables.newest.upstream, self._tables.newest.wanted)
        for found in self._archives.read(self._slice_id, start, wanted, self._wait_s, is_over, patience_s=patience_s):
            self._state.answers = Answers.SOME
            if isinstance(found, Block):
                self._outlet.send([found.key, found.header, _body_of(found)])
            elif isinstance(found, Gone):
                self._warn_lacking()
                self._outlet.note(Note.GONE, *found.position)
            elif isinstance(found, Told):
                self._outlet.note(Note.TOLD, found.epoch, found.following)
                for key, end in found.ends.items():
                    self._outlet.note(Note.END, found.epoch, end.sequence, end.count, key)
            elif not found.has_waited or self._state.holds_from == UNKNOWN:
                self._outlet.note(Note.ALL if found.is_all else Note.PASSED, *found.position)
                while 0 < self._state.epoch < found.position.epoch and not is_over():  # it may wait for a line
                    self._over.wait(_REPEAT_S)
                    self._outlet.note(Note.PASSED, *found.position)
            else:
                self._warn_lacking()
                self._outlet.note(Note.GIVE_UP, 0, 0)
            if is_over():
                return

    def _warn_lacking(self) -> None:
        self._repeated.warning("", "slice %d: archives lack messages before the live ones", self._slice_id)

    def _notice(self, error: BlackBoxError) -> None:
        self._repeated.warning("", "slice %d: missing messages could not be fetched: %s", self._slice_id, error)


def _body_of(block: Block) -> memoryview | zmq.Frame:
    """Return the body's ZeroMQ frame, which libzmq does not copy, or a view of it."""
    view: object = block.body.base
    return view.obj if isinstance(view, memoryview) and isinstance(view.obj, zmq.Frame) else block.body.data
