"""Ask archives for recorded blocks, one after the other until one answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from blackbox.archive.serve.fetch_progress import NO_END, Rows, RowsOfRanges, RowsOfRuns, Seen
from blackbox.archive.serve.protocol import (
    FRAMES_OF_BLOCK,
    MOST_PREFIXES,
    MOST_RANGES,
    About,
    AskAbout,
    AskBlocks,
    AskEnds,
    AskImage,
    Ends,
    Gone,
    Image,
    Noted,
    Piece,
    Range,
    Refusal,
    Snapshot,
    TellConsumer,
)
from blackbox.arguments import as_bytes
from blackbox.block.block import Block
from blackbox.block.position import Position, SlicePosition, split
from blackbox.errors import ArchiveError, BlackBoxError, ConfigError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.prefixes import common_prefix
from blackbox.subscribe.repair import Later, Missing, Since, awake_s, spread
from blackbox.transport.curve import keys_of_archive

log = logging.getLogger("blackbox")
_AnswerT = TypeVar("_AnswerT")

_LATER_S: Final = 0.001
"""Time until an archive is asked again for what it has not recorded yet; it doubles while nothing comes."""
_MOST_LATER_S: Final = 0.32
_MOST_WAIT_S: Final = 60.0
"""Seconds for which a connected archive that does not answer is asked again, each time with more patience."""
_MOST_ANSWER_S: Final = 32.0
_NOTICE_S: Final = 10.0
"""Least time between two warnings that archives do not answer."""
_NEXT_S: Final = 0.1
"""How long to wait for more from one archive before the next one is asked, where there are several."""
_MOST_BYTES: Final = 64 << 20
"""Bytes of blocks that may wait until other archives were asked for earlier ones."""

_NOWHERE: Final = (1 << 63, 0)
"""Behind all positions."""


class SliceImage(NamedTuple):
    """The newest message of each topic of a slice, or its books, as an archive has recorded them up to a position."""

    blocks: list[Block]
    """Of one key, run and schema each, run by run, with the sequence numbers that the messages have.

    What rests in books comes last; its messages have the numbers before the position, and stand for all of them."""
    epoch: int
    """The last run of the publisher; 0: nothing is recorded."""
    next_sequences: dict[bytes, int]
    """By key the number of what follows in that run; other keys begin with 0. Where the feed has no keys, of b""."""
    ts_out: int
    """When the last block of that run was sent, ns since 1970."""
    is_unsure: bool = False
    """Whether books may lack something: the archive has not all messages of that run, or could not keep them."""


class _NothingMoreError(ArchiveError):
    """An archive has answered, and has nothing more for now."""


class ArchiveClient:
    """Reads what the archives of a feed have. Any number of threads may ask: each answer has a socket of its own.

    Archives are asked in the order of the feed file, those that failed behind the others; when one does not answer, or
    refuses, the next one goes on from where it was: nothing comes twice.
    """

    def __init__(self, feed: Feed, *, timeout: float = 10.0) -> None:
        """`timeout`: how long to wait for one answer of one archive.

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
        self.came_s = 0.0
        """Time of the last block that came, by `awake_s`."""
        self._silent: dict[str, float] = {}
        """When archives began not to answer, by `awake_s`."""
        self._waited: dict[str, float] = {}
        """Seconds that connected archives were waited for since they last answered."""
        self._told_at = -_NOTICE_S
        self._kept: dict[str, Connection] | None = None
        """Connections that wait for the next question; None: each answer has one of its own."""

    @contextmanager
    def kept(self) -> Iterator[ArchiveClient]:
        """Yield a client for one thread, which keeps its connections until the block ends: it is answered sooner."""
        client = ArchiveClient(self.feed, timeout=self._timeout)
        client._kept = {}
        try:
            yield client
        finally:
            for asking in client._kept.values():
                asking.close()

    @contextmanager
    def _asking(
        self, endpoint: str, is_over: Callable[[], bool] | None = None, timeout: float = 0.0
    ) -> Iterator[Connection]:
        """Yield a connection to an archive of this feed; `timeout`: instead of the client's, if that is less.

        With `is_over` an archive that did not answer before is waited for longer.
        """
        began, timeout = awake_s(), max(timeout, self._timeout)
        if is_over is not None and self.may_answer([endpoint]):
            timeout = max(timeout, min(self._waited[endpoint], _MOST_ANSWER_S))
        asking = (self._kept or {}).pop(endpoint, None) or Connection(endpoint, timeout, self._keys[endpoint])
        asking.is_over, asking.heard, asking.timeout = is_over or _never, 0.0, timeout
        try:
            if not asking.is_known:
                self._check(asking.ask(AskAbout())[0], endpoint)
                asking.is_known = True
            yield asking
        except _NothingMoreError:
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
        """Keep a connection for the next question, if one may come."""
        self._silent.pop(asking.endpoint, None)
        self._waited.pop(asking.endpoint, None)
        if self._kept is None or asking.endpoint in self._kept:  # another question came while this one was answered
            asking.close()
        else:
            self._kept[asking.endpoint] = asking

    def _note_silence(self, asking: Connection, error: ArchiveError) -> None:
        """Note that an archive did not answer in time; warn where it is connected, as it is asked again."""
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
        """Return True if an archive missed its deadline, is connected, and was waited for under a minute.

        `endpoints`: of these; default: of all.
        """
        asked = self.feed.archives if endpoints is None else endpoints
        return any(self._waited.get(each, _MOST_WAIT_S) < _MOST_WAIT_S for each in asked)

    def about(self, day: str | None = None, timeout: float = 0.0, back: Mapping[int, int] | None = None) -> About:
        """Return what the first archive that answers holds; `day`: the one to tell more of, default the last.

        `back`: by slice, how many of its last messages that day to tell the time of, as `back_ns`. `timeout`: for how
        many seconds to ask again when none answers. Raises ArchiveError saying of each archive why it gave no answer.
        """
        ask = AskAbout(day, dict(back or {}))
        until = time.monotonic() + timeout
        return self._first_answer(until, lambda asking: self._check(asking.ask(ask)[0], asking.endpoint))

    def _first_answer(self, until: float, ask: Callable[[Connection], _AnswerT]) -> _AnswerT:
        """Return what the first archive answers; ask all again until a time. Raises ArchiveError saying why of each.

        Each time an answer is waited for twice as long: those of a busy host may take longer than most.
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

        Topics whose newest message has no value are left out. `blocks` with the image's position as `start` goes on
        behind it. The first image after an archive has started takes as long as it takes to read all that it keeps.

        Args:
            slice_id: the slice.
            prefixes: 256 at most.
            of: "books": what rests in the order books of the last run, in place of the messages that change them.
            timeout: how long to ask archives, all of them together.
            may_narrow: leave out topics that our key has no right to; else a prefix that holds some is an error.

        Raises ArchiveError saying of each archive why it gave no image.
        """
        self._check_slice(slice_id)
        if not 0 < len(prefixes) <= MOST_PREFIXES:
            raise ConfigError(f"prefixes of an image were {len(prefixes)}, expected 1 to {MOST_PREFIXES}")
        ask = AskImage(slice_id=slice_id, of=of, prefixes=sorted(prefixes), may_narrow=may_narrow)
        until = time.monotonic() + timeout
        return self._first_answer(until, lambda asking: self._image(asking, ask, until))

    def _image(self, asking: Connection, ask: AskImage, until: float) -> SliceImage:
        """Return the image of one archive; raise ArchiveError when it is not whole in time."""
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
        """Return an image whose blocks are all before its position; warn where its archive could not read all."""
        for block in blocks:
            behind = (block.epoch, block.number_of(-1)) >= (answer.epoch, answer.next_sequences.get(block.key, 0))
            if behind or (block.slice_id, block.key_bytes) != (slice_id, self.feed.key_bytes):
                raise ArchiveError(f"{endpoint}: image of slice {slice_id} held {block!r}, which cannot be in it")
        if len(blocks) != answer.blocks:
            raise ArchiveError(f"{endpoint}: image had {len(blocks)} blocks, expected {answer.blocks}")
        if answer.unreadable:
            log.warning("%s: %d places of its files could not be read for an image", endpoint, answer.unreadable)
        return SliceImage(blocks, answer.epoch, answer.next_sequences, answer.ts_out, answer.is_unsure)

    def blocks(
        self,
        slice_id: int,
        prefix: str | bytes = b"",
        *,
        key: bytes | None = None,
        start: tuple[int, int] | None = None,
        stop: tuple[int, int] | None = None,
        start_ns: int | None = None,
        stop_ns: int | None = None,
        timeout: float = 10.0,
    ) -> Iterator[Fetched | Gone]:
        """Yield the recorded blocks of a slice, in their order, and in their place what is missing.

        While the recording is still being written this waits for more, until `stop`, `stop_ns`, or its recorder's end.
        Its end comes to those who wait then; who asks later hears of it from another archive, or from none.

        Args:
            slice_id: the slice.
            prefix: blocks with a topic that begins with this; they come whole, with the other topics in them.
            key: blocks of this key alone; b"" when the feed's `key_bytes` is 0.
            start: (epoch, sequence): the first message wanted, and then all that follow, in this epoch and later ones.
                Needs a key. What the archive lacks of them is told as Gone, with its numbers.
            stop: (epoch, sequence): the end, not wanted itself. Needs a key.
            start_ns: blocks that were received at this time or later, ns since 1970.
            stop_ns: the end: before the first block that was received at this time or later.
            timeout: how long to wait for more of a recording that is still being written.

        Raises ArchiveError when no archive answers, or nothing more comes in time.
        """
        ask = AskBlocks(
            slice_id=slice_id,
            prefix=as_bytes("prefix", prefix),
            key=key,
            start=None if start is None else Position(*start),
            stop=None if stop is None else Position(*stop),
            start_ns=start_ns,
            stop_ns=stop_ns,
        )
        if key is None and (start is not None or stop is not None):
            raise ConfigError("start or stop was a position without a key, expected the key that it counts")
        self._check_slice(slice_id)
        return (found for found in self._blocks(Rows(ask), timeout) if not isinstance(found, Later))

    def ranges(
        self, slice_id: int, ranges: Iterable[Range | tuple[bytes, int, int, int]], *, timeout: float = 10.0
    ) -> Iterator[Fetched | Gone]:
        """Yield the recorded blocks that hold some of many ranges of messages, asking for up to 1,024 ranges at once.

        What one archive lacks is asked of the next one; what none of those that answer has comes at the end, as Gone.
        A block comes once, with its rows from the first to the last that was asked for. A range is answered once a
        block behind it is recorded.

        Args:
            slice_id: the slice.
            ranges: (key, epoch, first, stop) of each: sequence numbers from `first` to before `stop`.
            timeout: how long to wait for more of a recording that is still being written.

        Raises ArchiveError when no archive answers, or nothing more comes in time.
        """
        self._check_slice(slice_id)
        wanted = [each if isinstance(each, Range) else Range(*each) for each in ranges]
        wanted.sort(key=lambda each: (each.epoch, each.first))
        parts = (wanted[start : start + MOST_RANGES] for start in range(0, len(wanted), MOST_RANGES))
        answers = (self._blocks(RowsOfRanges(slice_id, part), timeout) for part in parts)
        return (found for answer in answers for found in answer if not isinstance(found, Later))

    def tell(self, name: str, positions: Mapping[int, SlicePosition], secret: bytes = b"") -> None:
        """Report the positions of a named consumer to all archives: they keep what it still needs, within their bounds.

        `secret`: 32 bytes by which archives know the owner of the name; it need not be given where the feed has keys.
        Raises ArchiveError naming the archives that have not noted it.
        """
        slices, keys = split(dict(positions))
        keys = {n: each._replace(next_sequences={}, prefixes=[]) for n, each in keys.items()}
        told = TellConsumer(name=name, secret=secret, slices=slices, keys=keys)
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
        """Return whether an archive answers now, or is connected and may answer later."""
        try:
            self.about()
        except BlackBoxError:
            return self.may_answer()
        return True

    def missing(
        self,
        slice_id: int,
        asked: Iterable[Missing],
        wait_s: float,
        is_over: Callable[[], bool],
        without: str = "",
        patience_s: float | None = None,
    ) -> Iterator[Block | Missing]:
        """Ask each archive once for numbers that a subscriber misses, up to 1,024 ranges of them.

        Yields the recorded blocks that hold some, of each key in order. What one archive lacks is asked of the next
        one; what may still come follows as Missing: an archive has not answered, or not recorded it yet. An archive
        that has been silent for `wait_s` is not waited for. All are asked but the one to leave out, `without`. Each may
        take `patience_s` to record more; None: as long as for one answer.
        Raises ArchiveError when none answers.
        """
        ranges = [Range(*each) for each in asked]
        rows, waiting, size = RowsOfRanges(slice_id, ranges), list[Block](), 0
        endpoints = [each for each in self._order if each != without]
        patience_s = self._timeout if patience_s is None else patience_s
        for found in self._of_each(endpoints, rows, patience_s, wait_s, is_over):
            waiting.append(found.block)
            size += found.block.body.nbytes
            if len(endpoints) == 1 or size > _MOST_BYTES:
                yield from waiting
                waiting, size = [], 0
        yield from _in_order(waiting, ranges, rows.left if rows.may_come else [])

    def times_of(
        self, slice_id: int, asked: Iterable[Missing], wait_s: float, is_over: Callable[[], bool]
    ) -> dict[bytes, int]:
        """Ask each archive once for one number of each key, up to 1,024 of them; do not wait for what is not recorded.

        Return by key when it was received, ns since 1970; 0: it is gone. What may still come is left out, as `missing`
        has it. Raises ArchiveError when none answers.
        """
        rows, times = RowsOfRanges(slice_id, [Range(*each) for each in asked]), dict[bytes, int]()
        for found in self._of_each(self._order, rows, 0.0, wait_s, is_over):
            times[found.block.key] = found.ts_recv
        return times if rows.may_come else dict.fromkeys((each.key for each in rows.left), 0) | times

    def _of_each(
        self,
        endpoints: Sequence[str],
        rows: RowsOfRanges,
        patience_s: float,
        wait_s: float,
        is_over: Callable[[], bool],
    ) -> Iterator[Fetched]:
        """Yield what each archive in turn has of what the others lack; `rows` then says whether more may come.

        Raises ArchiveError when none answers.
        """
        failures = list[str]()
        for endpoint in endpoints:
            try:
                for found in self._at(endpoint, rows, patience_s, is_over):
                    if isinstance(found, Fetched):
                        self.came_s = awake_s()
                        yield found
            except _NothingMoreError:
                rows.may_come = True
            except ArchiveError as error:
                failures.append(str(error))
                self._put_last(endpoint)
                rows.may_come |= awake_s() - self._silent[endpoint] < wait_s or self.may_answer([endpoint])
            if not rows.left:
                break
        if len(failures) == len(endpoints):
            raise self._none(failures)

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
        """Yield the recorded blocks of a slice of keys that begin with some prefixes, of each key in order.

        And what is known to be missing between them, and Later whenever there are no more for now.

        Until `is_over`. When one archive has no more the next one goes on. Raises ArchiveError when for `patience_s`
        none answers.
        """
        rows = self._beginning(slice_id, since, prefixes)
        wanted = {key: sequence for key, sequence in since.next_sequences.items() if rows.wants(key)}
        seen = Seen(since._replace(next_sequences=wanted), bool(self.feed.key_bytes))
        heard, failures = awake_s(), list[str]()
        while not is_over():
            has_more, has_ended = False, True
            for endpoint in self._order:
                try:
                    for found in self._at(endpoint, rows, wait_s, is_over):
                        has_more |= isinstance(found, Fetched)
                        for stop in seen.runs_before(found):
                            yield from self._rest_of_runs(rows, seen, stop, wait_s, is_over, endpoint)
                        yield from self._with_lacking(rows, found, seen, wait_s, is_over, endpoint)
                        if is_over():
                            return
                        heard = awake_s()  # after other archives were asked
                    heard = awake_s()
                except _NothingMoreError:
                    has_ended = False
                except ArchiveError as error:
                    has_ended = False
                    failures.append(str(error))
                    self._put_last(endpoint)
                    if awake_s() - heard > patience_s and not self.may_answer():
                        raise self._none(failures[-len(self._order) :]) from error
                if is_over():
                    return
            if not has_more:
                told = self._ends(rows, seen.untold_at_end(has_ended), wait_s, is_over)
                yield from self._of_others(slice_id, seen.lacking_at_end(told), wait_s, is_over, "")
                time.sleep(spread(_MOST_LATER_S))

    def _beginning(self, slice_id: int, since: Since, prefixes: Collection[bytes]) -> Rows:
        """Return what is wanted of archives from a beginning on."""
        start_ns = None if since.epoch and not since.start_ns else since.start_ns
        following = {key: Position(since.epoch, sequence) for key, sequence in since.next_sequences.items()}
        if self.feed.key_bytes:
            # What the key may not have was not put in force either, and told.
            ask = AskBlocks(
                slice_id=slice_id,
                prefix=common_prefix(prefixes),
                may_narrow=True,
                epoch=since.epoch,
                sent_ns=since.done_ns,
                start_ns=start_ns,
            )
        else:
            ask = AskBlocks(slice_id=slice_id, key=b"", start=following.get(b""), start_ns=start_ns)
        return Rows(ask, following=following, prefixes=prefixes)

    def _rest_of_runs(
        self, rows: Rows, seen: Seen, stop: int, wait_s: float, is_over: Callable[[], bool], endpoint: str
    ) -> Iterator[Block | Missing | Later]:
        """Yield what other archives have of runs before `stop`, whose end one has shown: it may lack all of a key."""
        for other in [each for each in self._order if each != endpoint]:
            rest = RowsOfRuns(rows, seen, stop)
            for _ in self._attempts([other], wait_s, is_over):
                with suppress(ArchiveError):
                    for found in self._at(other, rest, wait_s, is_over):
                        if not isinstance(found, Later):
                            yield from self._with_lacking(rows, found, seen, wait_s, is_over, other)
                    break

    def _attempts(self, endpoints: Sequence[str], wait_s: float, is_over: Callable[[], bool]) -> Iterator[None]:
        """Yield whenever archives may be asked once more, until `wait_s` is over, or all have been silent so long."""
        until, pause_s = awake_s() + wait_s, _LATER_S
        while endpoints and not is_over():
            yield
            now = awake_s()
            is_late = now > until or all(now - self._silent.get(each, now) >= wait_s for each in endpoints)
            if is_late and not self.may_answer(endpoints):
                return
            time.sleep(spread(pause_s))
            pause_s = min(2 * pause_s, _MOST_LATER_S)

    def _ends(
        self, rows: Rows, runs: tuple[int, int] | None, wait_s: float, is_over: Callable[[], bool]
    ) -> dict[int, dict[bytes, int]]:
        """Return how far runs had come, as far as any archive has heard: by run and key the next number told."""
        told: dict[int, dict[bytes, int]] = {}
        if runs is None:
            return told
        asked = AskEnds(slice_id=rows.ask.slice_id, first=runs[0], stop=runs[1], prefix=rows.ask.prefix)
        for endpoint in self._order:
            for _ in self._attempts([endpoint], wait_s, is_over):
                with suppress(ArchiveError), self._asking(endpoint, is_over) as asking:
                    for epoch, key, following in filter(rows.wants_end, _all_ends(asking, asked)):
                        of_run = told.setdefault(epoch, {})
                        of_run[key] = max(following, of_run.get(key, 0))
                    break
        return told

    def _with_lacking(
        self,
        rows: Rows,
        found: Fetched | Gone | Later,
        seen: Seen,
        wait_s: float,
        is_over: Callable[[], bool],
        endpoint: str,
    ) -> Iterator[Block | Missing | Later]:
        """Yield what an archive has brought, and before that what it lacks there, of other archives or as Missing."""
        if seen.is_wanted(found):
            told = self._ends(rows, seen.untold(found), wait_s, is_over)
            lacks = seen.lacking(found, told)
            if any(lacks):
                yield from self._of_others(rows.ask.slice_id, lacks, wait_s, is_over, seen.without(endpoint))
                if is_over():
                    return  # not all may have been asked: what was found would show them to lack what is before it
            if not isinstance(found, Gone):
                yield found.block if isinstance(found, Fetched) else found

    def _of_others(
        self, slice_id: int, lacks: list[list[Missing]], wait_s: float, is_over: Callable[[], bool], endpoint: str
    ) -> Iterator[Block | Missing]:
        """Yield, run by run, what other archives have of what one lacks, then all of that as Missing: it is closed."""
        for some in (each[at : at + MOST_RANGES] for each in lacks for at in range(0, len(each), MOST_RANGES)):
            yield from self._at_others(slice_id, some, wait_s, is_over, endpoint)
            if is_over():
                return
            yield from (each for each in some if each.stop != NO_END)

    def _at_others(
        self, slice_id: int, left: Sequence[Missing], wait_s: float, is_over: Callable[[], bool], endpoint: str
    ) -> Iterator[Block]:
        """Yield what other archives have of what one lacks; what is not recorded yet they are asked again."""
        others = [each for each in self._order if each != endpoint]
        for _ in self._attempts(others, wait_s, is_over):
            with suppress(ArchiveError):
                found = list(self.missing(slice_id, left, wait_s, is_over, endpoint))
                yield from (each for each in found if isinstance(each, Block))
                left = [each for each in found if isinstance(each, Missing)]
            if not left:
                return

    def _at(
        self, endpoint: str, rows: Rows | RowsOfRanges | RowsOfRuns, wait_s: float, is_over: Callable[[], bool]
    ) -> Iterator[Fetched | Gone | Later]:
        """Yield what one archive has. Raises ArchiveError; _NothingMoreError when there is no more for `wait_s`.

        If there are others, they are asked sooner.
        """
        patience_s = wait_s if len(self.feed.archives) == 1 else min(_NEXT_S, wait_s)
        while True:
            try:
                with self._asking(endpoint, is_over) as asking:
                    yield from self._from(asking, rows, patience_s)
            except StaleError:
                rows.forget(endpoint)
                continue
            return

    def _blocks(
        self, rows: Rows | RowsOfRanges, timeout: float, is_over: Callable[[], bool] | None = None
    ) -> Iterator[Fetched | Gone | Later]:
        failures: list[str] = []
        lacking: list[Gone] | None = None
        endpoints = list(self._order)
        while endpoints:
            try:
                with self._asking(endpoints[0], is_over) as asking:
                    yield from self._from(asking, rows, timeout)
                if not (lacking := rows.lacking()):
                    return
                del endpoints[0]
            except StaleError:
                rows.forget(endpoints[0])
                continue
            except ArchiveError as error:
                self._put_last(endpoints[0])
                failures.append(str(error))
                del endpoints[0]
        if lacking is None:
            raise self._none(failures)
        yield from lacking

    def _put_last(self, endpoint: str) -> None:
        """Ask others before an archive that has failed."""
        self._order = (*(each for each in self._order if each != endpoint), endpoint)

    def _from(
        self, asking: Connection, rows: Rows | RowsOfRanges | RowsOfRuns, timeout: float
    ) -> Iterator[Fetched | Gone | Later]:
        """Yield what one archive has, from where the one before ended."""
        ask, heard, came, pause_s = rows.begin(asking.endpoint), awake_s(), 0.0, _LATER_S
        asking.send(ask)
        while True:
            answer, frames = asking.answer()
            if isinstance(answer, Refusal) and ask.cursor is not None:
                raise StaleError
            if not isinstance(answer, Piece) or len(frames) != FRAMES_OF_BLOCK * len(answer.blocks):
                raise ArchiveError(f"{asking.endpoint}: answer was no piece of blocks, or lacked some of them")
            ask = msgspec.structs.replace(ask, cursor=answer.cursor, start=answer.start, ranges=answer.ranges)
            if answer.state == "more":
                asking.send(ask)  # the archive reads on while this is taken
            for found in in_place(asking.endpoint, answer, frames):
                if (wanted := rows.take(found)) is not None:
                    yield wanted
            rows.note(asking.endpoint, answer.cursor)
            if answer.blocks or answer.state == "more":
                heard = came = awake_s()
                pause_s = _LATER_S
            if answer.state == "done" or rows.is_over(answer.epoch):
                yield Later(0, came)
                return
            if answer.state == "more":
                continue
            if not answer.blocks:
                if awake_s() - heard > timeout:
                    raise _NothingMoreError(
                        f"{asking.endpoint}: nothing more was recorded within {timeout:g} s, and no end"
                    )
                yield Later(answer.epoch, came)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_LATER_S)
            asking.send(ask)

    def _check_slice(self, slice_id: int) -> None:
        if not 0 <= slice_id < len(self.feed.slices):
            raise ConfigError(f"slice was {slice_id}, expected 0 to {len(self.feed.slices) - 1}")

    def _check(self, about: object, endpoint: str) -> About:
        if not isinstance(about, About) or (about.feed, about.key_bytes) != (self.feed.name, self.feed.key_bytes):
            what = f"feed {about.feed!r}, key_bytes {about.key_bytes}" if isinstance(about, About) else repr(about)
            raise ArchiveError(
                f"{endpoint}: archive was of {what}, expected feed {self.feed.name!r}, key_bytes {self.feed.key_bytes}"
            )
        return about

    def _none(self, failures: list[str]) -> ArchiveError:
        return ArchiveError(f"no archive of feed {self.feed.name!r} answered: {'; '.join(failures)}")


