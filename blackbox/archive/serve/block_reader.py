"""Read the recorded blocks of a slice from all archives of a feed, as one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from blackbox.archive.serve.connection import RETRY_S, Connection, ConnectionPool, Fetched, StaleError, in_place
from blackbox.archive.serve.cursor import CLOSED, MAY_COME, NO_END, Cursor, Lack
from blackbox.archive.serve.protocol import (
    FRAMES_OF_BLOCK,
    AskBlocks,
    AskPosition,
    EndOfEpoch,
    FoundPosition,
    Gone,
    Piece,
    Refusal,
)
from blackbox.block.position import Position
from blackbox.errors import ArchiveError
from blackbox.native.system.awake_clock import awake_s, spread
from blackbox.receive.slices.catching_up import Passed

log = logging.getLogger("blackbox")

_LATER_S: Final = 0.001
"""First pause before archives are asked again for messages that they have not recorded yet; it doubles. Unit: s."""


class _Waits:
    """Times and failures while archives are read, by `awake_s`."""

    def __init__(self, start: Position) -> None:
        self.position = start
        """Position at the last `look`."""
        self.moved = self.heard = awake_s()
        """Times of the last change of position and of the last answer."""
        self.failed: dict[str, tuple[float, str]] = {}
        """Time and reason of each failure, by endpoint."""
        self._pause_s = _LATER_S

    def look(self, position: Position) -> float:
        """Note the position. Return the current time."""
        now = awake_s()
        if position != self.position:
            self.position, self.moved, self._pause_s = position, now, _LATER_S
        return now

    def pause(self, retry_s: float) -> None:
        """Sleep, twice as long each time until the position changes. Forget failures after `retry_s`."""
        now = awake_s()
        time.sleep(spread(self._pause_s))
        self._pause_s = min(2 * self._pause_s, RETRY_S)
        self.failed = {each: late for each, late in self.failed.items() if now - late[0] < retry_s}


class BlockReader:
    """Reads the blocks of one request.

    If an archive does not answer, refuses, or lacks the next message, another one continues from the same position, so
    no message is returned twice.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        ask: AskBlocks,
        is_over: Callable[[], bool] | None = None,
        wait_s: float = 0.0,
        patience_s: float = 0.0,
    ) -> None:
        """`is_over`, `wait_s`, `patience_s`: see `ArchiveClient.read`."""
        self._pool, self._ask, self._is_over = pool, ask, is_over
        self._wait_s, self._patience_s = wait_s, patience_s
        self._cursor, self._waits = Cursor(ask.start, ask.stop), _Waits(ask.start)

    def read(self) -> Iterator[Fetched | Gone | EndOfEpoch | Passed]:
        """Yield blocks, gaps, ends of epochs and progress.

        Without `is_over`, end when the recorders of all archives that answer have stopped.
        """
        pool, cursor, waits, is_over = self._pool, self._cursor, self._waits, self._is_over
        while not cursor.is_done and not (is_over and is_over()):
            endpoint = next((e for e in pool.order if e not in cursor.lacks and e not in waits.failed), None)
            if endpoint is not None:
                yield from self._read_from(endpoint)
                continue
            now = waits.look(cursor.position)
            if not cursor.lacks and now - waits.heard >= self._patience_s and not self._may_answer(pool.feed.archives):
                raise pool.no_answer([why for _, why in waits.failed.values()])
            has_stop_ns = self._ask.stop_ns is not None
            if is_over is None and (cursor.are_all_closed or (has_stop_ns and cursor.is_any_closed)):
                break
            may_answer = is_over is not None and any(
                now - pool.silent.get(each, now) < self._wait_s or pool.may_answer([each]) for each in waits.failed
            )
            has_waited = now - waits.moved >= self._wait_s and not may_answer
            was_in_vain = is_over is None and cursor.may_come
            if has_waited or not (may_answer or cursor.may_come):
                yield from cursor.pass_on()
            if cursor.position != waits.position:
                if was_in_vain:
                    self._wait_s /= 2  # all such waits together are short, however many gaps follow
                yield Passed(cursor.position)
                continue
            yield Passed(cursor.position, cursor.may_come or cursor.are_all_closed, has_waited)
            waits.pause(pool.timeout)
            cursor.lacks.clear()
        if is_over is None and (rest := cursor.rest()) is not None:
            yield rest

    def _may_answer(self, endpoints: tuple[str, ...]) -> bool:
        return self._is_over is not None and self._pool.may_answer(endpoints)

    def _read_from(self, endpoint: str) -> Iterator[Fetched | Gone | Passed]:
        """Yield from one archive until it lacks the next message. Note if it answered or failed."""
        waits = self._waits
        try:
            while endpoint not in self._cursor.lacks:
                with suppress(StaleError), self._pool.connection(endpoint, self._is_over) as asking:
                    yield from self._pieces(asking)
            waits.heard = awake_s()
        except ArchiveError as error:
            if self._is_over and self._is_over():
                return  # it was not waited for
            waits.failed[endpoint] = awake_s(), str(error)
            waits.heard = max(waits.heard, self._pool.silent.get(endpoint, waits.heard))
            self._pool.put_last(endpoint)

    def _pieces(self, asking: Connection) -> Iterator[Fetched | Gone | Passed]:
        endpoint, cursor = asking.endpoint, self._cursor
        ask = msgspec.structs.replace(self._ask, start=cursor.position, cursor=cursor.places.get(endpoint))
        asking.send(ask)
        while endpoint not in cursor.lacks:
            answer, frames = asking.answer()
            if isinstance(answer, Refusal) and ask.cursor is not None:
                cursor.places.pop(endpoint, None)
                raise StaleError
            if not isinstance(answer, Piece) or len(frames) != FRAMES_OF_BLOCK * len(answer.blocks):
                raise ArchiveError(f"{endpoint}: answer was not a piece with all of its blocks")
            ask = msgspec.structs.replace(ask, cursor=answer.cursor, start=answer.passed)
            has_more = answer.state == "more" and answer.ended is None
            if has_more:
                asking.send(ask)  # the archive reads the next piece while this one is processed
            for found in in_place(endpoint, answer, frames):
                yield from self._pass(endpoint, found)
                if endpoint in cursor.lacks:
                    return
            cursor.places[endpoint] = answer.cursor
            ended, passed = answer.ended, answer.passed
            if ended is not None:
                lack, passed = Lack(NO_END, "", passed.epoch, ended), Position(ended.epoch, ended.stop)
            else:
                lack = CLOSED if answer.state == "done" else MAY_COME
            if cursor.go_to(passed):
                yield Passed(passed)
            if not has_more:
                cursor.lacks[endpoint] = lack

    def _pass(self, endpoint: str, found: Fetched | Gone) -> Iterator[Fetched | Gone | Passed]:
        """Pass a block, or messages that an archive lacks, as far as all other archives lack them too."""
        cursor, archives = self._cursor, len(self._pool.feed.archives)
        if isinstance(found, Fetched):
            if found.block.epoch != cursor.position.epoch:
                raise ArchiveError(f"{endpoint}: {found.block!r} was not of epoch {cursor.position.epoch}")
            if (wanted := cursor.take(found)) is not None:
                yield wanted
            return
        if found.first == found.stop:
            yield found
        if cursor.go_to(before := Position(found.epoch, found.first)):
            yield Passed(before)
        while cursor.note_gone(endpoint, found) and not cursor.may_come and len(cursor.lacks) == archives:
            if (passed := cursor.pass_gone()) is not None:
                yield passed


