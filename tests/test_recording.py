"""Reading recorded days: what was written, in order, chosen by topic, time and sequence; each against plain Python."""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Batch, ConfigError, JournalError, Recording
from blackbox.journal import codec as codecs
from blackbox.journal.census import Gap
from tests.journals import Day, Put, Row, Told, feed_of

CLOCKS = st.sampled_from(["ts_event", "ts_out", "ts_recv"])
EPOCHS = (1, 2**64 - 1)
few = settings(max_examples=60)


@st.composite
def days(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, bool, list[Put]]]]:
    """Slices, key_bytes, and segments as (slice, whether it is indexed, blocks): few values, so that many are equal."""
    slices = draw(st.integers(1, 3))
    key_bytes = draw(st.integers(0, 8))
    segments = []
    sequences: Counter[tuple[int, int, bytes]] = Counter()
    for _ in range(draw(st.integers(0, 5))):
        slice_id = draw(st.integers(0, slices - 1))
        puts = []
        for _ in range(draw(st.integers(0, 6))):
            letter = bytes([65 + slice_id])
            names = [letter + name for name in (b"", b"X", b"XYZ.q", b"XYZ.t", b"Y.trade.of.more", b"Y.quote.of.more")]
            key = draw(st.sampled_from(names))[:key_bytes]
            topics = [name for name in names if name[:key_bytes] == key]
            size = draw(st.sampled_from([None, 0, 3]))
            payloads = st.binary(max_size=9) if size is None else st.binary(min_size=size, max_size=size)
            rows = draw(
                st.lists(st.tuples(st.sampled_from(topics), payloads, st.integers(0, 6)), min_size=1, max_size=5)
            )
            epoch = draw(st.sampled_from(EPOCHS))
            sequences[slice_id, epoch, key] += draw(st.sampled_from([0, 0, 0, 2]))
            puts.append(
                Put(
                    tuple(Row(*row) for row in rows),
                    sequence=sequences[slice_id, epoch, key],
                    ts_out=draw(st.integers(0, 8)),
                    ts_recv=draw(st.integers(0, 8)),
                    epoch=epoch,
                    first_row=draw(st.integers(0, len(rows) - 1)),
                    codec=draw(st.integers(0, 2)),
                    flags=draw(st.integers(0, 1)),
                )
            )
            sequences[slice_id, epoch, key] += len(rows)
        segments.append((slice_id, draw(st.booleans()), puts))
    return slices, key_bytes, segments


def made(path: str | Path, day: tuple[int, int, list[tuple[int, bool, list[Put]]]]) -> Day:
    slices, key_bytes, segments = day
    written = Day(Path(path), feed_of(slices, key_bytes))
    for slice_id, indexed, puts in segments:
        written.put(slice_id, *puts, index=indexed)
    return written


def told(batches: Iterator[Batch]) -> list[Told]:
    return [
        Told(b.block.slice_id, b.block.epoch, sequence, b.ts_out, b.ts_recv, m.topic, m.payload, m.ts_event)
        for b in batches
        for m, sequence in zip(b, b.sequence.tolist(), strict=True)
    ]


def gaps_of(day: Day) -> list[Gap]:
    """What is missing, block by block and number by number."""
    found = []
    for slice_id in sorted({segment.slice_id for segment in day.segments}):
        seen: dict[tuple[int, bytes], int] = {}
        for segment in day.segments:
            for put in segment.puts if segment.slice_id == slice_id else ():
                key = put.rows[0].topic[: day.feed.key_bytes]
                first = put.sequence + put.first_row
                highest = seen.get((put.epoch, key), first)
                missing = list(range(highest, first))
                if missing:
                    found.append(Gap(slice_id, put.epoch, key, missing[0], len(missing), put.ts_out))
                seen[put.epoch, key] = max(highest, put.sequence + len(put.rows))
    return found


@few
@given(days())
def test_everything_is_read_back_in_order(day: Any) -> None:
    with TemporaryDirectory() as path:
        written = made(path, day)
        recording = Recording.open(path)
        assert told(recording.batches()) == written.told()
        assert told(recording.batches()) == told(Recording.open(path).batches())
        assert recording.damage == recording.verify() == []
        assert recording.gaps() == gaps_of(written)
        assert recording.counts() == Counter(message.topic for message in written.told())
        assert recording.topics() == sorted({message.topic for message in written.told()})


