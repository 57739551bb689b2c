"""Several archives read as one: gaps of one are filled from another, and gaps of all are reported once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.block import Block
from blackbox.block.block_handler import BLOCK
from blackbox.block.position import Position
from blackbox.native.awake_clock import awake_s
from blackbox.subscribe.catching_up import Gone, Passed, Told, Wanted
from tests.archive.archives import free_endpoint
from tests.archive.written_journals import Journal
from tests.examples import examples
from tests.journals import Day, feed_of

SECOND = 10**9

ALL = Wanted([b""])


class Sent(NamedTuple):
    """A block, and True for each archive that has it."""

    key: bytes
    messages: int
    archived: tuple[bool, bool]
    begins_run: bool


SENT = st.lists(
    st.builds(
        Sent,
        st.sampled_from((b"A", b"B")),
        st.integers(1, 3),
        st.tuples(st.booleans(), st.booleans()),
        st.sampled_from((False,) * 5 + (True,)),
    ),
    min_size=1,
    max_size=15,
)


def put(journal: Journal, key: bytes, key_bytes: int, count: int, time: int, **fields: Any) -> None:
    """Record a block as its publisher sends it. `fields`: header fields."""
    payloads, topic = numpy.zeros((count, 1), numpy.uint8), key + b".x"
    sent = Block.encode(
        [topic], [0] * count, payloads, key=topic[:key_bytes], key_rule=key_bytes, ts_out=time * SECOND, **fields
    )
    journal._give(BLOCK, sent.header, sent.body.tobytes(), time * SECOND)


def write(place: Path, number: int, sent: list[Sent], key_bytes: int) -> None:
    """Write the recording of one archive, with the end of each epoch and a last epoch without messages."""
    journal, epoch, following = Journal(place / "2026-01-01", key_bytes), 1, 0
    ends: dict[bytes, tuple[int, int]] = {}
    for time, each in enumerate([*sent, Sent(b"A", 0, (False, False), True)], 1):
        if each.begins_run:
            journal.hear(ends, epoch, time * SECOND, sequence=following)
            epoch, following, ends = epoch + 1, 0, {}
        key = each.key[:key_bytes]
        previous, count = ends.get(key, (0, 0))
        if each.archived[number]:
            numbers = {"sequence": following, "previous": previous, "key_sequence": count}
            put(journal, each.key, key_bytes, each.messages, time, epoch=epoch, **numbers)
        following += each.messages
        if each.messages:
            ends[key] = following, count + each.messages
    journal.hear(ends, epoch, 1_000 * SECOND)
    journal.writer.close()


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(SENT, st.sampled_from([0, 1]), st.sampled_from([b"", b"A", b"B"]), st.integers(0, 4))
def test_two_archives_are_read_as_one(sent: list[Sent], key_bytes: int, prefix: bytes, start: int) -> None:
    feed = feed_of(key_bytes=key_bytes, archives=(free_endpoint(), free_endpoint()))
    wanted = prefix[:key_bytes]
    expected: list[tuple[str, int, int]] = []
    epoch, following, runs = 1, 0, [1]
    for each in sent:
        if each.begins_run:
            epoch, following = epoch + 1, 0
            runs.append(epoch)
        numbers = range(following, following + each.messages)
        following += each.messages
        what = "came" if any(each.archived) else "gone"
        if what == "gone" or each.key[:key_bytes].startswith(wanted):
            expected += [(what, epoch, number) for number in numbers if epoch > 1 or number >= start]
    with TemporaryDirectory() as directory, ExitStack() as stack:
        for number, endpoint in enumerate(feed.archives):
            place = Path(directory) / str(number) / feed.name
            write(place, number, sent, key_bytes)
            stack.enter_context(ArchiveServer(place, (endpoint,)))
        found, told, at, until = list[tuple[str, int, int]](), list[int](), Position(1, start), awake_s() + 20
        client = stack.enter_context(ArchiveClient(feed).kept())
        for part in client.read(0, at, Wanted([wanted]), 5.0, lambda: awake_s() > until, patience_s=10.0):
            if isinstance(part, Block):
                found += [("came", part.epoch, n) for n in part.sequences.tolist() if (part.epoch, n) >= (1, start)]
                at = max(at, Position(part.epoch, part.number_of(-1) + 1))
            elif isinstance(part, Gone):
                found += [("gone", at.epoch, n) for n in range(at.sequence, part.position.sequence)]
                at = part.position
            elif isinstance(part, Told):
                told.append(part.epoch)
            else:
                assert part.position >= at
                at = part.position
                if part.is_all:
                    break
    assert [fact for fact in found if fact[0] == "came"] == [fact for fact in expected if fact[0] == "came"]
    gone = {fact for fact in found if fact[0] == "gone"}
    assert gone == {fact for fact in expected if fact[0] == "gone"}
    assert len(found) == len(set(found))
    assert told == [epoch for epoch in runs for _ in range(2)]
    assert at == (runs[-1] + 1, 0)


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_reading_from_a_time_starts_at_the_first_block_received_then(tmp_path: Path, key_bytes: int) -> None:
    feed = feed_of(key_bytes=key_bytes, archives=(free_endpoint(),))
    journal = Journal(tmp_path / feed.name / "2026-01-01", key_bytes)
    for number in range(5):
        put(journal, b"A", key_bytes, 2, number + 1, epoch=7, sequence=2 * number)
    journal.writer.close()
    until = awake_s() + 20
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        for start_ns, first in ((0, 0), (3 * SECOND, 4), (3 * SECOND + 1, 6), (99 * SECOND, 10)):
            reading = cast(
                Generator[object],
                ArchiveClient(feed).read(0, start_ns, ALL, 1.0, lambda: awake_s() > until, patience_s=1.0),
            )
            assert next(reading) == Passed(Position(7, first))
            reading.close()


ARCHIVED = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8)


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(ARCHIVED, st.integers(0, 9))
def test_reading_from_a_time_starts_at_the_first_block_of_any_archive(
    archived: list[tuple[bool, bool]], start: int
) -> None:
    """Block n is received at second n. An archive has nothing after its last block."""
    feed = feed_of(archives=(free_endpoint(), free_endpoint()))
    found = [n for n, has in enumerate(archived) if any(has)]
    expected = next((n for n in found if n >= start), found[-1] + 1 if found else 0)
    with TemporaryDirectory() as directory, ExitStack() as stack:
        for number, endpoint in enumerate(feed.archives):
            place = Path(directory) / str(number) / feed.name
            journal = Journal(place / "2026-01-01")
            for n in (n for n, has in enumerate(archived) if has[number]):
                put(journal, b"A", 0, 1, n, epoch=7, sequence=n)
            journal.writer.close()
            stack.enter_context(ArchiveServer(place, (endpoint,)))
        until = awake_s() + 20
        reading = ArchiveClient(feed).read(0, start * SECOND, ALL, 1.0, lambda: awake_s() > until, patience_s=1.0)
        assert next(reading) == Passed(Position(7 if found else 0, expected))
        cast(Generator[object], reading).close()


def test_a_start_without_a_silent_archive_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = feed_of(archives=(free_endpoint(), free_endpoint()))
    journal = Journal(tmp_path / feed.name / "2026-01-01")
    for number in range(5):
        put(journal, b"A", 0, 1, number, epoch=7, sequence=number)
    journal.writer.close()
    with ArchiveServer(tmp_path / feed.name, feed.archives[1:]):
        reading = ArchiveClient(feed, timeout=0.2).read(0, 3 * SECOND, ALL, 1.0, lambda: False, patience_s=60.0)
        assert next(reading) == Passed(Position(7, 3))
        cast(Generator[object], reading).close()
    warnings = [each.message for each in caplog.records if "starts without" in each.message]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"slice 0 starts without the messages of an archive: {feed.archives[0]} did not")


def test_a_client_does_not_wait_for_an_unreachable_archive() -> None:
    feed = feed_of(archives=(free_endpoint(), free_endpoint()))
    assert not ArchiveClient(feed, timeout=3_600).answers()


def test_an_empty_slice_starts_before_its_first_epoch(tmp_path: Path) -> None:
    feed = feed_of(archives=(free_endpoint(),))
    Day(tmp_path / feed.name / "2026-01-01", feed_of())
    until = awake_s() + 20
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        reading = cast(
            Generator[object],
            ArchiveClient(feed).read(0, 0, ALL, 1.0, lambda: awake_s() > until, patience_s=1.0),
        )
        assert next(reading) == Passed(Position(0, 0), False)
        reading.close()
