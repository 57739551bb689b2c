"""IEX captures: both feeds, all types, sequence resets, and allowed extensions of the specification."""

from __future__ import annotations

import gzip
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import blackbox_feeds.io.columns
import numpy
import pyarrow
import pytest
from blackbox_feeds.iex import DEEP10, PRICE_SCALE, TOPS16, Iex
from blackbox_feeds.io.statistics import InputStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.errors import ConfigError
from tests.examples import examples
from tests.feeds.build import (
    DEEP,
    IEX_LENGTHS,
    TOPS,
    ethernet,
    iex,
    iex_expected,
    iex_tp,
    messages_of,
    pcap,
    pcapng,
)

DEEP_MESSAGES = [iex(kind, ns=k, symbol=f"S{k % 3}") for k, kind in enumerate(DEEP10.records)]


def source_of(path: Path, datagrams: Sequence[bytes], **options: Any) -> Iex:
    path.write_bytes(pcap([ethernet(datagram) for datagram in datagrams]))
    return Iex(path, **options)


TOPS_MESSAGES = [iex(kind, ns=k, symbol=f"S{k % 3}") for k, kind in enumerate(TOPS16.records)]


@pytest.mark.parametrize(
    ("name", "schema", "symbols", "counts"),
    [
        (
            "goiex_DEEP10.pcap.gz", DEEP10, 7_802,
            {"S": 44, "H": 93_638, "O": 93_638, "P": 93_636, "5": 14_627, "8": 12_941, "T": 83_343,
             "E": 59, "B": 73},
        ),
        (
            "goiex_TOPS16.pcapng.gz", TOPS16, 7_799,
            {"S": 6, "P": 7_802, "O": 7_801, "H": 7_803, "Q": 27_217, "D": 10, "T": 6_390,
             "A": 642, "B": 3},
        ),
    ],
)  # fmt: skip
def test_real_capture_has_its_counts_by_type(
    shared_data: Path, name: str, schema: Any, symbols: int, counts: dict[str, int]
) -> None:
    source = Iex(shared_data / "iex" / name)
    assert source.schema is schema
    types: Counter[bytes] = Counter()
    topics: tuple[bytes, ...] = ()
    total = 0
    for chunk in source.chunks():
        topics = chunk.topics
        per_topic = numpy.bincount(chunk.topic_index, minlength=len(topics))
        for topic, count in zip(topics, per_topic.tolist(), strict=True):
            types[topic[-1:]] += count
        first = chunk.payloads[chunk.starts]
        assert all(bytes([byte]) in types for byte in numpy.unique(first))
        total += len(chunk.starts)
    assert {kind.decode(): count for kind, count in types.items()} == counts
    assert total == sum(counts.values())
    assert len({topic[:-2] for topic in topics} - {b"#system"}) == symbols


def test_a_real_capture_reports_its_cut_end_and_restart(shared_data: Path) -> None:
    path = shared_data / "iex/goiex_DEEP10.pcap.gz"
    source = Iex(path)
    assert sum(len(chunk.starts) for chunk in source.chunks()) == 391_999
    assert source.truncated == (
        f"{path}: input ended at byte 22196224 inside the pcap record that starts at byte 22195748"
    )
    assert source.notes == ("sequence restarts inside one session: 11",)
    assert source.statistics() == InputStatistics(packets=121_314, datagrams=121_314, sessions=1, resets=11)


def test_real_quotes_read_as_records(shared_data: Path) -> None:
    source = Iex(shared_data / "iex/goiex_TOPS16.pcapng.gz")
    quotes = b"".join(payload for topic, _, payload in messages_of(source) if topic[-1:] == b"Q")
    records = numpy.frombuffer(quotes, source.schema.dtype("Q"))
    assert len(records) == 27_217
    assert set(records["message_type"]) == {b"Q"}
    both = records[(records["bid_price"] > 0) & (records["ask_price"] > 0)]
    assert (both["bid_price"] < both["ask_price"]).mean() > 0.99
    assert 1 < numpy.median(both["bid_price"]) / PRICE_SCALE < 1_000


