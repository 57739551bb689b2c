"""Fetch what a slice has missed from archives, in a thread of its own, and give it to the slice thread."""

from __future__ import annotations

import logging
import math
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from random import Random
from typing import Final, NamedTuple, Protocol, Self

import numpy
import zmq

from blackbox.block.block import Block
from blackbox.block.format import FLAG_IMAGE, HEADER
from blackbox.errors import BlackBoxError, SubscriberError
from blackbox.native.limits import Needs, start_thread
from blackbox.native.priority import give_way, giving_way, let_others_go_first
from blackbox.subscribe.join_state import (
    ANSWERS,
    BEGIN,
    GIVE_UP,
    GONE,
    LACKED,
    PASSED,
    QUIET,
    REACHED,
    JoinPhase,
    JoinState,
)
from blackbox.subscribe.repair_queue import MOST_REQUESTS, RepairQueue, RepairRequest
from blackbox.subscribe.sequences import UNKNOWN, Behind, Sequences
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

log = logging.getLogger("blackbox")

REPAIR_NEEDS: Final = (PIPE_NEEDS, Needs(descriptors=2, threads=1))
_AGAIN_S: Final = 0.1
_MOST_JITTER_S: Final = 0.05
_REPEAT_S: Final = 0.004
_NEAR: Final = 10_000
"""Gaps at most this many messages apart are fetched as one: that costs less than to ask twice."""
_QUEUE_BLOCKS: Final = 64
_FEW_BLOCKS: Final = 4
"""With so many to take the slice thread may be about to sleep. With more it is not, and need not be woken."""
_SEND_MS: Final = 20
_CLOSE_S: Final = 10.0
_MOST_WAITS: Final = 10
"""When no archive answers, who begins in the past goes on asking for this many times `repair_wait_ns`."""
_PAUSE_S: Final = 0.004
"""Until archives are asked again that have not answered; it doubles, up to the next one."""
_MOST_PAUSE_S: Final = 0.32
_PROBE_S: Final = 1.0
"""Between two looks at whether an archive answers, when none did."""
_NOTICE_S: Final = 10.0
_MOST_STEP_S: Final = 0.5
_STUCK_S: Final = 0.2
"""After this time without more of a key that is behind, while others come, archives are asked for what it lacks."""
_LOOK_S: Final = 0.01
"""Least time between two looks at which keys those are; it is longer where archives take long to answer."""
_NOTE: Final = struct.Struct("<qqq")
_chance: Final = Random()
"""Of its own: whoever seeds the module's has the same numbers again, whatever goes on here."""


def spread(most_s: float) -> float:
    """Return half of a time to all of it: so many who wait for the same do not go on at the same moment."""
    return _chance.uniform(0.5, 1) * most_s


class _AwakeClock:
    """Seconds that this process was running: a pause (SIGSTOP, a closed laptop) counts as half a second."""

    def __init__(self) -> None:
        self._seen, self._passed = time.monotonic(), 1.0

    def __call__(self) -> float:
        """Return the seconds, as those see them who ask more often than twice a second."""
        now = time.monotonic()
        self._passed += min(max(0.0, now - self._seen), _MOST_STEP_S)
        self._seen = now
        return self._passed


awake_s: Final = _AwakeClock()
"""The clock of all that archives are waited for: those of a process that was paused had no time to answer."""


class Missing(NamedTuple):
    """Numbers of one key that are missing: from `first` to before `stop`."""

    key: bytes
    epoch: int
    first: int
    stop: int


class Later(NamedTuple):
    """There are no more blocks for now."""

    epoch: int
    """The publisher's last run of which the archive's recorder has heard; 0: none, as far as is known."""
    came: float = 0.0
    """When more was read last, wanted or not, by `awake_s`; 0: nothing, this time."""


class Since(NamedTuple):
    """Where a slice begins: at a position, or with what was recorded at some time or later."""

    epoch: int
    """0: at a time."""
    next_sequences: Mapping[bytes, int]
    """By key the number of the first message; b"" where the feed has no keys. Other keys begin at 0."""
    start_ns: int
    """ns since 1970, by the recorder's clock. With an epoch, not 0: other keys begin there."""
    done_ns: int = 0
    """What was sent before in this epoch, by the publisher's clock, is done."""
    prefixes: Sequence[bytes] | None = None
    """What keys begin with of which this says where they are; None: all."""
    image: deque[Block] | None = None
    """The newest message of each topic, or books, as of there: it comes first, and is taken from here."""
    is_unsure: bool = False
    """Whether books in it may lack something."""
    asks_ends: bool = True
    """Whether archives are asked by its numbers for the end of each key, though they have brought what they have.

    Where a clock was set back, that may look done. For who was live it takes too long: many keys wait for it.
    """


