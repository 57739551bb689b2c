"""Growing blocks and topic numbers of an import: the recording of any columns equals that of a plain loop."""

from __future__ import annotations

import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Recording
from blackbox.archive.files.topic_numbers import TopicNumbers
from blackbox.archive.importing.column_writer import ColumnWriter
from blackbox.block.form.format import FLAG_FIXED, FLAG_NULLS
from tests.archive.recorders import check_keys
from tests.examples import examples

DAY = datetime.date(2026, 1, 5)
NOON = 1_767_614_400 * 10**9
LEAST_BLOCK = 1 << 10

Row = tuple[bytes, bytes | None, int]

SIZES = st.one_of(st.integers(0, 80), st.sampled_from([63, 64, 65, 900, 1_500, 70_000]))
ROWS = st.lists(
    st.tuples(
        st.text("ABC.", min_size=1, max_size=9).map(str.encode),
        st.one_of(st.none(), SIZES),
        st.sampled_from([0, NOON - 5, NOON, NOON + 7]),
    ),
    max_size=120,
)


def put(writer: ColumnWriter, rows: list[Row], *, spare: int) -> None:
    """Put rows with payloads in one buffer, with `spare` bytes between and after them."""
    topics = list(dict.fromkeys(topic for topic, _, _ in rows))
    text, starts = b"", []
    for _, payload, _ in rows:
        starts.append(len(text))
        text += (payload or b"") + b"~" * spare
    has_nulls = any(payload is None for _, payload, _ in rows)
    writer.put(
        topics,
        [topics.index(topic) for topic, _, _ in rows],
        numpy.frombuffer(text or b"\0", numpy.uint8),
        [time for _, _, time in rows],
        starts,
        [len(payload or b"") for _, payload, _ in rows],
        [payload is not None for _, payload, _ in rows] if has_nulls else None,
    )


@given(st.lists(ROWS, max_size=3), st.integers(0, 2), st.integers(1, 3), st.sampled_from([0, 2, 100]))
@settings(max_examples=examples(60), deadline=None)
def test_messages_are_recorded_as_put(
    parts: list[list[tuple[bytes, int | None, int]]], key_bytes: int, slices: int, spare: int
) -> None:
    feed = msgspec.structs.replace(Feed.local("grown", slices), key_bytes=key_bytes)
    made: list[list[Row]] = [
        [
            (topic, None if size is None else bytes([row % 251]) * size, time)
            for row, (topic, size, time) in enumerate(part)
        ]
        for part in parts
    ]
    with TemporaryDirectory() as directory:
        with ColumnWriter(Path(directory), feed, DAY, block_bytes=LEAST_BLOCK) as writer:
            for rows in made:
                put(writer, rows, spare=spare)
        recording = Recording.open(directory)
        found: dict[tuple[int, bytes], list[Row]] = {}
        for batch in recording.batches():
            assert len(batch) == 1 or batch.block.body.nbytes <= LEAST_BLOCK + 128
            assert len(set(batch.block.topics)) == len(batch.block.topics)
            rows = found.setdefault((batch.block.slice_id, batch.block.key), [])
            rows += [(message.topic, message.payload, message.ts_event) for message in batch]
        expected: dict[tuple[int, bytes], list[Row]] = {}
        for topic, payload, time in (row for rows in made for row in rows):
            expected.setdefault((feed.slice_of(topic), feed.key_of(topic)), []).append((topic, payload, time))
        assert found == expected
        check_keys(recording.path)
        assert recording.examine() == ([], [], [])


def test_skipped_sequences_belong_to_the_slice(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("grown", 1), key_bytes=1)
    with ColumnWriter(tmp_path, feed, DAY) as writer:
        for count, names in ((3, b"AB"), (2, b"AC")):
            writer.skip(count)
            put(writer, [(bytes([name]) + b".t", b"x", NOON) for name in names], spare=0)
    recording = Recording.open(tmp_path)
    blocks = [batch.block for batch in recording.batches()]
    assert [(block.key, block.sequence, block.previous, block.key_sequence) for block in blocks] == [
        (b"A", 3, 3, 1), (b"B", 4, 3, 1), (b"A", 7, 7, 3), (b"C", 8, 7, 1),
    ]  # fmt: skip
    damage, gaps, begins = recording.examine()
    assert (damage, begins) == ([], [])
    assert [(gap.key, gap.sequence, gap.count) for gap in gaps] == [(b"", 0, 3), (b"", 5, 2)]