@few
@given(
    days(),
    st.sampled_from([b"", b"A", b"AX", b"AXYZ.", b"AY.trade.of", b"B", b"BXYZ", b"CY", b"Z"]),
    st.none() | st.integers(-1, 8),
    st.none() | st.integers(-1, 8),
    st.none() | st.lists(st.integers(0, 2), max_size=2),
    CLOCKS,
    st.none() | st.sampled_from([*EPOCHS, 7]),
    st.none() | st.integers(0, 20),
)
def test_a_filter_takes_what_plain_python_takes(
    day: Any,
    prefix: bytes,
    start: int | None,
    stop: int | None,
    slices: list[int] | None,
    by: Any,
    epoch: int | None,
    first_sequence: int | None,
) -> None:
    slices = None if slices is None else [number for number in slices if number < day[0]]
    with TemporaryDirectory() as path:
        wanted = [
            message
            for message in made(path, day).told()
            if message.topic.startswith(prefix)
            and (start is None or getattr(message, by) >= start)
            and (stop is None or getattr(message, by) < stop)
            and (slices is None or message.slice_id in slices)
            and epoch in (None, message.epoch)
            and (first_sequence is None or message.sequence >= first_sequence)
        ]
        recording = Recording.open(path)
        batches = recording.batches(prefix, start, stop, slices, by, epoch=epoch, first_sequence=first_sequence)
        assert told(batches) == wanted
        if epoch is None and first_sequence is None:
            table = recording.to_arrow(prefix, start, stop, slices, by)
            names = ("slice", "epoch", "sequence", "ts_out", "ts_recv", "topic", "payload", "ts_event")
            assert [tuple(row[name] for name in names) for row in table.to_pylist()] == wanted


@few
@given(days(), st.sampled_from(EPOCHS), st.integers(0, 12))
def test_lower_bounds_are_those_of_one_key(day: Any, epoch: int, sequence: int) -> None:
    with TemporaryDirectory() as path:
        written = made(path, day)
        recording = Recording.open(path)
        keys = {(m.slice_id, m.topic[: day[1]]) for m in written.told()}
        for slice_id, key in keys:
            found = told(recording.lower_bound(slice_id, key, epoch, sequence))
            assert found == [
                message
                for message in written.told()
                if (message.slice_id, message.epoch, message.topic[: day[1]]) == (slice_id, epoch, key)
                and message.sequence >= sequence
            ]