def find_position(
    pool: ConnectionPool, ask: AskPosition, is_over: Callable[[], bool] | None = None, patience_s: float = 0.0
) -> Position:
    """Return the position of the first block that any archive received at a time or later; else the last end.

    An archive that does not answer in time is left out, with a warning. Raises ArchiveError if none answers for
    `patience_s`, or when `is_over`.
    """
    began = awake_s()
    while True:
        found, ends, failures = list[Position](), list[Position](), list[str]()
        for endpoint in pool.order:
            try:
                with pool.connection(endpoint, is_over) as asking:
                    position, is_end = _find(asking, ask)
                (ends if is_end else found).append(position)
            except ArchiveError as error:
                if not (is_over and is_over()):
                    pool.put_last(endpoint)
                failures.append(str(error))
        is_ended = is_over is not None and is_over()
        if (found or ends) and not is_ended:
            for failure in failures:
                log.warning("slice %d starts without the messages of an archive: %s", ask.slice_id, failure)
            return min(found, default=max([*found, *ends]))
        if is_ended or (awake_s() - began >= patience_s and not (is_over and pool.may_answer(pool.feed.archives))):
            raise pool.no_answer(failures)
        time.sleep(spread(RETRY_S))


def _find(asking: Connection, ask: AskPosition) -> tuple[Position, bool]:
    """Return the position that an archive finds, and True if that is the end of what it has. Raises ArchiveError."""
    while True:
        answer, _ = asking.ask(ask)
        if not isinstance(answer, FoundPosition):
            raise ArchiveError(f"{asking.endpoint}: answer was {type(answer).__name__}, expected FoundPosition")
        if answer.position is not None:
            return answer.position, answer.is_end