@pytest.mark.parametrize(
    ("sizes", "flags"), [([3, 3, 3], FLAG_FIXED), ([3, 2], 0), ([3, None], FLAG_NULLS), ([None, 0], 66)]
)
def test_a_block_has_the_flags_of_its_payloads(tmp_path: Path, sizes: list[int | None], flags: int) -> None:
    with ColumnWriter(tmp_path, Feed.local("grown", 1), DAY) as writer:
        put(writer, [(b"A.t", None if size is None else b"x" * size, NOON) for size in sizes], spare=0)
    (batch,) = Recording.open(tmp_path).batches()
    assert batch.block.flags & (FLAG_FIXED | FLAG_NULLS) == flags


def test_a_growing_block_keeps_its_topics_when_the_table_grows(tmp_path: Path) -> None:
    with ColumnWriter(tmp_path, Feed.local("grown", 1), DAY) as writer:
        for count in (10, 3_000):
            put(writer, [(b"S%d.t" % number, b"x", NOON) for number in range(count)], spare=0)
    (batch,) = Recording.open(tmp_path).batches()
    assert (len(batch), batch.block.topic_count) == (3_010, 3_000)


TOPICS = st.lists(st.text("AB.", min_size=1, max_size=6).map(str.encode), max_size=30)


KEY_RULES = st.sampled_from([{}, {"key_bytes": 1}, {"key_bytes": 3}, {"channels": 3}])


@given(st.lists(TOPICS, max_size=4), KEY_RULES, st.integers(1, 3), st.booleans())
def test_numbers_slices_and_keys_match_a_plain_dictionary(
    parts: list[list[bytes]], keys: dict[str, int], slices: int, grows: bool
) -> None:
    feed = msgspec.structs.replace(Feed.local("numbers", slices), **keys)
    numbers = TopicNumbers(feed)
    known: dict[bytes, int] = {}
    given_topics: tuple[bytes, ...] = ()
    for part in parts:
        given_topics = (*given_topics, *part) if grows else tuple(part)
        expected = [known.setdefault(topic, len(known)) for topic in given_topics]
        assert numbers.numbers_of(given_topics).tolist() == expected
    groups: dict[tuple[int, bytes], int] = {}
    for topic, number in known.items():
        name = feed.slice_of(topic), feed.key_of(topic)
        assert numbers.group_of[number] == groups.setdefault(name, len(groups))
        assert numbers.slice_of[numbers.group_of[number]] == name[0]
    table = numbers.table
    texts = [table.text[table.offsets[i] : table.offsets[i] + table.sizes[i]].tobytes() for i in range(len(known))]
    assert texts == list(known)


def test_the_table_grows_for_more_and_longer_topics() -> None:
    numbers = TopicNumbers(msgspec.structs.replace(Feed.local("numbers", 2), key_bytes=2))
    topics = [b"S%d." % number + b"x" * (number % 300) for number in range(5_000)]
    for stop in (10, 2_000, 5_000):
        assert numpy.array_equal(numbers.numbers_of(topics[:stop]), numpy.arange(stop))
    assert numbers.numbers_of([b"A" * 65_535]).tolist() == [5_000]
    assert len(numbers) == 5_001 <= numbers.room


def test_text_is_as_its_bytes_and_invalid_or_too_many_topics_are_rejected() -> None:
    numbers = TopicNumbers(msgspec.structs.replace(Feed.local("numbers", 2), max_topics=3))
    assert numbers.numbers_of(["A.t", "Aü", b"A.t", "Aü".encode()]).tolist() == [0, 1, 0, 1]
    wrong: list[tuple[Any, str]] = [
        (b"", "empty"),
        (b"\0A", "zero byte"),
        (b"A" * 65_536, "65536"),
        (1, "str or bytes"),
    ]
    for topic, why in wrong:
        with pytest.raises((ConfigError, TypeError), match=why):
            numbers.numbers_of([b"A.t", topic])
    with pytest.raises(ConfigError, match=r"topics were 9 or more, expected at most 3 .max_topics. a slice"):
        numbers.numbers_of([b"A%d" % number for number in range(7)])
