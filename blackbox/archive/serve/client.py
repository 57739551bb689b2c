"""Ask archives for recorded blocks, one after the other until one answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec
import zmq

from blackbox.archive.serve.fetched import Fetched, WantedRanges, WantedRows
from blackbox.archive.serve.protocol import (
    ANSWERS,
    ENCODER,
    FRAMES_OF_BLOCK,
    MOST_RANGES,
    About,
    AskAbout,
    AskBlocks,
    Gone,
    Noted,
    Piece,
    Range,
    Refusal,
    TellConsumer,
)
from blackbox.block.block import Block
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, BlackBoxError, BlockError, ConfigError, EndpointError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.native.limits import Needs
from blackbox.subscribe.repair import Later, Missing, Since
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive

_LATER_S: Final = 0.001
"""Time until what is still being written is asked for again; it doubles while nothing comes."""
_MOST_LATER_S: Final = 0.32
_MOST_WAITS: Final = 10
"""So many times as long as it waits for more, who joins asks archives again of which none answers."""
_LOOK_S: Final = 0.05
"""Between two looks at whether it is over."""
_MOST_BYTES: Final = 64 << 20
_HEAD_FRAMES: Final = 2
_NEEDS: Final = Needs(descriptors=3)


class _StaleError(Exception):
    """The archive was started anew: begin again at it."""


class ArchiveClient:
    """Reads what the archives of a feed have. Any number of threads may ask: each answer has a socket of its own.

    Archives are asked in the order of the feed file, those that failed behind the others; when one does not answer, or
    refuses, the next one goes on from where it was: nothing comes twice.
    """

    def __init__(self, feed: Feed, *, timeout: float = 10.0) -> None:
        """`timeout`: how long to wait for one answer of one archive. Raises ConfigError if the feed has no archive."""
        check_is_feed(feed)
        if not feed.archives:
            raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
        if not timeout > 0:
            raise ValueError(f"timeout was {timeout}, expected more than 0 s")
        self.feed = feed
        self._timeout = timeout
        self._order = feed.archives
        self._kept: dict[str, _Asking] | None = None
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
    def _asking(self, endpoint: str, is_over: Callable[[], bool] = lambda: False) -> Iterator[_Asking]:
        """Yield a connection to an archive of this feed."""
        asking = (self._kept or {}).pop(endpoint, None) or _Asking(endpoint, self._timeout)
        asking.is_over = is_over
        try:
            if not asking.is_known:
                self._check(asking.ask(AskAbout())[0], endpoint)
                asking.is_known = True
            yield asking
        except BaseException:
            asking.close()
            raise
        if self._kept is None:
            asking.close()
        else:
            self._kept[endpoint] = asking

    def about(self, day: str | None = None) -> About:
        """Return what the first archive that answers holds; `day`: the one to tell more of, default the last.

        Raises ArchiveError saying of each archive why it gave no answer.
        """
        failures: list[str] = []
        for endpoint in self._order:
            try:
                with self._asking(endpoint) as asking:
                    return self._check(asking.ask(AskAbout(day))[0], endpoint)
            except ArchiveError as error:
                self._put_last(endpoint)
                failures.append(str(error))
        raise self._none(failures)

    def blocks(
        self,
        slice_id: int,
        prefix: bytes = b"",
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
            prefix=prefix,
            key=key,
            start=None if start is None else Position(*start),
            stop=None if stop is None else Position(*stop),
            start_ns=start_ns,
            stop_ns=stop_ns,
        )
        if key is None and (start is not None or stop is not None):
            raise ConfigError("start or stop was a position without a key, expected the key that it counts")
        self._check_slice(slice_id)
        return (found for found in self._blocks(WantedRows(ask), timeout) if not isinstance(found, Later))

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
        answers = (self._blocks(WantedRanges(slice_id, part), timeout) for part in parts)
        return (found for answer in answers for found in answer if not isinstance(found, Later))

    def tell(self, name: str, positions: Mapping[int, Position]) -> None:
        """Tell all archives how far a named consumer is: they keep what it still needs, within their bounds.

        Raises ArchiveError naming those that have not noted it.
        """
        failures: list[str] = []
        for endpoint in self._order:
            try:
                with self._asking(endpoint) as asking:
                    answer, _ = asking.ask(TellConsumer(name, dict(positions)))
                if not isinstance(answer, Noted):
                    raise ArchiveError(f"{endpoint}: answer was {type(answer).__name__}, expected Noted")
            except ArchiveError as error:
                failures.append(str(error))
        if failures:
            raise ArchiveError(f"consumer {name!r} was not noted: {'; '.join(failures)}")

    def answers(self) -> bool:
        """Return whether an archive answers now."""
        try:
            self.about()
        except BlackBoxError:
            return False
        return True

    def missing(self, slice_id: int, asked: Iterable[Missing], is_over: Callable[[], bool]) -> Iterator[Block]:
        """Yield the recorded blocks that hold some of the numbers that a subscriber misses, up to 1,024 ranges of them.

        What one archive lacks is asked of the next one. They are asked again and again until one has answered. Raises
        ArchiveError once `is_over`.
        """
        rows = WantedRanges(slice_id, [Range(*each) for each in asked])
        waiting, size = list[Block](), 0
        while True:
            try:
                for found in self._blocks(rows, self._timeout, is_over):
                    if isinstance(found, Fetched):
                        waiting.append(found.block)
                        size += found.block.body.nbytes
                    if len(self.feed.archives) == 1 or size > _MOST_BYTES:
                        yield from waiting
                        waiting, size = [], 0
                yield from sorted(waiting, key=lambda block: (block.epoch, block.sequence))
                return
            except ArchiveError:
                if is_over():
                    raise
                time.sleep(_LATER_S)

    def since(
        self, slice_id: int, since: Since, wait_s: float, is_over: Callable[[], bool]
    ) -> Iterator[Block | Missing | Later]:
        """Yield the recorded blocks of a slice of a feed without keys, and what is known to be missing between them.

        And Later whenever there are no more for now.

        Until `is_over`. After `wait_s` without more it goes on at the next archive. Raises ArchiveError when for ten
        times as long none answers.
        """
        ask = AskBlocks(
            slice_id=slice_id,
            key=b"",
            start=Position(since.epoch, since.sequence) if since.epoch else None,
            start_ns=None if since.epoch else since.start_ns,
        )
        rows, heard = WantedRows(ask, tells_later=True), time.monotonic()
        while not is_over():
            try:
                for found in self._blocks(rows, wait_s, is_over):
                    heard = time.monotonic()
                    if not isinstance(found, Gone):
                        yield found if isinstance(found, Later) else found.block
                    elif found.epoch > 0 and found.first >= 0:
                        yield Missing(b"", found.epoch, found.first, found.first + found.count)
                    if is_over():
                        return
                heard = time.monotonic()
                yield Later(0)
            except ArchiveError:
                if time.monotonic() - heard > _MOST_WAITS * wait_s:
                    raise
            time.sleep(_MOST_LATER_S)

    def _blocks(
        self, rows: WantedRows | WantedRanges, timeout: float, is_over: Callable[[], bool] = lambda: False
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
            except _StaleError:
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
        self, asking: _Asking, rows: WantedRows | WantedRanges, timeout: float
    ) -> Iterator[Fetched | Gone | Later]:
        """Yield what one archive has, from where the one before ended."""
        ask, heard, pause_s = rows.begin(), time.monotonic(), _LATER_S
        asking.send(ask)
        while True:
            answer, frames = asking.answer()
            if isinstance(answer, Refusal) and ask.cursor is not None:
                raise _StaleError
            if not isinstance(answer, Piece) or len(frames) != FRAMES_OF_BLOCK * len(answer.blocks):
                raise ArchiveError(f"{asking.endpoint}: answer was no piece of blocks, or lacked some of them")
            ask = msgspec.structs.replace(ask, cursor=answer.cursor, start=answer.start, ranges=answer.ranges)
            if answer.state == "more":
                asking.send(ask)  # the archive reads on while this is taken
            for found in _in_place(asking.endpoint, answer, frames):
                if (wanted := rows.take(found)) is not None:
                    yield wanted
            if answer.state == "done":
                return
            if answer.state == "more":
                heard, pause_s = time.monotonic(), _LATER_S
                continue
            if answer.blocks:
                heard, pause_s = time.monotonic(), _LATER_S
            elif time.monotonic() - heard > timeout:
                raise ArchiveError(f"{asking.endpoint}: nothing more was recorded within {timeout:g} s, and no end")
            else:
                if rows.tells_later:
                    yield Later(answer.epoch)
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


class _Asking:
    """A socket to one archive, for one answer after the other."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        """Raises EndpointError when it cannot connect."""
        self.endpoint = endpoint
        self.is_known = False
        """Whether the archive was seen to be one of the feed."""
        self.is_over: Callable[[], bool] = lambda: False
        """Whether no answer is waited for any more."""
        self._timeout = timeout
        self._numbers = itertools.count(1)
        self._number = b""
        self._context = new_context("archive client", _NEEDS)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        allow_ipv6(self._socket, self.endpoint)
        keep_alive(self._socket)
        try:
            self._socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(error.errno, f"cannot connect to archive {self.endpoint}: {error.strerror}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        self._context.term()

    def ask(self, request: AskAbout | AskBlocks | TellConsumer) -> tuple[Piece | About | Noted | Refusal, list[bytes]]:
        """Send a request and return its answer. Raises as `send` and `answer`."""
        self.send(request)
        return self.answer()

    def send(self, request: AskAbout | AskBlocks | TellConsumer) -> None:
        """Send a request. Raises ArchiveError when it is not taken."""
        self._number = next(self._numbers).to_bytes(8, "little")
        try:
            self._socket.send_multipart([self._number, ENCODER.encode(request)], zmq.NOBLOCK)
        except zmq.Again:
            raise ArchiveError(f"{self.endpoint}: took no request") from None

    def answer(self) -> tuple[Piece | About | Noted | Refusal, list[bytes]]:
        """Return the answer to the last request. Raises ArchiveError when none comes in time, or it is refused."""
        until = time.monotonic() + self._timeout
        while not self.is_over() and (left_s := until - time.monotonic()) > 0:
            if not self._socket.poll(round(1e3 * min(left_s, _LOOK_S))):
                continue
            frames = self._socket.recv_multipart()
            if len(frames) < _HEAD_FRAMES or frames[0] != self._number:
                continue
            try:
                answer = ANSWERS.decode(frames[1])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ArchiveError(f"{self.endpoint} did not answer as an archive does: {error}") from error
            if isinstance(answer, Refusal) and not answer.is_stale:
                raise ArchiveError(f"{self.endpoint}: {answer.why}")
            return answer, frames[_HEAD_FRAMES:]
        raise ArchiveError(f"{self.endpoint} did not answer within {self._timeout:g} s")


def _in_place(endpoint: str, piece: Piece, frames: list[bytes]) -> Iterator[Fetched | Gone]:
    """Yield the blocks of a piece, checked, and what is missing between them."""
    gone = iter([*piece.gone, (len(piece.blocks) + 1, None)])
    place, missing = next(gone)
    for number, (ts_recv, first_row) in enumerate([*piece.blocks, (0, 0)]):
        while place <= number and missing is not None:
            yield missing
            place, missing = next(gone)
        if number < len(piece.blocks):
            start = FRAMES_OF_BLOCK * number
            try:
                block = Block.decode(frames[start], frames[start + 1], frames[start + 2])
            except BlockError as error:
                raise ArchiveError(f"{endpoint}: a block of its answer is damaged: {error}") from error
            yield Fetched(block, ts_recv, first_row, block.count)