def test_record_sizes_are_the_message_lengths() -> None:
    for schema in (TOPS16, DEEP10):
        for kind, dtype in schema.records.items():
            assert dtype.itemsize == IEX_LENGTHS[kind]
    assert set(TOPS16.records) == set("SDHIOPQTXBA")
    assert set(DEEP10.records) == set("SDHIOPE85TXBA")


def test_auction_message_reads_back() -> None:
    fields = (b"A", b"C", 5, b"ZVZZT   ", 1, -2, 3, 4, b"B", 1, 1_493_150_400, 6, 7, 8, 9)
    message = struct.pack("<ccq8sIqqIcBIqqqq", *fields)
    assert numpy.frombuffer(message, TOPS16.dtype("A"))[0].tolist() == (
        *fields[:3], b"ZVZZT   ", *fields[4:],
    )  # fmt: skip
    arrow = TOPS16.arrow("A")
    assert arrow.field("timestamp").type == pyarrow.timestamp("ns", tz="UTC")
    assert arrow.field("scheduled_auction_time").type == pyarrow.timestamp("s", tz="UTC")
    assert arrow.field("reference_price").type == pyarrow.int64()
    assert arrow.field("reference_price").metadata == {b"decimals": b"4"}


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("protocol", "schema", "messages"),
    [(DEEP, DEEP10, DEEP_MESSAGES), (TOPS, TOPS16, TOPS_MESSAGES)],
)
def test_every_type_reads_back(
    tmp_path: Path, make: Any, packed: bool, protocol: int, schema: Any, messages: list[bytes]
) -> None:
    path = tmp_path / "capture"
    datagrams = [
        iex_tp(1, [], protocol=protocol),
        iex_tp(1, messages[:4], protocol=protocol),
        iex_tp(5, messages[4:], protocol=protocol),
    ]
    data = make([ethernet(datagram) for datagram in datagrams])
    path.write_bytes(gzip.compress(data) if packed else data)
    source = Iex(path)
    assert source.schema is schema
    assert messages_of(source) == iex_expected(messages)
    assert source.truncated is None
    assert source.notes == ()


def test_unknown_types_and_longer_messages_follow_the_specification(
    tmp_path: Path,
) -> None:
    messages = [iex("T"), b"Z" + b"\0" * 30, b"", iex("H", extra=b"new field"), iex("E")]
    source = source_of(tmp_path / "capture", [iex_tp(1, messages)])
    assert messages_of(source) == iex_expected([iex("T"), iex("H"), iex("E")])
    assert source.truncated is None
    assert source.notes == (
        "messages skipped because their type is unknown ('Z' 1, '' 1): 2",
        "messages cut to the specified length: 1",
    )


def test_unusable_symbols_are_rejected_and_counted(tmp_path: Path) -> None:
    messages = [iex("T", symbol=symbol) for symbol in ("A", "A\xff", "A B", "#1", "\x7f", "")]
    source = source_of(tmp_path / "capture", [iex_tp(1, messages)])
    assert [topic for topic, _, _ in messages_of(source)] == [b"A.T", b"A B.T", b"#0.T"]
    assert source.notes == ("messages skipped because their symbol cannot be one (b'A\\xff      ' first): 3",)


def test_a_gap_is_where_the_numbers_jump(tmp_path: Path) -> None:
    datagrams = [iex_tp(sequence, [iex("T")] * 2) for sequence in (1, 3, 8, 10, 5)]
    source = source_of(tmp_path / "capture", [*datagrams, iex_tp(14, [])])
    (chunk,) = source.chunks()
    assert len(chunk.starts) == 10
    assert chunk.gaps == ((4, 1), (10, 2))  # 7 and 12, 13
    assert source.notes == (
        "sequence gaps: 2",
        "messages that never came: 3",
        "messages that came late, after a gap: 2",
    )


def test_a_type_of_the_other_feed_is_unknown(tmp_path: Path) -> None:
    source = source_of(tmp_path / "capture", [iex_tp(1, [iex("Q"), iex("8")])])
    assert [payload[:1] for _, _, payload in messages_of(source)] == [b"8"]
    assert source.statistics().unknown == 1