def many(count: int, slice_id: int = 0, size: int = 200) -> list[Put]:
    """Blocks of one message, numbered on, over many index entries."""
    letter = chr(65 + slice_id)
    return [
        Put((Row(f"{letter}{i % 5}".encode(), bytes(size), i),), sequence=i // 5, ts_out=2 * i + slice_id, ts_recv=i)
        for i in range(count)
    ]


def test_slices_are_merged_by_the_time_of_sending(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(3))
    for slice_id in (2, 0, 1):
        for part in range(3):
            day.put(slice_id, *many(3_000, slice_id)[1_000 * part : 1_000 * (part + 1)], index=part != 1)
    chunks = list(Recording.open(tmp_path).chunks())
    heads = numpy.concatenate([chunk.heads for chunk in chunks])
    order = list(zip(heads["ts_out"].tolist(), heads["slice"].tolist(), strict=True))
    assert order == sorted(order)
    assert len(order) == 9_000
    assert max(len(chunk.heads) for chunk in chunks) == 1_024
    for chunk in chunks:
        for address, number in zip(chunk.addresses.tolist(), chunk.segment_of.tolist(), strict=True):
            segment = chunk.segments[number]
            assert segment.address + 64 <= address < segment.address + segment.whole_bytes


def test_a_slice_whose_times_run_backwards_keeps_its_order_whatever_is_passed_over(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    late = [Put((Row(b"A", bytes(70_000), i),), i, ts_out) for i, ts_out in enumerate((10, 90, 20, 30, 100))]
    day.put(0, *late)
    day.put(1, *(Put((Row(b"B", b"", i),), i, 12 * i) for i in range(10)))
    recording = Recording.open(tmp_path)
    everything = told(recording.batches())
    assert everything == day.told()
    for start in range(5):
        assert told(recording.batches(start=start)) == [message for message in everything if message.ts_event >= start]


def test_what_the_index_rules_out_is_not_looked_at(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(key_bytes=1))
    names = (b"A", b"B")
    puts = [Put((Row(names[i >= 1_000], bytes(1_000), i),), sequence=i % 1_000, ts_out=i) for i in range(2_000)]
    entries = day.put(0, *puts).entries()
    recording = Recording.open(tmp_path)
    per_entry = len(puts) // len(entries) + 2
    assert sum(len(chunk.heads) for chunk in recording.chunks(start=500, stop=501)) <= per_entry
    assert sum(len(chunk.heads) for chunk in recording.chunks(b"B")) <= 1_000 + per_entry
    assert sum(len(chunk.heads) for chunk in recording.chunks(start=7, stop=8, by="ts_out")) == 1
    assert sum(len(chunk.heads) for chunk in recording.chunks(first_sequence=999)) == 2
    assert list(recording.chunks(slices=[])) == []


def test_a_block_of_one_kind_is_a_view_on_the_file(tmp_path: Path) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A", b"12345678"), Row(b"A", b"abcdefgh"))))
    recording = Recording.open(tmp_path)
    (chunk,) = recording.chunks()
    (batch,) = recording.batches()
    assert numpy.shares_memory(batch.payloads(), chunk.segments[0].memory)
    payloads = batch.payloads()
    del recording, chunk, batch
    assert payloads.tobytes() == b"12345678abcdefgh"
    assert not payloads.flags.writeable


def test_records_and_times_of_a_recorded_batch(tmp_path: Path) -> None:
    from feeds.itch50_messages import SCHEMA

    event = numpy.zeros(2, SCHEMA.dtype("S"))
    event["message_type"], event["event_code"], event["tracking_number"] = b"S", b"O", (1, 2)
    rows = tuple(Row(b"S", row.tobytes(), i) for i, row in enumerate(event))
    Day(tmp_path, feed_of(schema="itch50")).put(0, Put(rows, 5, ts_out=7, ts_recv=9))
    (batch,) = Recording.open(tmp_path).batches()
    assert (batch.ts_out, batch.ts_recv, batch.sequence.tolist()) == (7, 9, [5, 6])
    assert batch.records("S")["tracking_number"].tolist() == [1, 2]
    assert [message.record.event_code for message in batch] == [b"O", b"O"]
    with pytest.raises(ValueError, match="topics have no numbers"):
        _ = batch.topic_numbers
    table = Recording.open(tmp_path).to_arrow(kind="S")
    assert table.schema.names[7:] == list(SCHEMA.arrow("S").names)
    assert table.schema.field("event_code") == SCHEMA.arrow("S").field("event_code")
    assert table.column("event_code").to_pylist() == ["O", "O"]
    with pytest.raises(ConfigError, match="message type was '!'"):
        Recording.open(tmp_path).to_arrow(kind="!")


def test_every_type_of_every_schema_becomes_columns(tmp_path: Path) -> None:
    from blackbox.arrow import record_columns
    from feeds.iex_messages import DEEP10, TOPS16
    from feeds.itch50_messages import SCHEMA, timestamps_ns

    draw = numpy.random.default_rng(1)
    for schema in (DEEP10, TOPS16, SCHEMA):
        for kind, dtype in schema.records.items():
            records = draw.integers(0, 128, (50, dtype.itemsize), numpy.uint8).view(dtype).reshape(-1)
            arrow = schema.arrow(kind)
            columns = record_columns(schema, kind, records)
            assert [column.type for column in columns] == arrow.types
            for name, column in zip(arrow.names, columns, strict=True):
                if records[name].dtype.kind in "iu" and records[name].ndim == 1:
                    assert column.cast(pyarrow.int64()).to_pylist() == records[name].tolist()
            if schema is SCHEMA:
                assert columns[3].to_pylist() == timestamps_ns(records["timestamp"]).tolist()


def test_frames_of_pandas_and_polars_hold_the_same(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    day.put(0, *many(50))
    day.put(1, *many(50, 1), index=False)
    recording = Recording.open(tmp_path)
    table = recording.to_arrow()
    assert table.column("ts_out").to_pylist() == [message.ts_out for message in day.told()]
    pandas, polars = recording.to_pandas(), recording.to_polars()
    for name in table.schema.names:
        assert pandas[name].tolist() == polars[name].to_list() == table.column(name).to_pylist()
    assert len(recording.to_pandas(start=10, stop=20)) == len(recording.to_polars(start=10, stop=20)) == 20
    assert str(pandas["topic"].dtype) == "category"


@pytest.mark.parametrize(("library", "extra"), [("pyarrow", "arrow"), ("pandas", "pandas"), ("polars", "polars")])
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    Day(tmp_path, feed_of())
    recording = Recording.open(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "blackbox.journal.table", raising=False)
    monkeypatch.delitem(sys.modules, "blackbox.arrow", raising=False)
    make = {"pyarrow": recording.to_arrow, "pandas": recording.to_pandas, "polars": recording.to_polars}[library]
    with pytest.raises(ImportError, match=rf"this needs {library}: pip install 'blackbox-md\[{extra}\]'"):
        make()


@pytest.mark.parametrize(("codec", "module"), [(1, "lz4.block"), (2, "zstandard")])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_missing_codec_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int, module: str, indexed: bool
) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A", b"x"),), codec=codec), index=indexed)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JournalError, match=r"pip install 'blackbox-md\[compression\]'"):
        list(Recording.open(tmp_path).batches())


@pytest.mark.parametrize("name", list(codecs.CODECS))
@given(data=st.binary(max_size=300))
def test_what_is_packed_unpacks(name: str, data: bytes) -> None:
    packed = codecs.compress(name, data)
    body = codecs.decompress(codecs.CODECS[name], packed, len(data))
    assert body.tobytes() == data
    assert body.ctypes.data % 8 == 0
    with pytest.raises(JournalError, match="expected|unpack"):
        codecs.decompress(codecs.CODECS[name], packed, len(data) + 1)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(JournalError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        codecs.compress("gzip", b"")
    with pytest.raises(JournalError, match="the codec of a body was 3"):
        codecs.decompress(3, b"", 0)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_reader_takes_in_what_was_recorded_since(tmp_path: Path, indexed: bool) -> None:
    day = Day(tmp_path, feed_of(2))
    recording = Recording.open(tmp_path)
    assert list(recording.batches()) == []
    segments = [day.segment(0), day.segment(1)]
    puts = [many(1_500), many(1_500, 1)]
    for part in range(15):
        running = recording.batches()
        started = next(running, None) is not None
        for slice_id in range(2):
            if part == 8:
                segments[slice_id].write_index()
                segments[slice_id] = day.segment(slice_id)
            segment = segments[slice_id]
            segment.append(*puts[slice_id][100 * part : 100 * (part + 1)])
            if indexed and part % 3:
                segment.write_index(len(segment.entries()) - part % 2)
        recording.refresh()
        assert told(recording.batches()) == day.told()
        assert len(told(running)) + started == 200 * part
        for slice_id in range(2):
            found = [len(segment.entries) for segment in recording._slices[slice_id]]
            assert found == [len(segment.entries()) for segment in day.segments if segment.slice_id == slice_id]
    assert recording.damage == recording.verify() == []


def test_a_segment_grows_while_the_next_one_is_ready(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    puts = many(30)
    first, second = day.segment(), day.segment()
    first.append(*puts[:10])
    recording = Recording.open(tmp_path)
    first.append(*puts[10:15])
    with first.path.open("ab") as file:
        file.write(b"BREC")
    recording.refresh()
    assert told(recording.batches()) == day.told()
    assert (recording.damage, recording.summary().torn_bytes) == ([], 4)
    first.path.write_bytes(first.path.read_bytes()[:-4])
    first.append(*puts[15:20])
    second.append(*puts[20:])
    recording.refresh()
    assert told(recording.batches()) == day.told()
    assert recording.damage == recording.verify() == []


def test_a_block_that_is_half_there_is_not_read_until_it_is_whole(tmp_path: Path) -> None:
    segment = Day(tmp_path, feed_of()).put(0, *many(3, size=1), index=False)
    whole = segment.path.read_bytes()
    segment.path.write_bytes(b"")
    recording = Recording.open(tmp_path)
    for size in range(1, len(whole) + 1):
        with segment.path.open("ab") as file:
            file.write(whole[size - 1 : size])
        recording.refresh()
        stops = [64 * (size >= 64), *(stop for _, stop in segment.places if stop <= size)]
        assert len(told(recording.batches())) == len(stops) - 1
        assert recording.summary().torn_bytes == size - stops[-1]
    assert recording.damage == []


def test_a_summary_tells_how_much_is_there(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    rows = (Row(b"A", b"1", 50), Row(b"A", b"2", 30))
    puts = [Put(rows, 0, 5, 6, epoch=9, first_row=1), Put(rows, 2, 7, 8, epoch=9), Put(rows, 0, 9, 9, epoch=3, codec=2)]
    segment = day.put(0, *puts[:2])
    day.put(0, puts[2], index=False)
    summary = Recording.open(tmp_path).summary()
    body = len(puts[0].block(0)[1])
    assert (summary.messages, summary.blocks, summary.body_bytes) == (5, 3, 3 * body)
    assert (summary.first_ts_event, summary.last_ts_event) == (30, 50)
    assert (summary.first_ts_out, summary.last_ts_out) == (5, 9)
    assert (summary.epochs, summary.torn_bytes, summary.damage) == ((9, 3), 0, ())
    part, silent = summary.slices
    assert (silent.slice_id, silent.messages, silent.segments) == (1, 0, 0)
    assert (part.slice_id, part.messages, part.segments, part.epochs) == (0, 5, 2, (9, 3))
    assert part.file_bytes == segment.path.stat().st_size + day.segments[1].path.stat().st_size


def test_an_empty_recording_is_empty(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    day.put(0)
    recording = Recording.open(tmp_path)
    summary = recording.summary()
    assert (summary.messages, summary.blocks, summary.first_ts_out, summary.epochs) == (0, 0, None, ())
    assert recording.topics() == recording.gaps() == recording.verify() == list(recording.chunks()) == []
    assert recording.rate(4).counts.tolist() == [0] * 4
    assert len(recording.to_arrow()) == len(recording.to_pandas()) == len(recording.to_polars()) == 0


def test_the_rate_is_a_histogram_of_sending_times(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    day.put(0, *many(700))
    day.put(1, *many(300, 1))
    rate = Recording.open(tmp_path).rate(13)
    times = [message.ts_out for message in day.told()]
    assert rate.times[0] <= min(times) <= max(times) < rate.times[-1]
    assert rate.counts.tolist() == numpy.histogram(times, rate.times)[0].tolist()
    with pytest.raises(ValueError, match="bins were 0"):
        Recording.open(tmp_path).rate(0)


def ns(text: str) -> int:
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1_000) * 1_000_000


@pytest.mark.parametrize(
    ("given_time", "expected"),
    [
        (17, 17),
        (numpy.int64(17), 17),
        ("09:30", ns("2026-11-20T09:30-05:00")),
        ("09:30:01", ns("2026-11-20T09:30:01-05:00")),
        ("09:30:01.5", ns("2026-11-20T09:30:01.5-05:00")),
        ("09:30:01.000000007", ns("2026-11-20T09:30:01-05:00") + 7),
        ("20:00", ns("2026-11-19T20:00-05:00")),  # the session began at 18:00 on the evening before
        ("2026-11-20T09:30", ns("2026-11-20T09:30-05:00")),
        ("2026-11-20 09:30:00Z", ns("2026-11-20T09:30+00:00")),
        ("2026-11-20T09:30:00.25+01:00", ns("2026-11-20T09:30:00.25+01:00")),
        (datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.UTC), ns("2026-11-20T09:00+00:00")),
    ],
)
def test_a_time_can_be_said_in_several_ways(tmp_path: Path, given_time: Any, expected: int) -> None:
    Day(tmp_path, feed_of(time_zone="America/New_York", day_start="18:00"))
    assert Recording.open(tmp_path).time(given_time) == expected


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("noon", ValueError),
        ("25:00", ValueError),
        ("09:30.5", ValueError),
        ("09:30Z", ValueError),
        ("2026-13-01T00:00", ValueError),
        (datetime.datetime(2026, 11, 20), ValueError),  # noqa: DTZ001
        (1.5, TypeError),
        (True, TypeError),
    ],
)
def test_a_time_that_is_none_is_refused(tmp_path: Path, wrong: Any, error: type[Exception]) -> None:
    Day(tmp_path, feed_of())
    with pytest.raises(error, match="time was"):
        Recording.open(tmp_path).batches(start=wrong)


def test_wrong_arguments_are_refused_at_once(tmp_path: Path) -> None:
    Day(tmp_path, feed_of(2))
    recording = Recording.open(tmp_path)
    with pytest.raises(ValueError, match="slices had 2, expected 0 to 1"):
        recording.batches(slices=[0, 2])
    with pytest.raises(ValueError, match="by was 'time'"):
        recording.batches(by="time")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epoch was -1"):
        recording.chunks(epoch=-1)
    with pytest.raises(ConfigError, match="prefix"):
        recording.batches(b"\0H")


def test_wrong_paths_say_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="was not found"):
        Recording.open(tmp_path / "nothing")
    with pytest.raises(JournalError, match=r"it has no manifest\.json"):
        Recording.open(tmp_path)
    for date in ("2026-11-20", "2026-11-21"):
        Day(tmp_path / date, feed_of())
    with pytest.raises(JournalError, match="holds 2 days, expected one of them: 2026-11-20, 2026-11-21"):
        Recording.open(tmp_path)


def test_another_segment_than_expected_is_refused(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    first, second = day.put(0, *many(1)), day.put(1, *many(1, 1))
    good = first.path.read_bytes()
    for wrong, text in (
        (second.path.read_bytes(), "slice was 1, expected 0"),
        (b"X" + good[1:], "magic was b'XBOXJRNL', expected b'BBOXJRNL'"),
        (good[:8] + b"\2" + good[9:], "version was 2, expected 1"),
        (good[:12] + b"\3" + good[13:], "segment was 3, expected 0"),
    ):
        first.path.write_bytes(wrong)
        with pytest.raises(JournalError, match=f"{first.path}: {text}"):
            Recording.open(tmp_path)


def test_a_schema_that_is_not_here_leaves_plain_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Day(tmp_path, feed_of(schema="elsewhere")).put(0, Put((Row(b"A", b"x"),)))
    recording = Recording.open(tmp_path)
    assert "'elsewhere'" in caplog.text
    (batch,) = recording.batches()
    assert (recording.schema.name, batch.schema, batch.payload(0)) == ("raw", None, b"x")


def test_reading_a_large_recording_takes_little_memory(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    put = Put(tuple(Row(b"A", bytes(100_000)) for _ in range(10)))
    for _ in range(6):
        day.put(0, *([put] * 20))
    recording = Recording.open(tmp_path)
    list(recording.batches())
    before, highest = resident(), 0
    for batch in recording.batches():
        batch.payloads().sum()
        highest = max(highest, resident())
    assert sum(len(segment.memory) for segment in recording._slices[0]) > 110 << 20
    assert highest - before < 40 << 20


def resident() -> int:
    """Bytes of this process that are in memory, those of files too."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def test_a_time_of_day_is_one_of_the_day_that_the_messages_are_of(tmp_path: Path) -> None:
    market = ns("2017-04-25T14:30-04:00")
    feed = feed_of(time_zone="America/New_York")
    rows = tuple(Row(b"A", b"%d" % minute, market + minute * 60 * 10**9) for minute in range(60))
    sent = ns("2026-11-20T20:00-05:00")
    Day(tmp_path, feed).put(0, Put(rows, 0, sent, sent))
    recording = Recording.open(tmp_path)
    found = [message.payload for message in told(recording.batches(start="15:00", stop="15:02"))]
    assert found == [b"30", b"31"]
    assert recording.time("20:00", "ts_out") == sent
    assert recording.time("2026-11-20T20:00") == sent
