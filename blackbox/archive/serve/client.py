"""Request recorded blocks from archives, in turn, until one answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

import msgspec

from blackbox.archive.serve.block_reader import BlockReader, find_position
from blackbox.archive.serve.connection import Connection, ConnectionPool, Fetched, block_of
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
    Gone,
    Image,
    Noted,
    Refusal,
    Snapshot,
    TellConsumer,
)
from blackbox.block.form.block import Block
from blackbox.block.position import End, Position
from blackbox.errors import ArchiveError, BlackBoxError, ConfigError
from blackbox.feed.feed import Feed, with_archive
from blackbox.feed.routing.prefixes import Prefixes, common_prefix, covering
from blackbox.native.system.awake_clock import awake_s
from blackbox.receive.slices.catching_up import Gone as GoneTo
from blackbox.receive.slices.catching_up import Passed, Told, Wanted

log = logging.getLogger("blackbox")

_GAP_S: Final = 1.0
"""Time for which messages that one archive lacks may still come to another that is being written."""


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


class ArchiveClient:
    """Reads the archives of a feed. Thread-safe: each request has its own socket.

    Archives are asked in the order of the feed file, but those that failed come last. If one does not answer or
    refuses, the next one continues from the same position, so no message is returned twice.
    """

    def __init__(self, feed: Feed, *, timeout: float = 10.0) -> None:
        """`timeout`: time to wait for one answer of one archive.

        Raises ConfigError if the feed has no archive, or a key of `[security]` is missing or malformed.
        """
        self._pool = ConnectionPool(feed, timeout, keeps=False)
        self.feed = feed

    @contextmanager
    def kept(self) -> Iterator[ArchiveClient]:
        """Yield a client for one thread that keeps its connections open until the block ends, for faster answers."""
        client = ArchiveClient(self.feed, timeout=self._pool.timeout)
        client._pool = ConnectionPool(self.feed, self._pool.timeout, keeps=True)
        with closing(client._pool):
            yield client

    def only(self, endpoint: str) -> ArchiveClient:
        """Return a client of one of its archives."""
        return ArchiveClient(with_archive(self.feed, endpoint), timeout=self._pool.timeout)

    def about(self, day: str | None = None, timeout: float = 0.0) -> About:
        """Return the contents of the first archive that answers, in detail for `day`; default: the last day.

        `timeout`: time in s to retry while no archive answers. Raises ArchiveError with the failure of each archive.
        """
        until = time.monotonic() + timeout
        return self._pool.first_answer(until, lambda asking: self._pool.about(asking, AskAbout(day)))

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
            timeout: time to retry, in s. Each archive gets at least the client's `timeout` to answer.
            may_narrow: leave out topics that our key has no right to; otherwise a prefix with such topics is an error.

        Raises ArchiveError with the failure of each archive.
        """
        self._check_slice(slice_id)
        if not 0 < len(prefixes) <= MOST_PREFIXES:
            raise ConfigError(f"prefixes of an image were {len(prefixes)}, expected 1 to {MOST_PREFIXES}")
        ask = AskImage(slice_id=slice_id, of=of, prefixes=tuple(sorted(prefixes)), may_narrow=may_narrow)
        until = time.monotonic() + timeout
        return self._pool.first_answer(until, lambda asking: self._image(asking, ask, timeout, until))

    def _image(self, asking: Connection, ask: AskImage, timeout: float, until: float) -> SliceImage:
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
                what = f"{asking.endpoint}: the image of slice {ask.slice_id}"
                raise ArchiveError(f"{what} was not whole within timeout={timeout:g} s, expected a longer timeout")

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
            pool = client._pool
            if not isinstance(start, Position):
                start = find_position(pool, AskPosition(slice_id=slice_id, start_ns=start))
            ask = AskBlocks(slice_id=slice_id, prefixes=prefixes, start=start, stop=stop, stop_ns=stop_ns)
            came = awake_s()
            for found in BlockReader(pool, ask, wait_s=min(_GAP_S, timeout / 2)).read():
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
            start = find_position(self._pool, AskPosition(slice_id=slice_id, start_ns=start), is_over, patience_s)
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
        position = start
        for found in BlockReader(self._pool, ask, is_over, wait_s, patience_s).read():
            if isinstance(found, Fetched):
                block = found.block
                first = Position(block.epoch, block.number_of(found.first_row))
                if keys == (b"",) and position.epoch == first.epoch and position < first:
                    yield Passed(first)  # what was dropped before it is not wanted
                position = Position(block.epoch, block.number_of(-1) + 1)
                if block.key.startswith(keys):
                    yield block
            elif isinstance(found, EndOfEpoch):
                ends = {key: End(*end) for key, end in found.ends.items() if key.startswith(keys)}
                yield Told(found.epoch, found.following, ends)
            elif isinstance(found, Passed):
                position = found.position
                yield found
            elif found.first < found.stop:
                position = Position(found.epoch, found.stop)
                yield GoneTo(position)

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
        for endpoint in self._pool.order:
            try:
                with self._pool.connection(endpoint) as asking:
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
        for endpoint in self._pool.order:
            with suppress(BlackBoxError), self._pool.connection(endpoint, is_hasty=True) as asking:
                asking.ask(AskAbout())
                return True
            self._pool.put_last(endpoint)
        return self._pool.may_answer(self.feed.archives)

    def _check_slice(self, slice_id: int) -> None:
        if not 0 <= slice_id < len(self.feed.slices):
            raise ConfigError(f"slice was {slice_id}, expected 0 to {len(self.feed.slices) - 1}")
