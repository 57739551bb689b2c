"""Request recorded blocks from archives, in turn, until one answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from blackbox.archive.serve.connection import (
    Connection,
    Fetched,
    SilentArchiveError,
    StaleError,
    block_of,
    in_place,
)
from blackbox.archive.serve.cursor import CLOSED, MAY_COME, NO_END, Cursor, Lack
from blackbox.archive.serve.protocol import (
    BEGINNING_NS,
    FRAMES_OF_BLOCK,
    MOST_PREFIXES,
    About,
    AskAbout,
    AskBlocks,
    AskImage,
    AskPosition,
    EndOfEpoch,
    FoundPosition,
    Gone,
    Image,
    Noted,
    Piece,
    Refusal,
    Snapshot,
    TellConsumer,
)
from blackbox.block.form.block import Block
from blackbox.block.position import End, Position
from blackbox.errors import ArchiveError, BlackBoxError, ConfigError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.routing.key_rule import rule_text
from blackbox.feed.routing.prefixes import Prefixes, common_prefix, covering
from blackbox.native.system.awake_clock import awake_s, spread
from blackbox.receive.slices.catching_up import Gone as GoneTo
from blackbox.receive.slices.catching_up import Passed, Told, Wanted
from blackbox.transport.security.curve import keys_of_archive

log = logging.getLogger("blackbox")
_AnswerT = TypeVar("_AnswerT")

_LATER_S: Final = 0.001
"""First pause before archives are asked again for messages that they have not recorded yet; it doubles. Unit: s."""
_MOST_LATER_S: Final = 0.32
_MOST_WAIT_S: Final = 60.0
"""Time for which a connected archive that does not answer is asked again, with growing timeouts. Unit: s."""
_MOST_ANSWER_S: Final = 32.0
_NOTICE_S: Final = 10.0
"""Minimum time between two warnings about archives that do not answer. Unit: s."""


class SliceImage(NamedTuple):
    """Newest message of each topic of a slice, or its order books, as recorded up to a position."""

    blocks: list[Block]
    """Blocks of one key, epoch and schema each, epoch by epoch, with the sequences of their messages.

    Resting orders of books come last. Their messages have the last sequences before the position."""
    position: Position
    """Position after the image; epoch 0: nothing is recorded."""
    ts_out: int
    """Send time of the last block of that epoch, ns since 1970."""
    is_unsure: bool = False
    """True if books may lack orders: the archive lacks messages of that epoch, or could not keep them."""


class _Waits:
    """Times and failures while archives are read, by `awake_s`."""

    def __init__(self, at: Position) -> None:
        self.at = at
        """Position at the last `look`."""
        self.moved = self.heard = awake_s()
        """Times of the last change of position and of the last answer."""
        self.failed: dict[str, tuple[float, str]] = {}
        """Time and reason of each failure, by endpoint."""
        self._pause_s = _LATER_S

    def look(self, at: Position) -> float:
        """Note the position. Return the current time."""
        now = awake_s()
        if at != self.at:
            self.at, self.moved, self._pause_s = at, now, _LATER_S
        return now

    def pause(self, retry_s: float) -> None:
        """Sleep, twice as long each time until the position changes. Forget failures after `retry_s`."""
        now = awake_s()
        time.sleep(spread(self._pause_s))
        self._pause_s = min(2 * self._pause_s, _MOST_LATER_S)
        self.failed = {each: late for each, late in self.failed.items() if now - late[0] < retry_s}


class ArchiveClient:
    """Reads the archives of a feed. Thread-safe: each request has its own socket.

    Archives are asked in the order of the feed file, but those that failed come last. If one does not answer or
    refuses, the next one continues from the same position, so no message is returned twice.
    """

    def __init__(self, feed: Feed, *, timeout: float = 10.0) -> None:
        """`timeout`: time to wait for one answer of one archive.

        Raises ConfigError if the feed has no archive, or a key of `[security]` is missing or malformed.
        """
        check_is_feed(feed)
        if not feed.archives:
            raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
        if not timeout > 0:
            raise ValueError(f"timeout was {timeout}, expected more than 0 s")
        self.feed = feed
        self._timeout = timeout
        self._keys = {endpoint: keys_of_archive(feed, endpoint) for endpoint in feed.archives}
        self._order = feed.archives
        self._silent: dict[str, float] = {}
        """Time since which each archive has not answered, by `awake_s`."""
        self._waited: dict[str, float] = {}
        """Seconds spent waiting for each connected archive since its last answer."""
        self._told_at = -_NOTICE_S
        self._kept: dict[str, Connection] | None = None
        """Idle connections; None: each request opens its own."""

    @contextmanager
    def kept(self) -> Iterator[ArchiveClient]:
        """Yield a client for one thread that keeps its connections open until the block ends, for faster answers."""
        client = ArchiveClient(self.feed, timeout=self._timeout)
        client._kept = {}
        try:
            yield client
        finally:
            for asking in client._kept.values():
                asking.close()

    @contextmanager
    def _asking(
        self,
        endpoint: str,
        is_over: Callable[[], bool] | None = None,
        timeout: float = 0.0,
        *,
        is_hasty: bool = False,
    ) -> Iterator[Connection]:
        """Yield a connection to an archive of this feed; `timeout` applies if it is longer than the client's.

        With `is_over`, an archive that did not answer before gets a longer timeout. `is_hasty`: see `Connection`.
        """
        began, timeout = awake_s(), max(timeout, self._timeout)
        if is_over is not None and self.may_answer([endpoint]):
            timeout = max(timeout, min(self._waited[endpoint], _MOST_ANSWER_S))
        asking = (self._kept or {}).pop(endpoint, None) or Connection(endpoint, timeout, self._keys[endpoint])
        asking.is_over, asking.heard, asking.timeout, asking.is_hasty = is_over or _never, 0.0, timeout, is_hasty
        try:
            if not asking.is_known:
                self._check(asking.ask(AskAbout())[0], endpoint)
                asking.is_known = True
            yield asking
        except GeneratorExit:  # its late answer must not be taken for that to the next request
            self._keep(asking)
            raise
        except BaseException as error:
            try:
                if isinstance(error, ArchiveError):
                    self._silent[endpoint] = asking.heard or self._silent.get(endpoint, began)
                    self._note_silence(asking, error)
            finally:
                asking.close()
            raise
        self._keep(asking)

    def _keep(self, asking: Connection) -> None:
        """Keep a connection for the next request, or close it."""
        self._silent.pop(asking.endpoint, None)
        self._waited.pop(asking.endpoint, None)
        if self._kept is None or asking.endpoint in self._kept:  # a nested request has kept its own connection
            asking.close()
        else:
            self._kept[asking.endpoint] = asking

    def _note_silence(self, asking: Connection, error: ArchiveError) -> None:
        """Note that an archive did not answer in time. Warn if it is connected, because it is asked again."""
        if asking.is_over():
            return
        if not isinstance(error, SilentArchiveError) or not asking.is_connected():
            self._waited.pop(asking.endpoint, None)
            return
        before_s = 0.0 if asking.heard else self._waited.get(asking.endpoint, 0.0)
        self._waited[asking.endpoint] = before_s + asking.timeout
        if time.monotonic() - self._told_at >= _NOTICE_S:
            self._told_at = time.monotonic()
            log.warning(
                "%s but is connected: it is asked again, for up to %g s, with more patience", error, _MOST_WAIT_S
            )

    def may_answer(self, endpoints: Collection[str] | None = None) -> bool:
        """Return True if an archive missed its deadline but is connected and was waited for less than a minute.

        `endpoints`: archives to check; default: all.
        """
        asked = self.feed.archives if endpoints is None else endpoints
        return any(self._waited.get(each, _MOST_WAIT_S) < _MOST_WAIT_S for each in asked)

    def about(self, day: str | None = None, timeout: float = 0.0) -> About:
        """Return the contents of the first archive that answers, in detail for `day`; default: the last day.

        `timeout`: time in s to retry while no archive answers. Raises ArchiveError with the failure of each archive.
        """
        ask = AskAbout(day)
        until = time.monotonic() + timeout
        return self._first_answer(until, lambda asking: self._check(asking.ask(ask)[0], asking.endpoint))

    def _first_answer(self, until: float, ask: Callable[[Connection], _AnswerT]) -> _AnswerT:
        """Return the answer of the first archive that gives one. Ask all again until a time.

        Each attempt doubles the timeout, for busy hosts. Raises ArchiveError with the failure of each archive.
        """
        patience_s = self._timeout
        while True:
            failures: list[str] = []
            for endpoint in self._order:
                try:
                    with self._asking(endpoint, timeout=min(patience_s, until - time.monotonic())) as asking:
                        return ask(asking)
                except ArchiveError as error:
                    self._put_last(endpoint)
                    failures.append(str(error))
            if time.monotonic() >= until:
                raise self._none(failures)
            patience_s *= 2
            time.sleep(spread(_MOST_LATER_S))

    def image(
        self,
        slice_id: int,
        prefixes: Collection[bytes] = (b"",),
        *,
        of: Snapshot = "latest",
        timeout: float = 10.0,
        may_narrow: bool = False,
    ) -> SliceImage:
        """Return the newest message of each topic that begins with a prefix, from the first archive that answers.

        Topics whose newest message has no value are left out. To continue after the image, call `blocks` with its
        position as `start`. For its first image, an archive reads all of its days, which takes longer.

        Args:
            slice_id: the slice.
            prefixes: 256 at most.
            of: "books": resting orders of the last epoch instead of the messages that change order books.
            timeout: time for all archives together.
            may_narrow: leave out topics that our key has no right to; otherwise a prefix with such topics is an error.

        Raises ArchiveError with the failure of each archive.
        """
        self._check_slice(slice_id)
        if not 0 < len(prefixes) <= MOST_PREFIXES:
            raise ConfigError(f"prefixes of an image were {len(prefixes)}, expected 1 to {MOST_PREFIXES}")
        ask = AskImage(slice_id=slice_id, of=of, prefixes=tuple(sorted(prefixes)), may_narrow=may_narrow)
        until = time.monotonic() + timeout
        return self._first_answer(until, lambda asking: self._image(asking, ask, until))

    def _image(self, asking: Connection, ask: AskImage, until: float) -> SliceImage:
        """Return the image of one archive. Raises ArchiveError if it is not complete in time."""
        blocks, first = list[Block](), ask
        while True:
            answer, frames = asking.ask(ask)
            if isinstance(answer, Refusal):  # the image was made too long ago
                blocks, ask = [], first
            elif not isinstance(answer, Image) or len(frames) % FRAMES_OF_BLOCK:
                raise ArchiveError(f"{asking.endpoint}: answer was no image, or lacked a part of a block")
            else:
                blocks += (block_of(asking.endpoint, frames, n) for n in range(len(frames) // FRAMES_OF_BLOCK))
                ask = msgspec.structs.replace(first, image=answer.image, first=len(blocks))
                if answer.image and len(blocks) >= answer.blocks:
                    return self._checked(asking.endpoint, ask.slice_id, answer, blocks)
            if time.monotonic() >= until:
                raise ArchiveError(f"{asking.endpoint}: the image of slice {ask.slice_id} was not whole in time")

    def _checked(self, endpoint: str, slice_id: int, answer: Image, blocks: list[Block]) -> SliceImage:
        """Return a checked image. Warn if the archive could not read all of its files.

        Raises ArchiveError if a block is not before the position.
        """
        for block in blocks:
            behind = (block.epoch, block.number_of(-1)) >= answer.position
            if behind or (block.slice_id, block.key_rule) != (slice_id, self.feed.key_rule & 0xFF):
                raise ArchiveError(f"{endpoint}: image of slice {slice_id} held {block!r}, which cannot be in it")
        if len(blocks) != answer.blocks:
            raise ArchiveError(f"{endpoint}: image had {len(blocks)} blocks, expected {answer.blocks}")
        if answer.unreadable:
            log.warning("%s: %d places of its files could not be read for an image", endpoint, answer.unreadable)
        return SliceImage(blocks, answer.position, answer.ts_out, answer.is_unsure)

    def blocks(
        self,
        slice_id: int,
        prefix: Prefixes = b"",
        *,
        start: tuple[int, int] | None = None,
        stop: tuple[int, int] | None = None,
        start_ns: int | None = None,
        stop_ns: int | None = None,
        timeout: float = 10.0,
    ) -> Iterator[Fetched | Gone]:
        """Yield the recorded blocks of a slice in order, with a `Gone` for each range that no archive has.

        While the recording is being written, wait for more until `stop`, `stop_ns`, or the recorder stops. A recorder
        that stops reports this only to readers that wait at that time.

        Args:
            slice_id: the slice.
            prefix: yield blocks that have a topic with this prefix, or one of these. Such a block is yielded whole.
            start: (epoch, sequence) of the first wanted message. Later epochs follow.
            stop: (epoch, sequence) after the last wanted message.
            start_ns: instead of `start`: start with the first block that any archive received at this time or later,
                ns since 1970. Default: with the first block.
            stop_ns: end before the first block received at this time or later, ns since 1970.
            timeout: time to wait for more while the recording is being written.

        Raises ArchiveError if no archive answers, or nothing more is recorded in time.
        """
        prefixes = covering(prefix)
        if len(prefixes) > MOST_PREFIXES:
            raise ConfigError(f"prefixes were {len(prefixes)}, expected at most {MOST_PREFIXES}")
        if start is not None and start_ns is not None:
            raise ConfigError(f"start was {start} and start_ns {start_ns}, expected one of them")
        self._check_slice(slice_id)
        begin = (BEGINNING_NS if start_ns is None else start_ns) if start is None else Position(*start)
        stop_at = None if stop is None else Position(*stop)
        return self._blocks(slice_id, begin, stop_at, stop_ns, prefixes, timeout)

    def _blocks(
        self,
        slice_id: int,
        start: Position | int,
        stop: Position | None,
        stop_ns: int | None,
        prefixes: tuple[bytes, ...],
        timeout: float,
    ) -> Iterator[Fetched | Gone]:
        with self.kept() as client:
            if not isinstance(start, Position):
                start = client._position_at(slice_id, start, None, 0.0)
            ask = AskBlocks(slice_id=slice_id, prefixes=prefixes, start=start, stop=stop, stop_ns=stop_ns)
            came = awake_s()
            for found in client._read(ask, 0.0, None, 0.0):
                if isinstance(found, Fetched | Gone):
                    yield found
                    came = awake_s()
                elif isinstance(found, Passed) and found.is_all and awake_s() - came > timeout:
                    raise ArchiveError(
                        f"slice {ask.slice_id}: nothing more was recorded within {timeout:g} s, "
                        "and its recorder has not stopped"
                    )

    def read(
        self,
        slice_id: int,
        start: Position | int,
        wanted: Wanted,
        wait_s: float,
        is_over: Callable[[], bool],
        *,
        patience_s: float,
    ) -> Iterator[Block | Passed | GoneTo | Told]:
        """Yield blocks of a slice in order from a position or time on, of wanted keys; see `Archives`.

        Messages that one archive lacks are requested from the others. Messages that all lack are waited for, up to
        `wait_s` after the last progress or after an archive stopped answering. End when `is_over`. Raises ArchiveError
        if no archive answers for `patience_s`.
        """
        if not isinstance(start, Position):
            start = self._position_at(slice_id, start, is_over, patience_s)
            yield Passed(start)
        keys = covering(wanted.keys)
        ask = AskBlocks(
            slice_id=slice_id,
            prefixes=keys if len(keys) <= MOST_PREFIXES else (common_prefix(keys),),
            of_keys=True,
            topics=tuple(sorted(wanted.topics)) if 0 < len(wanted.topics) <= MOST_PREFIXES else (b"",),
            # The publisher refuses topics without a right as well, and the subscriber reports them.
            may_narrow=True,
            start=start,
        )
        at = start
        for found in self._read(ask, wait_s, is_over, patience_s):
            if isinstance(found, Fetched):
                block = found.block
                first = Position(block.epoch, block.number_of(found.first_row))
                if keys == (b"",) and at.epoch == first.epoch and at < first:
                    yield Passed(first)  # what was dropped before it is not wanted
                at = Position(block.epoch, block.number_of(-1) + 1)
                if block.key.startswith(keys):
                    yield block
            elif isinstance(found, EndOfEpoch):
                ends = {key: End(*end) for key, end in found.ends.items() if key.startswith(keys)}
                yield Told(found.epoch, found.following, ends)
            elif isinstance(found, Passed):
                at = found.position
                yield found
            elif found.first < found.stop:
                at = Position(found.epoch, found.stop)
                yield GoneTo(at)

    def _position_at(
        self, slice_id: int, start_ns: int, is_over: Callable[[], bool] | None, patience_s: float
    ) -> Position:
        """Return the position of the first block that any archive received at a time or later; else the last end.

        An archive that does not answer in time is left out, with a warning. Raises ArchiveError if none answers for
        `patience_s`, or when `is_over`.
        """
        ask, began = AskPosition(slice_id=slice_id, start_ns=start_ns), awake_s()
        while True:
            found, ends, failures = list[Position](), list[Position](), list[str]()
            for endpoint in self._order:
                try:
                    with self._asking(endpoint, is_over) as asking:
                        position, is_end = _find(asking, ask)
                    (ends if is_end else found).append(position)
                except ArchiveError as error:
                    self._put_last(endpoint)
                    failures.append(str(error))
            is_ended = is_over is not None and is_over()
            if (found or ends) and not is_ended:
                for failure in failures:
                    log.warning("slice %d starts without the messages of an archive: %s", slice_id, failure)
                return min(found, default=max([*found, *ends]))
            if is_ended or (awake_s() - began >= patience_s and not (is_over and self.may_answer())):
                raise self._none(failures)
            time.sleep(spread(_MOST_LATER_S))

    def _read(
        self, ask: AskBlocks, wait_s: float, is_over: Callable[[], bool] | None, patience_s: float
    ) -> Iterator[Fetched | Gone | EndOfEpoch | Passed]:
        """Yield as `read`. Without `is_over`, end when the recorders of all archives that answer have stopped."""
        cursor, waits = Cursor(ask.start, ask.stop), _Waits(ask.start)
        while not cursor.is_done and not (is_over and is_over()):
            endpoint = next((e for e in self._order if e not in cursor.lacks and e not in waits.failed), None)
            if endpoint is not None:
                yield from self._try(endpoint, ask, cursor, waits, is_over)
                continue
            now = waits.look(cursor.at)
            if not cursor.lacks and now - waits.heard >= patience_s and not (is_over and self.may_answer()):
                raise self._none([why for _, why in waits.failed.values()])
            if is_over is None and (cursor.are_all_closed or (ask.stop_ns is not None and cursor.is_any_closed)):
                break
            may_answer = is_over is not None and any(
                now - self._silent.get(each, now) < wait_s or self.may_answer([each]) for each in waits.failed
            )
            has_waited = now - waits.moved >= wait_s and not may_answer
            if has_waited or not (may_answer or cursor.may_come):
                yield from cursor.pass_on()
            if cursor.at != waits.at:
                yield Passed(cursor.at)
                continue
            yield Passed(cursor.at, cursor.may_come or cursor.are_all_closed, has_waited)
            waits.pause(self._timeout)
            cursor.lacks.clear()
        if is_over is None and (rest := cursor.rest()) is not None:
            yield rest

    def _try(
        self, endpoint: str, ask: AskBlocks, cursor: Cursor, waits: _Waits, is_over: Callable[[], bool] | None
    ) -> Iterator[Fetched | Gone | Passed]:
        """Yield as `_at`, and note if the archive answered or failed."""
        try:
            yield from self._at(endpoint, ask, cursor, is_over)
            waits.heard = awake_s()
        except ArchiveError as error:
            waits.failed[endpoint] = awake_s(), str(error)
            waits.heard = max(waits.heard, self._silent.get(endpoint, waits.heard))
            self._put_last(endpoint)

    def _at(
        self, endpoint: str, ask: AskBlocks, cursor: Cursor, is_over: Callable[[], bool] | None
    ) -> Iterator[Fetched | Gone | Passed]:
        """Yield from one archive until it lacks the next message. Raises ArchiveError."""
        while endpoint not in cursor.lacks:
            try:
                with self._asking(endpoint, is_over) as asking:
                    yield from self._pieces(asking, ask, cursor)
            except StaleError:
                continue

    def _pieces(self, asking: Connection, ask: AskBlocks, cursor: Cursor) -> Iterator[Fetched | Gone | Passed]:
        endpoint = asking.endpoint
        ask = msgspec.structs.replace(ask, start=cursor.at, cursor=cursor.places.get(endpoint))
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
                if not isinstance(found, Gone):
                    yield from _pass_block(endpoint, found, cursor)
                    continue
                yield from self._pass_gone(endpoint, found, cursor)
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

    def _pass_gone(self, endpoint: str, gone: Gone, cursor: Cursor) -> Iterator[Gone | Passed]:
        """Pass messages that an archive lacks, as far as all other archives lack them too."""
        if gone.first == gone.stop:
            yield gone
        if cursor.go_to(before := Position(gone.epoch, gone.first)):
            yield Passed(before)
        while cursor.note_gone(endpoint, gone) and not cursor.may_come and len(cursor.lacks) == len(self.feed.archives):
            if (passed := cursor.pass_gone()) is not None:
                yield passed

    def tell(
        self, name: str, positions: Mapping[int, Position], secret: bytes = b"", prefixes: Sequence[bytes] = ()
    ) -> None:
        """Report the positions of a named consumer to all archives, which keep the days that it still needs.

        No positions: the consumer has ended. `prefixes`: of its topics; none: not known.

        `secret`: 32 bytes that prove ownership of the name; not needed if the feed has keys. Raises ArchiveError with
        the failure of each archive that did not store the positions.
        """
        wanted = tuple(prefixes) if len(prefixes) <= MOST_PREFIXES else (b"",)
        told = TellConsumer(name=name, secret=secret, slices=dict(positions), prefixes=wanted)
        failures: list[str] = []
        for endpoint in self._order:
            try:
                with self._asking(endpoint) as asking:
                    answer, _ = asking.ask(told)
                if not isinstance(answer, Noted):
                    raise ArchiveError(f"{endpoint}: answer was {type(answer).__name__}, expected Noted")
            except ArchiveError as error:
                failures.append(str(error))
        if failures:
            raise ArchiveError(f"consumer {name!r} was not noted: {'; '.join(failures)}")

    def answers(self) -> bool:
        """Return True if an archive answers now, or is connected and may answer later.

        An archive that takes no connection is not waited for.
        """
        for endpoint in self._order:
            with suppress(BlackBoxError), self._asking(endpoint, is_hasty=True) as asking:
                asking.ask(AskAbout())
                return True
            self._put_last(endpoint)
        return self.may_answer()

    def _put_last(self, endpoint: str) -> None:
        """Move an archive that failed to the end of the order."""
        self._order = (*(each for each in self._order if each != endpoint), endpoint)

    def _check_slice(self, slice_id: int) -> None:
        if not 0 <= slice_id < len(self.feed.slices):
            raise ConfigError(f"slice was {slice_id}, expected 0 to {len(self.feed.slices) - 1}")

    def _check(self, about: object, endpoint: str) -> About:
        if not isinstance(about, About) or (about.feed, about.key_rule) != (self.feed.name, self.feed.key_rule):
            what = f"feed {about.feed!r}, {rule_text(about.key_rule)}" if isinstance(about, About) else repr(about)
            ours = f"feed {self.feed.name!r}, {rule_text(self.feed.key_rule)}"
            raise ArchiveError(f"{endpoint}: archive was of {what}, expected {ours}")
        return about

    def _none(self, failures: list[str]) -> ArchiveError:
        return ArchiveError(f"no archive of feed {self.feed.name!r} answered: {'; '.join(failures)}")


def _pass_block(endpoint: str, found: Fetched, cursor: Cursor) -> Iterator[Fetched]:
    """Pass a block from an archive. Yield it with the range of wanted rows."""
    if found.block.epoch != cursor.at.epoch:
        raise ArchiveError(f"{endpoint}: {found.block!r} was not of epoch {cursor.at.epoch}")
    if (wanted := cursor.take(found)) is not None:
        yield wanted


def _find(asking: Connection, ask: AskPosition) -> tuple[Position, bool]:
    """Return the position that an archive finds, and True if that is the end of what it has. Raises ArchiveError."""
    while True:
        answer, _ = asking.ask(ask)
        if not isinstance(answer, FoundPosition):
            raise ArchiveError(f"{asking.endpoint}: answer was {type(answer).__name__}, expected FoundPosition")
        if answer.position is not None:
            return answer.position, answer.is_end


def _never() -> bool:
    return False