def _never() -> bool:
    return False


def _all_ends(asking: Connection, ask: AskEnds) -> Iterator[tuple[int, bytes, int]]:
    """Yield all that an archive tells of the ends of runs. Raises ArchiveError."""
    while True:
        answer, _ = asking.ask(ask)
        if not isinstance(answer, Ends):
            raise ArchiveError(f"{asking.endpoint}: answer was {type(answer).__name__}, expected Ends")
        yield from answer.ends
        if not answer.has_more or not answer.ends:
            return
        ask = msgspec.structs.replace(ask, behind=answer.ends[-1][:2])


def _in_order(blocks: list[Block], asked: list[Range], left: list[Range]) -> Iterator[Block | Missing]:
    """Yield the blocks before what may still come, in order, and as Missing the rest of what was asked for."""
    firsts: dict[bytes, tuple[int, int]] = {}
    for each in left:
        firsts[each.key] = min((each.epoch, each.first), firsts.get(each.key, _NOWHERE))
    for block in sorted(blocks, key=lambda block: (block.epoch, block.sequence)):
        if (block.epoch, block.sequence) < firsts.get(block.key, _NOWHERE):
            yield block
    for each in asked:
        epoch, first = firsts.get(each.key, _NOWHERE)
        if (each.epoch, each.stop) > (epoch, first):
            yield Missing(each.key, each.epoch, max(each.first, first * (each.epoch == epoch)), each.stop)
