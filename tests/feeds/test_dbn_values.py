"""DBN values compared with Databento's own decoder: every field of all messages of shared and generated files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import blackbox_feeds.io.columns
import databento_dbn
import numpy
import pytest
from blackbox_feeds.dbn import SCHEMA, Dbn
from blackbox_feeds.dbn.records import SAME_IN_ALL_VERSIONS, TYPED, lengths_of
from blackbox_feeds.io.open_window import open_window
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from blackbox.errors import SourceError
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.feed.schema.schema import ABSENT
from tests.examples import examples, first_of
from tests.feeds.build import messages_of
from tests.feeds.dbn_reference import BARS, EVENTS, FLAGS, RECEIVED, SNAPSHOT, expected_messages, field_of, known_at
from tests.feeds.test_dbn import AS_IS, DAY_NS, START, metadata_of, record, source_of
from tests.feeds.test_window import read_all

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
FILES = sorted(
    (str(path.relative_to(SHARED)) for folder in ("data", "cases") for path in SHARED.glob(f"{folder}/dbn/*")),
    key=lambda name: ("20231225" in name, name),  # the longest last
)
UNDEFINED = (1 << 64) - 1
SECOND = 10**9


@pytest.fixture
def shared() -> Path:
    if not (SHARED / "cases").is_dir():
        pytest.skip("there are no shared cases")
    return SHARED


@pytest.mark.parametrize("name", first_of(FILES, keep=len(FILES) - 1))
def test_every_field_of_every_message_is_databentos(shared: Path, name: str) -> None:
    path = shared / name
    stream = read_all(open_window(path))
    expected = expected_messages(stream)
    source = Dbn(path)
    found = messages_of(source)[1:]
    assert source.truncated is None
    assert found == [(each.topic.encode(), each.ts_event, each.payload) for each in expected]
    for kind in {payload[1] for *_, payload in found}:
        dtype = SCHEMA.dtype(chr(kind))
        rows = [each for each in expected if each.payload[1] == kind]
        typed = numpy.frombuffer(b"".join(each.payload for each in rows), dtype)
        for field in dtype.names or ():
            if not field.startswith("_"):
                assert typed[field].tolist() == [field_of(each.record, field) for each in rows], field


# Times


def test_live_capture_has_the_day_of_its_first_record(shared: Path) -> None:
    source = Dbn(shared / "cases/dbn/live_capture.dbn.zst")
    head, first, *_ = messages_of(source)
    assert head[1] == first[1]
    assert source.date is None
    # A gateway repeats records of earlier days: they were received with the first one.
    days = {datetime.fromtimestamp(time // SECOND, UTC).date() for _, time, _ in messages_of(source)}
    assert days == {date(2023, 11, 21)}


def test_the_time_of_each_type_of_record(tmp_path: Path) -> None:
    """Bars are visible at their end; snapshots and records without a time of the venue when they were received."""
    happened, received = START - 5 * DAY_NS, START
    cases = [(quiet(record(rtype, ts_event=happened, ts_recv=received)), happened) for rtype in EVENTS]
    cases += [(quiet(record(rtype, ts_event=happened, ts_recv=received)), received) for rtype in RECEIVED]
    for rtype, place in FLAGS.items():
        flagged = bytearray(record(rtype, ts_event=happened, ts_recv=received))
        flagged[place] = SNAPSHOT
        cases.append((bytes(flagged), received))
    cases += [(record(rtype), START + BARS[rtype]) for rtype in BARS]
    for content, expected in cases:
        _, (_, time, payload) = messages_of(source_of(tmp_path / "a.dbn", metadata_of(schema=None) + content))
        assert time == expected == known_at(payload), content[1]
        assert payload == content


def test_old_bars_have_the_interval_of_their_file(tmp_path: Path) -> None:
    head = metadata_of(1, schema=databento_dbn.Schema.OHLCV_1M)
    assert messages_of(source_of(tmp_path / "a.dbn", head + record(0x11)))[1][1] == START + 60 * SECOND


def quiet(content: bytes) -> bytes:
    """Return a record without flags."""
    changed = bytearray(content)
    kind = TYPED.get(next(name for name, (rtype, _) in TYPED.items() if rtype == content[1]))
    fields: Any = kind[1].fields if kind else {}
    if "flags" in fields:
        changed[fields["flags"][1]] = 0
    return bytes(changed)


def merged(seconds: int, interval: int = 60) -> list[bytes]:
    """Return trades, one a second, and their bars as Databento merges files: bars at their start."""
    rtype = {1: 0x20, 60: 0x21, 3_600: 0x22}[interval]
    found = []
    for second in range(seconds):
        if second % interval == 0:
            found.append(record(rtype, ts_event=START + second * SECOND))
        found.append(quiet(record(0x00, ts_event=START + second * SECOND + 7)))
    return found


@pytest.mark.parametrize(("chunk_messages", "interval"), [(1, 60), (7, 1), (100, 3_600), (131_072, 60)])
def test_bars_in_a_merged_file_come_after_the_trades_of_their_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_messages: int, interval: int
) -> None:
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", chunk_messages)
    records = merged(3_700 if interval == 3_600 else 200, interval)
    found = messages_of(source_of(tmp_path / "a.dbn", metadata_of(schema=None) + b"".join(records)))[1:]
    assert sorted(payload for *_, payload in found) == sorted(records)
    last = 0
    for topic, time, _ in found:
        assert time >= last
        last = time
        assert topic in (b"7.trades", b"7.ohlcv-1s", b"7.ohlcv-1m", b"7.ohlcv-1h")


# Names


def mapping(
    symbol: bytes | str,
    instrument: int = 7,
    requested: bytes | str | None = None,
    version: int = 3,
    time: int = START,
    start: int = UNDEFINED,
    end: int = UNDEFINED,
) -> bytes:
    """Return a symbol-mapping record."""
    out = symbol.encode() if isinstance(symbol, str) else symbol
    asked = out if requested is None else requested.encode() if isinstance(requested, str) else requested
    if version == 1:
        return struct.pack("<BBHIQ22s22s4xQQ", 20, 0x16, 0, instrument, time, asked, out, start, end)
    head = struct.pack("<BBHIQ", 44, 0x16, 0, instrument, time)
    return head + struct.pack("<B71sB71sQQ", 1, asked, 1, out, start, end)


def topics_of(source: Dbn) -> list[str]:
    return [topic.decode() for topic, *_ in messages_of(source)[1:]]


@pytest.mark.parametrize(("version", "chunk_messages"), [(1, 131_072), (2, 1), (3, 2)])
def test_name_is_the_one_in_force_at_the_place_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, chunk_messages: int
) -> None:
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", chunk_messages)
    records = [
        record(),
        mapping("ESZ4", version=version),
        record(),
        record(instrument=8),
        mapping("ESH5", 8, requested="ES.c.0", version=version),
        record(instrument=8),
        mapping("ESH5", version=version),
        record(),
        mapping("8", 8, requested="ES.v.0", version=version),
        record(instrument=8),
        mapping("", 8, requested="", version=version),
        record(instrument=8),
        mapping("ESZ4", version=version),
        record(),
    ]
    source = source_of(tmp_path / "a.dbn", metadata_of(version, schema=None) + b"".join(records))
    names = ["7", "ESZ4", "ESZ4", "8", "ESH5", "ESH5", "ESH5", "ESH5", "ES.v.0", "ES.v.0", "8", "8", "ESZ4", "ESZ4"]
    assert [topic.rpartition(".")[0] for topic in topics_of(source)] == names


def names_of(path: Path, *records: bytes) -> list[str]:
    """Return the symbols of a stream's records except mappings."""
    source = source_of(path / "a.dbn", metadata_of(schema=None) + b"".join(records))
    return [
        name for name, _, kind in (topic.rpartition(".") for topic in topics_of(source)) if kind != "symbol-mapping"
    ]