def test_other_traffic_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    datagrams = [
        b"x",
        iex_tp(1, [iex("T")], protocol=0x8005),
        iex_tp(1, [iex("T")]),
        iex_tp(1, [iex("T")], protocol=TOPS),
        b"y" * 50,
    ]
    source = source_of(path, datagrams)
    assert source.schema is DEEP10
    assert messages_of(source) == iex_expected([iex("T")])
    assert source.notes == ("datagrams skipped because they were of another protocol: 4",)


def test_duplicates_gaps_resets_and_late_messages(tmp_path: Path) -> None:
    def named(name: str) -> bytes:
        return iex("T", symbol=name)

    datagrams = [
        iex_tp(1, [named("A"), named("B")], send_time=10),
        iex_tp(1, [named("A"), named("B")], send_time=10),
        iex_tp(5, [named("E")], send_time=30),
        iex_tp(3, [named("C"), named("D")], send_time=20),
        iex_tp(1, [], send_time=40),
        iex_tp(1, [named("F")], send_time=50),
        iex_tp(1, [named("G")], send_time=5, session=8),
        iex_tp(9, [], send_time=60, session=8),
    ]
    source = source_of(tmp_path / "capture", datagrams)
    assert [topic for topic, _, _ in messages_of(source)] == [
        b"A.T", b"B.T", b"E.T", b"C.T", b"D.T", b"F.T", b"G.T",
    ]  # fmt: skip
    assert source.statistics() == InputStatistics(
        packets=8, datagrams=8, sessions=2, resets=1, gaps=2, missing=7, late=2, duplicates=2
    )


@pytest.mark.parametrize(
    ("template", "topics"),
    [
        ("{type}.{symbol}", [b"T.A", b"E.A", b"S.#system", b"T.#0"]),
        ("{symbol}", [b"A", b"A", b"#system", b"#0"]),
        ("{type}", [b"T", b"E", b"S", b"T"]),
    ],
)
def test_topic_template(tmp_path: Path, template: str, topics: list[bytes]) -> None:
    messages = [iex("T", symbol="A"), iex("E", symbol="A"), iex("S"), iex("T", symbol="")]
    source = source_of(tmp_path / "capture", [iex_tp(1, messages)], topic=template)
    assert [topic for topic, _, _ in messages_of(source)] == topics


def test_there_is_no_locate_in_a_template() -> None:
    with pytest.raises(ConfigError, match=r"expected text with \{symbol\}, \{type\}$"):
        Iex("capture", topic="{locate}")


def test_port(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    here, there = iex_tp(1, [iex("T")]), iex_tp(1, [iex("Q")], protocol=TOPS)
    path.write_bytes(pcap([ethernet(there, port=10), ethernet(here, port=20)]))
    assert Iex(path).schema is TOPS16
    assert Iex(path, port=20).schema is DEEP10
    assert len(messages_of(Iex(path, port=20))) == 1


def test_chunks_of_any_size_and_more_topics_than_the_first_table_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [iex("H", symbol=f"S{k}") for k in range(4_000)]
    datagrams = [iex_tp(1 + k, messages[k : k + 40]) for k in range(0, len(messages), 40)]
    source = source_of(tmp_path / "capture", datagrams)
    expected = iex_expected(messages)
    assert messages_of(source) == expected
    assert messages_of(source) == expected
    monkeypatch.undo()
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 50)
    assert messages_of(source) == expected
    assert [len(chunk.starts) for chunk in source.chunks()] == [40] * 100


IEX_MESSAGES = st.builds(
    iex,
    st.sampled_from(list(DEEP10.records)),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["A", "AAPL", "", "BRK.A", "ZZZZZZZZ"]),
    st.sampled_from([b"", b"more"]),
)


@settings(max_examples=examples(100))
@given(st.lists(st.lists(IEX_MESSAGES, max_size=8), min_size=1, max_size=12))
def test_agrees_with_the_reference(tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]]) -> None:
    datagrams, sequence = [], 1
    for group in groups:
        datagrams.append(iex_tp(sequence, group))
        sequence += len(group)
    path = tmp_path_factory.getbasetemp() / "reference.pcap"
    source = source_of(path, datagrams)
    assert messages_of(source) == iex_expected([message for group in groups for message in group])
    assert source.truncated is None