class Archives(Protocol):
    """What is asked for recorded blocks."""

    came_s: float
    """Time of the last block that came, by `awake_s`."""

    def kept(self) -> AbstractContextManager[Self]:
        """Return what one thread asks again and again, and its end."""

    def missing(
        self,
        slice_id: int,
        asked: Iterable[Missing],
        wait_s: float,
        is_over: Callable[[], bool],
        *,
        patience_s: float | None = None,
    ) -> Iterator[Block | Missing]:
        """Ask each archive once: yield the blocks that hold missing numbers, of each key in order.

        Up to MOST_REQUESTS of what is asked. What may still come follows as Missing: an archive did not answer, unless
        it has been silent for `wait_s`. Each may take `patience_s` to record more. Raises BlackBoxError when none
        answers.
        """

    def answers(self) -> bool:
        """Return True if an archive answers now, or may answer later."""

    def may_answer(self) -> bool:
        """Return True if an archive missed its deadline, is connected, and is not given up yet."""

    def times_of(
        self, slice_id: int, asked: Iterable[Missing], wait_s: float, is_over: Callable[[], bool]
    ) -> dict[bytes, int]:
        """Ask each archive once for one number of each key: return by key when it was received, ns since 1970.

        Up to MOST_REQUESTS of what is asked; 0: it is gone. What may still come is left out. Raises as `missing`.
        """

    def since(
        self,
        slice_id: int,
        since: Since,
        prefixes: Collection[bytes],
        wait_s: float,
        is_over: Callable[[], bool],
        *,
        patience_s: float,
    ) -> Iterator[Block | Missing | Later]:
        """Yield all blocks of a slice of keys that begin with some prefixes, of each key in order.

        And what is known to be missing between them, and Later whenever there are no more for now.

        After `wait_s` without more the next archive is asked. Ends once it `is_over`. Raises BlackBoxError when for
        `patience_s` no archive answers.
        """