@pytest.mark.parametrize("is_live", [True, False])
def test_two_symbols_of_one_instrument_are_refused_naming_both(tmp_path: Path, is_live: bool) -> None:
    """The symbols come from symbol-mapping records, or from the metadata."""
    days = date(2024, 1, 1), date(2024, 1, 3)
    words = r"a.dbn: instrument 7 has two symbols at the same time, 'ES.c.0' and 'ES.v.0': request one"
    for names in (["ES.c.0", "ES.v.0"], ["ES.v.0", "ES.c.0"]):
        head = metadata_of(mappings={name: [(*days, "7")] for name in names})
        if is_live:
            told = [mapping("7", requested=name) for name in (*names, names[0])]
            head = metadata_of(schema=None) + b"".join(told)
        source = source_of(tmp_path / "a.dbn", head + record())
        with pytest.raises(SourceError, match=words):
            messages_of(source)
        kinds = {b"mbo", b"metadata", *([b"symbol-mapping"] if is_live else [])}
        assert {topic for topic, *_ in messages_of(Dbn(tmp_path / "a.dbn", topic="{type}"))} == kinds
        # Records of other instruments have one symbol each.
        assert topics_of(source_of(tmp_path / "a.dbn", head + record(instrument=8)))[-1] == "8.mbo"
    one_venue_name = [mapping("ESM4", 5, requested=name) for name in ("ES.c.0", "ES.v.0")]
    assert names_of(tmp_path, *one_venue_name, record(instrument=5)) == ["ESM4"]