class Repairer:
    """Answers the requests of a slice thread: the blocks that archives have, and how far they have been asked.

    Made and closed in the slice thread. `queue` is what compiled code asks by; `socket` where blocks come for it.
    """

    def __init__(
        self,
        slice_id: int,
        archives: Archives,
        wait_ns: int,
        queue: RepairQueue,
        join: JoinState,
        since: Since | None,
        prefixes: Callable[[], Collection[bytes]],
        sequences: Sequences,
        context: zmq.Context[zmq.Socket[bytes]],
        wake: Callable[[], None],
        threads: Sequence[threading.Thread],
        is_confirmed: Callable[[], bool],
        report: Callable[[SubscriberError], None],
    ) -> None:
        """`since`: where it begins in the past. `prefixes` returns what keys begin with that are wanted.

        `threads`: those that deliver what it brings. `is_confirmed`: whether some publisher has confirmed the filters.
        """
        self._slice_id, self._archives, self._sequences, self._wake = slice_id, archives, sequences, wake
        self._join, self._since, self._prefixes, self._report = join, since, prefixes, report
        self._is_confirmed = is_confirmed
        self._wait_s, self._threads = wait_ns / 1e9, threads
        self._queue = queue
        self._requests = numpy.zeros(MOST_REQUESTS, RepairRequest.dtype)
        self._pipe = Pipe()
        queue.requests, queue.wake_fd = self._requests.ctypes.data, self._pipe.writer
        endpoint = f"inproc://blackbox-repair-{id(self)}"
        self.socket = context.socket(zmq.PAIR)
        self.socket.rcvhwm, self.socket.linger = _QUEUE_BLOCKS, 0
        self.socket.bind(endpoint)
        self._context, self._endpoint = context, endpoint
        self._over, self._has_begun = threading.Event(), threading.Event()
        self._told_at = self._asked_at = self._took_s = 0.0
        self._taken = 0
        self._rests = False
        """Whether gaps are told at once, as no archive has answered within the time that gaps may wait."""
        self._falls = 0
        self._behind: dict[tuple[bytes, int], float] = {}
        """Keys that are behind, and the number that they lack; since when."""
        self._looked_up: dict[tuple[bytes, int], float] = {}
        """Of those that archives were asked for: since when."""
        self._look_at = 0.0
        self._is_warned = False
        self._thread = threading.Thread(target=self._run, name=f"blackbox-repair-{slice_id}", daemon=True)

    def start(self) -> None:
        """Begin to answer, once it is known whether archives do; or to bring what was before."""
        start_thread(self._thread)
        self._has_begun.wait()

    def close(self) -> None:
        """End the thread, once the archive that is asked has answered, or its time is over; close the socket."""
        self._over.set()
        self._pipe.poke()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                log.error("slice %d: an archive is still being asked", self._slice_id)
        self.socket.close()

    def _run(self) -> None:
        with self._context.socket(zmq.PAIR) as out, self._archives.kept() as self._archives:
            out.sndhwm, out.linger, out.sndtimeo = _QUEUE_BLOCKS, 0, _SEND_MS
            out.connect(self._endpoint)
            try:
                # A slice that begins in the past needs archives: if none answers, that ends it.
                self._queue.answers = int(self._since is not None or self._archives.answers())
            finally:
                self._has_begun.set()
            if self._since is not None:
                give_way()
                let_others_go_first()
                with giving_way(self._threads):
                    self._begin(out, self._since)
            while not self._over.is_set():
                if self._join.phase == JoinPhase.LIVE and self._queue.asked == self._taken:  # else `_answer` was woken
                    self._sleep(None if self._queue.answers else _PROBE_S)
                self._spread()
                while not self._over.is_set() and self._join.phase != JoinPhase.LIVE:
                    with giving_way(self._threads):
                        self._catch_up(out)
                if self._queue.asked != self._taken:
                    self._answer(out)
                elif not self._queue.answers and not self._over.is_set() and self._archives.answers():
                    self._queue.answers, self._rests = 1, False

    def _sleep(self, most_s: float | None) -> None:
        """Sleep until the slice thread asks for something, or for so long, more or less."""
        select.select([self._pipe.reader], [], [], most_s and spread(most_s))
        with suppress(BlockingIOError):
            os.read(self._pipe.reader, MOST_REQUESTS)

    def _begin(self, out: zmq.Socket[bytes], since: Since) -> None:
        """Bring the image, if the slice begins with one, and what was before it began."""
        # Callbacks may take long for the past, and the slice thread waits for them: it would hear no confirmation.
        until = awake_s() + _MOST_WAITS * self._wait_s
        while not self._is_confirmed() and awake_s() < until and not self._over.wait(_REPEAT_S):
            pass
        while since.image and not self._over.is_set():
            block = since.image.popleft()
            header = numpy.frombuffer(bytearray(block.header), numpy.uint8)
            header.view(HEADER)["flags"] |= FLAG_IMAGE
            self._send(out, [block.key, header.data, _body_of(block)])
        try:
            self._replay(out, since, _MOST_WAITS * self._wait_s)
        except BlackBoxError as error:
            if not self._has_joined():
                failure = SubscriberError(f"slice {self._slice_id} could not catch up: {error}")
                failure.__cause__ = error
                self._report(failure)

    def _catch_up(self, out: zmq.Socket[bytes]) -> None:
        """Bring what followed when the slice fell back; if no archive answers, have it go over with a gap."""
        self._falls = self._join.falls
        self._note(out, BEGIN, 0, self._falls)
        try:
            self._replay(out, Since(*self._sequences.fell_back_at(), asks_ends=False), self._wait_s)
        except BlackBoxError as error:
            self._queue.answers = 0
            self._notice(error)
            while not self._has_joined():
                self._note(out, GIVE_UP, 0, 0)
                self._over.wait(_REPEAT_S)

    def _replay(self, out: zmq.Socket[bytes], since: Since, patience_s: float) -> None:
        """Bring all there is, until the slice has gone over to what comes live. Raises BlackBoxError."""
        quiet, prefixes = 0.0, self._prefixes()
        for found in self._archives.since(
            self._slice_id, since, prefixes, self._wait_s, self._has_joined, patience_s=patience_s
        ):
            if isinstance(found, Missing):
                self._note(out, GONE, found.epoch, found.stop, found.key)
                continue
            if isinstance(found, Block):
                self._send(out, [found.key, found.header, _body_of(found)])
                quiet = 0.0
                continue
            if quiet <= found.came or not self._join.is_told:  # from here on it waits
                quiet = awake_s()
            if awake_s() - quiet > self._wait_s:
                if not self._has_joined():
                    self._warn_lacking()
                self._note(out, GIVE_UP, 0, 0)
            else:
                self._note(out, REACHED, found.epoch, 0)
                quiet += self._look_at_behind(out, since.start_ns)

    def _warn_lacking(self) -> None:
        if not self._is_warned:
            self._is_warned = True
            log.warning("slice %d: archives lack some of what came before it is live", self._slice_id)

    def _look_at_behind(self, out: zmq.Socket[bytes], start_ns: int) -> float:
        """See to keys that are behind their publisher, while archives bring nothing more of them; return the s it took.

        Of a quiet one nothing may have come since `start_ns`, where the slice began then. Others lack something: that
        is asked for by its numbers.
        """
        began = awake_s()
        if began < self._look_at:
            return 0.0
        behind = self._sequences.behind()
        self._behind = {(each.key, each.first): self._behind.get((each.key, each.first), began) for each in behind}
        self._looked_up = {each: since for each, since in self._looked_up.items() if each in self._behind}
        quiet = [each for each in behind if each.first == UNKNOWN]
        stuck = [each for each in behind if each.key and each.first != UNKNOWN and began > self._stuck_at(each)]
        try:
            for first in range(0, len(quiet), MOST_REQUESTS):
                self._find_quiet(out, quiet[first : first + MOST_REQUESTS], start_ns)
            for first in range(0, len(stuck), MOST_REQUESTS):
                self._fetch_behind(out, stuck[first : first + MOST_REQUESTS])
        except BlackBoxError as error:
            self._notice(error)  # the next look asks again; it is what is read for the slice that ends for good
        took_s = awake_s() - began
        self._look_at = began + took_s + max(_LOOK_S, min(took_s, self._wait_s / 2))
        return took_s

    def _stuck_at(self, behind: Behind) -> float:
        return self._behind[behind.key, behind.first] + _STUCK_S

    def _waits_until(self, asked: list[Behind]) -> dict[bytes, float]:
        """Return by key until when archives may bring what they are asked for now, or have been asked for before."""
        now = awake_s()
        return {each.key: self._looked_up.setdefault((each.key, each.first), now) + self._wait_s for each in asked}

    def _find_quiet(self, out: zmq.Socket[bytes], quiet: list[Behind], start_ns: int) -> None:
        """Begin those keys live of which archives received the last message before `start_ns`, or do not have it."""
        until = self._waits_until(quiet)
        asked = [Missing(each.key, each.epoch, each.stop - 1, each.stop) for each in quiet]
        times = self._archives.times_of(self._slice_id, asked, self._wait_s, self._has_joined)
        now = awake_s()
        for each in quiet:
            is_before = 0 < times.get(each.key, start_ns) < start_ns
            is_lacking = times.get(each.key) == 0 or (each.key not in times and now > until[each.key])
            if is_lacking and not is_before:
                self._warn_lacking()
            if is_lacking or is_before:
                self._note(out, QUIET, each.epoch, each.stop, each.key)

    def _fetch_behind(self, out: zmq.Socket[bytes], stuck: list[Behind]) -> None:
        """Bring what keys lack, by its numbers; note what archives do not have, or not in time."""
        until, may_come = self._waits_until(stuck), set()
        asked = [Missing(*each) for each in stuck]
        for found in self._archives.missing(self._slice_id, asked, self._wait_s, self._has_joined, patience_s=0.0):
            if isinstance(found, Missing):
                may_come.add(found.key)
            else:
                self._send(out, [found.key, found.header, _body_of(found)])
        now = awake_s()
        for each in stuck:
            if each.key not in may_come or now > until[each.key]:
                self._warn_lacking()
                self._note(out, LACKED, each.epoch, each.stop, each.key)

    def _has_joined(self) -> bool:
        """Whether what is replayed is not wanted any more."""
        has_fallen_again = self._join.falls != self._falls
        return self._over.is_set() or has_fallen_again or self._join.phase == JoinPhase.LIVE

    def _spread(self) -> None:
        """Wait, when the last request was just now, up to as long as its answer took.

        Many who have lost the same do not go on asking at the same moments, and more is asked for at once.
        """
        if awake_s() < self._asked_at + _AGAIN_S:
            self._over.wait(_chance.random() * min(self._took_s, _MOST_JITTER_S))

    def _take(self, most: int) -> list[Missing]:
        """Return up to `most` requests; those of one key that lie near each other become one."""
        first, stop = self._taken, min(self._queue.asked, self._taken + most)
        found: dict[tuple[bytes, int], list[Missing]] = {}
        for number in range(first, stop):
            request = RepairRequest(self._requests[number % MOST_REQUESTS : number % MOST_REQUESTS + 1])
            key = self._sequences.keys.name(request.key)
            known = found.setdefault((key, request.epoch), [])
            if known and 0 <= request.first - known[-1].stop <= _NEAR:
                known[-1] = known[-1]._replace(stop=request.stop)
            else:
                known.append(Missing(key, request.epoch, request.first, request.stop))
        self._taken = stop
        return [missing for each in found.values() for missing in each]

    def _answer(self, out: zmq.Socket[bytes]) -> None:
        """Fetch what was asked for, now and meanwhile. Archives that do not answer are asked again, within `wait_s`.

        A fetch that makes progress has no time limit: `wait_s` counts from the last block that came. For each key, in
        order, it is noted how far all has come, or will not come.
        """
        waiting: list[tuple[float, Missing]] = []
        pause_s, heard, failure = _PAUSE_S, 0.0, BlackBoxError()
        while self._join.phase == JoinPhase.LIVE and (waiting or self._queue.asked != self._taken):
            fresh = self._take(MOST_REQUESTS - len(waiting))
            self._note(out, ANSWERS, 0, self._join.falls)  # behind that: it may have fallen back and asked again
            waiting += ((awake_s() + self._wait_s, each) for each in fresh)
            self._queue.answered = self._taken - 1  # the last one stands for all that wait
            left: list[Missing] = []
            if not self._rests:
                asked = [each for _, each in waiting]
                try:
                    left = self._bring(out, asked, waiting[-1][0])
                    heard, self._queue.answers = awake_s(), 1
                except BlackBoxError as error:
                    failure, left = error, asked
            if self._over.is_set():
                return
            now, still = awake_s(), list[tuple[float, Missing]]()
            is_slow = self._archives.may_answer()
            for asked_until, each in waiting:
                until = max(asked_until, self._archives.came_s + self._wait_s)
                rests = [rest for rest in left if _holds(each, rest)]
                if rests and (now < until or is_slow):
                    still += ((until, rest) for rest in rests)
                    continue
                if rests and heard < until - self._wait_s:
                    self._queue.answers, self._rests = 0, True
                    self._notice(failure)
                self._note(out, PASSED, each.epoch, each.stop, each.key)
            waiting = still
            if waiting:
                pause_s = _PAUSE_S if fresh else min(2 * pause_s, _MOST_PAUSE_S)
                self._sleep(min(pause_s, max(_PAUSE_S, waiting[0][0] - now)))
        self._queue.answered = self._taken

    def _bring(self, out: zmq.Socket[bytes], asked: list[Missing], until: float) -> list[Missing]:
        """Ask all archives once; return what may still come. Raises BlackBoxError when none answers."""
        left: list[Missing] = []
        if self._archives.may_answer():
            until = math.inf

        def is_over() -> bool:
            has_fallen_back = self._join.phase != JoinPhase.LIVE
            return (
                self._over.is_set() or has_fallen_back or awake_s() >= max(until, self._archives.came_s + self._wait_s)
            )

        self._asked_at = awake_s()
        for found in self._archives.missing(self._slice_id, asked, self._wait_s, is_over):
            if isinstance(found, Missing):
                left.append(found)
            else:
                self._send(out, [found.key, found.header, _body_of(found)])
            if self._over.is_set():
                return []
        self._took_s = awake_s() - self._asked_at
        return left

    def _notice(self, error: BlackBoxError) -> None:
        if time.monotonic() >= self._told_at:
            self._told_at = time.monotonic() + _NOTICE_S
            log.warning("slice %d: missing messages could not be fetched: %s", self._slice_id, error)

    def _note(self, out: zmq.Socket[bytes], what: int, epoch: int, number: int, key: bytes = b"") -> None:
        self._send(out, [key, b"", _NOTE.pack(what, epoch, number)])

    def _send(self, out: zmq.Socket[bytes], frames: list[bytes | memoryview | zmq.Frame]) -> None:
        while not self._over.is_set():
            try:
                out.send_multipart(frames)
            except zmq.Again:
                continue
            self._queue.sent += 1
            if self._queue.sent - self._queue.taken <= _FEW_BLOCKS:
                self._wake()
            return


def _body_of(block: Block) -> memoryview | zmq.Frame:
    """Return a body to send it on: the message in which it came, which libzmq does not copy, or else a view."""
    view: object = block.body.base
    return view.obj if isinstance(view, memoryview) and isinstance(view.obj, zmq.Frame) else block.body.data


def _holds(asked: Missing, rest: Missing) -> bool:
    """Whether what is left is a part of what was asked for."""
    is_same = (asked.key, asked.epoch) == (rest.key, rest.epoch)
    return is_same and asked.first <= rest.first and rest.stop <= asked.stop