def test_roll_at_a_time_counts_by_the_time_of_the_records(tmp_path: Path) -> None:
    old = mapping("5", 5, requested="ES.c.0", start=START - 100, end=START + 500)
    new = mapping("6", 6, requested="ES.c.0", start=START + 10, end=START + 900)
    records = [record(instrument=each, ts_event=START + at) for at in (9, 10, 900) for each in (5, 6)]
    expected = ["ES.c.0", "6", "5", "ES.c.0", "5", "6"]
    assert names_of(tmp_path, old, new, *records) == expected
    again = mapping("5", 5, requested="ES.c.0", start=START - 100, end=START + 10)  # the same, with a new end
    assert names_of(tmp_path, old, again, new, *records) == expected
    assert names_of(tmp_path, old, again, *records) == ["ES.c.0", "6", "5", "6", "5", "6"]


@pytest.mark.parametrize(
    ("name", "why"),
    [(b"E\xff", "it is not UTF-8"), (b"#system", "it is reserved for the whole market")],
)
def test_an_unusable_symbol_is_refused_by_name(tmp_path: Path, name: bytes, why: str) -> None:
    source = source_of(tmp_path / "a.dbn", metadata_of(schema=None) + mapping(name) + record())
    with pytest.raises(
        SourceError, match=f"a.dbn: the symbol {name!r} cannot be that of a topic: {why}".replace("\\", ".")
    ):
        messages_of(source)


def test_an_instrument_number_must_not_equal_another_symbol(tmp_path: Path) -> None:
    mappings = {"118": [(date(2024, 1, 1), date(2024, 1, 3), "7")]}
    for records in (record() + record(instrument=118), record(instrument=118) + record()):
        source = source_of(tmp_path / "a.dbn", metadata_of(mappings=mappings) + records)
        with pytest.raises(SourceError, match="the symbol b'118' cannot be that of a topic: another instrument"):
            messages_of(source)


symbols = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: len(text.encode()) <= 70 and text != "#system" and not text.isdecimal()
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(symbols, symbols)
@example("ESM4 P5230", "币安人生")
def test_symbol_to_topic_to_symbol_is_the_identity(tmp_path: Path, first: str, second: str) -> None:
    days = date(2024, 1, 1), date(2024, 1, 3)
    # Databento's own encoder accepts only ASCII, its decoder also UTF-8.
    stand_in = "X" * len(first.encode())
    head = metadata_of(schema=None, symbols=[], mappings={stand_in: [(*days, "9")]})
    head = head.replace(stand_in.encode().ljust(71, b"\0"), first.encode().ljust(71, b"\0"))
    source = source_of(tmp_path / "a.dbn", head + record(instrument=9) + mapping(second) + record())
    topics = [topic for topic, *_ in messages_of(source)[1:]]
    rule = SymbolRule()
    assert [rule.symbol_of(topic).decode() for topic in topics] == [first, second, second]
    assert len(set(topics)) == (3 if first != second else 2)


# Fields


def test_absent_values_are_those_of_databentos_defaults() -> None:
    largest = {field: (name, SCHEMA.dtype(name)[field]) for name in TYPED for field in SCHEMA.dtype(name).names or ()}
    for field, (_, dtype) in largest.items():
        absent = dict(dtype.metadata or {}).get(ABSENT)
        assert absent in (None, numpy.iinfo(dtype).max if dtype.kind in "iu" else None), field
    known = databento_dbn.UNDEF_PRICE, databento_dbn.UNDEF_TIMESTAMP, databento_dbn.UNDEF_ORDER_SIZE
    assert known == (2**63 - 1, 2**64 - 1, 2**32 - 1)
    assert SCHEMA.dtype("statistics")["quantity"].metadata == {ABSENT: databento_dbn.UNDEF_STAT_QUANTITY}


OLD = [(version, name) for version in (1, 2) for name, (rtype, dtype) in TYPED.items()
       if lengths_of(version)[rtype] != dtype.itemsize]  # fmt: skip


@pytest.mark.parametrize(("version", "name"), OLD)
def test_records_of_old_versions_have_the_fields_of_the_newest(tmp_path: Path, version: int, name: str) -> None:
    rtype = TYPED[name][0]
    size = lengths_of(version)[rtype]
    for ts_out in (None, START):
        records = [record(rtype, size=size, ts_out=ts_out), quiet(record(ts_out=ts_out))]
        if name == "symbol-mapping":
            records[0] = records[0][:1] + mapping("ES", version=version)[1:] + records[0][size:]
        for order in (records[::-1], records * 3):
            stream = metadata_of(version, schema=None, ts_out=ts_out is not None) + b"".join(order)
            source = source_of(tmp_path / "a.dbn", stream)
            found = messages_of(source)
            assert [payload for *_, payload in found[1:]] == [each.payload for each in expected_messages(stream)]
            assert source.truncated is None
            assert databento_dbn.Metadata.decode(found[0][2], upgrade_policy=AS_IS).version == 3


@pytest.mark.parametrize("version", [1, 2])
def test_other_files_keep_their_bytes(tmp_path: Path, version: int) -> None:
    for name in SAME_IN_ALL_VERSIONS & {str(each) for each in databento_dbn.Schema.variants()}:
        head = metadata_of(version, schema=databento_dbn.Schema.from_str(name))
        records = [quiet(record(TYPED[name][0], ts_event=START + k)) for k in range(5)]
        found = messages_of(source_of(tmp_path / "a.dbn", head + b"".join(records)))
        assert [payload for *_, payload in found] == [head, *records], name


def test_flags_of_quality_are_counted(tmp_path: Path) -> None:
    def flagged(rtype: int, place: int, flags: int) -> bytes:
        changed = bytearray(record(rtype))
        changed[place] = flags
        return bytes(changed)

    records = [
        flagged(0xA0, 36, 8),
        flagged(0xA0, 36, 40),
        flagged(0x01, 30, 4),
        flagged(0xC3, 30, 12),
        quiet(record()),
    ]
    source = source_of(tmp_path / "a.dbn", metadata_of(schema=None) + b"".join(records))
    for _ in range(2):
        messages_of(source)
        first, second = source.notes
        assert first.startswith("records without an exact ts_recv (F_BAD_TS_RECV): 3, 1 of them in snapshots ")
        assert second == "records after lost messages of the venue (F_MAYBE_BAD_BOOK): 2"


# Any stream


times = st.one_of(
    st.integers(START - 3 * DAY_NS, START + 3 * DAY_NS), st.sampled_from([0, UNDEFINED, START, START + DAY_NS])
)


@st.composite
def any_records(draw: Callable[..., Any], version: int) -> bytes:
    if draw(st.integers(0, 4)) == 0:
        name = draw(st.sampled_from(["ESZ4", "ESM4 P5230", "É", ""]))
        start, end = draw(times), draw(times)
        return mapping(name, draw(st.integers(7, 9)), version=version, time=draw(times), start=start, end=end)
    name = draw(st.sampled_from(sorted(TYPED.keys() - {"symbol-mapping"})))
    rtype = TYPED[name][0]
    content = bytearray(record(rtype, draw(st.integers(7, 9)), size=lengths_of(version)[rtype]))
    struct.pack_into("<Q", content, 8, draw(times))
    received = {**EVENTS, **RECEIVED}.get(rtype)
    if received is not None:
        struct.pack_into("<Q", content, received, draw(times))
    fields: Any = TYPED[name][1].fields
    if "flags" in fields:
        content[fields["flags"][1]] = draw(st.sampled_from([0, 32, 128, 8]))
    return bytes(content)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_stream_agrees_with_databentos_decoder(tmp_path: Path, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([1, 2, 3]))
    records = data.draw(st.lists(any_records(version), max_size=30))
    days = date(2023, 12, 30), date(2024, 1, 2)
    head = metadata_of(version, schema=None, mappings={"A B": [(*days, "8")]})
    stream = head + b"".join(records)
    expected = expected_messages(stream)
    found = messages_of(source_of(tmp_path / "a.dbn", stream))[1:]
    key = [(each.topic.encode(), each.ts_event, each.payload) for each in expected]
    assert sorted(found) == sorted(key)
    # All but bars are in file order.
    assert [each for each in found if each[2][1] not in BARS] == [each for each in key if each[2][1] not in BARS]
    clock = 0
    for _, time, payload in found:
        known = known_at(payload)
        clock = max(clock, time)
        assert 0 <= time < 1 << 63
        assert known is None or known <= time <= clock
