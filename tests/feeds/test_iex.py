"""IEX captures: both feeds, all types, sequence resets, allowed extensions of the specification, and damage."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import blackbox_feeds.io.columns
import pyarrow
import pytest
from blackbox_feeds.iex import DEEP10, TOPS16, Iex
from blackbox_feeds.io.statistics import InputStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.errors import SourceError
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


def source_of(path: Path, datagrams: Sequence[bytes], **options: Any) -> Iex:
    path.write_bytes(pcap([ethernet(datagram) for datagram in datagrams]))
    return Iex(path, **options)


def topics_of(source: Iex) -> list[bytes]:
    return [topic for topic, _, _ in messages_of(source)]


def test_record_layouts() -> None:
    for schema, types in ((TOPS16, "SDHIOPQTXBA"), (DEEP10, "SDHIOPE85TXBA")):
        assert {kind: dtype.itemsize for kind, dtype in schema.records.items()} == {k: IEX_LENGTHS[k] for k in types}
    arrow = TOPS16.arrow("A")
    assert arrow.field("timestamp").type == pyarrow.timestamp("ns", tz="UTC")
    assert arrow.field("scheduled_auction_time").type == pyarrow.timestamp("s", tz="UTC")
    assert arrow.field("reference_price").metadata == {b"decimals": b"4"}
    assert [TOPS16.arrow("Q").field(f"{side}_price").metadata[b"absent"] for side in ("bid", "ask")] == [b"0", b"0"]


@pytest.mark.parametrize(("make", "protocol", "schema"), [(pcap, DEEP, DEEP10), (pcapng, TOPS, TOPS16)])
def test_every_type_reads_back(tmp_path: Path, make: Any, protocol: int, schema: Any) -> None:
    messages = [iex(kind, ns=k, symbol=f"S{k % 3}") for k, kind in enumerate(schema.records)]
    groups = [(1, messages[:0]), (1, messages[:4]), (5, messages[4:])]
    path = tmp_path / "capture"
    path.write_bytes(gzip.compress(make([ethernet(iex_tp(*group, protocol=protocol)) for group in groups])))
    source = Iex(path)
    assert source.schema is schema
    assert messages_of(source) == iex_expected(messages)
    assert (source.truncated, source.notes) == (None, ())


def test_messages_outside_the_specification_are_skipped_or_cut(tmp_path: Path) -> None:
    odd = [b"Z" + b"\0" * 30, b"", iex("Q"), iex("H", extra=b"new field")]
    symbols = ["A", "A\xff", "A B", "#1", "\x7f", "", "\1\0\0\0\0\0\0\0"]
    source = source_of(tmp_path / "capture", [iex_tp(1, [*odd, *(iex("T", symbol=each) for each in symbols)])])
    assert messages_of(source) == iex_expected([iex("H"), *(iex("T", symbol=each) for each in ("A", "A B", ""))])
    assert source.truncated is None
    assert source.notes == (
        "messages skipped because their type is unknown ('Q' 1, 'Z' 1, '' 1): 3",
        "messages cut to the specified length: 1",
        "messages skipped because their symbol cannot be one (b'A\\xff      ' first): 4",
    )


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


def test_other_traffic_is_skipped_and_counted(tmp_path: Path) -> None:
    others = [iex_tp(1, [iex("T")], protocol=protocol) for protocol in (0x8005, TOPS)]
    source = source_of(tmp_path / "capture", [b"x", others[0], iex_tp(1, [iex("T")]), others[1], b"y" * 50])
    assert source.schema is DEEP10
    assert messages_of(source) == iex_expected([iex("T")])
    assert source.notes == ("datagrams skipped because they were of another protocol: 4",)
    here, there = iex_tp(1, [iex("T")]), iex_tp(1, [iex("Q")], protocol=TOPS)
    source.path.write_bytes(pcap([ethernet(there, port=10), ethernet(here, port=20)]))
    assert Iex(source.path).schema is TOPS16
    assert Iex(source.path, port=20).schema is DEEP10
    assert topics_of(Iex(source.path, port=20)) == [b"AAPL.T"]


def test_duplicates_gaps_resets_and_late_messages(tmp_path: Path) -> None:
    def named(*names: str) -> list[bytes]:
        return [iex("T", symbol=name) for name in names]

    datagrams = [
        iex_tp(1, named("A", "B"), send_time=10),
        iex_tp(1, named("A", "B"), send_time=10),
        iex_tp(5, named("E"), send_time=30),
        iex_tp(3, named("C", "D"), send_time=20),
        iex_tp(1, [], send_time=40),
        iex_tp(1, named("F"), send_time=50),
        iex_tp(1, named("G"), send_time=5, session=8),
        iex_tp(9, [], send_time=60, session=8),
    ]
    source = source_of(tmp_path / "capture", datagrams, topic="{type}/{symbol}")
    assert topics_of(source) == [b"T/A", b"T/B", b"T/E", b"T/C", b"T/D", b"T/F", b"T/G"]
    assert source.statistics() == InputStatistics(
        packets=8, datagrams=8, sessions=2, resets=1, gaps=2, missing=7, late=2, duplicates=2
    )
    assert source.notes[0] == "sequence restarts inside one session: 1"


def test_chunks_of_any_size_and_more_topics_than_the_first_table_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [iex("H", symbol=f"S{k}") for k in range(4_000)]
    datagrams = [iex_tp(1 + k, messages[k : k + 40]) for k in range(0, len(messages), 40)]
    source = source_of(tmp_path / "capture", datagrams)
    expected = iex_expected(messages)
    assert messages_of(source) == messages_of(source) == expected
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
    source = source_of(tmp_path_factory.getbasetemp() / "reference.pcap", datagrams)
    assert messages_of(source) == iex_expected([message for group in groups for message in group])
    assert source.truncated is None


# Damage

GOOD = iex_tp(1, [iex("E")])


@pytest.mark.parametrize(
    ("bad", "before", "words"),
    [
        ([iex("T"), iex("H")[:-1], iex("E")], [iex("T")], "its length was 21, expected 22 or more for type H"),
        ({"payload_bytes": 41}, [], "its payload length was 41, expected 40 by its UDP header"),
        ({"count": 2}, [], "its 2 messages do not fill its payload of 40 bytes"),
        ({"count": 0}, [], "its 0 messages do not fill its payload of 40 bytes"),
    ],
)
def test_an_inconsistent_datagram_stops_and_is_located(
    tmp_path: Path, bad: Any, before: list[bytes], words: str
) -> None:
    is_message = isinstance(bad, list)
    datagram = iex_tp(2, bad) if is_message else iex_tp(2, [iex("T")], **bad)
    source = source_of(tmp_path / "capture", [GOOD, datagram, GOOD])
    assert messages_of(source) == iex_expected([iex("E"), *before])
    start = 24 + 2 * (16 + 42) + len(GOOD) + (40 + 2 + 38 if is_message else 0)
    noun = "message" if is_message else "IEX-TP datagram"
    assert source.truncated == f"{source.path}: no valid {noun} starts at byte {start}: {words}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pcap([]), "no IEX-TP datagram was found"),
        (pcapng([]), "no IEX-TP datagram was found"),
        (pcap([ethernet(b"x" * 60)]), "no IEX-TP datagram was found"),
        (
            pcap([ethernet(iex_tp(1, [iex("T")], protocol=0x8005))]),
            r"protocol was 0x8005, expected 0x8003 \(iex_tops16\), 0x80",
        ),
        (b"some text, not a capture at all", "expected those of a pcap or pcapng capture"),
    ],
)
def test_a_capture_without_iex_tp_is_one_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "capture").write_bytes(content)
    with pytest.raises(SourceError, match=words):
        messages_of(Iex(tmp_path / "capture"))


def test_messages_before_the_cut_end_of_a_capture_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    packets = [ethernet(iex_tp(1 + k, [iex("T", ns=k)], send_time=k)) for k in range(3)]
    whole = pcap(packets)
    for size in (len(whole) - 1, len(pcap(packets[:2])) + 1):
        path.write_bytes(gzip.compress(whole[:size]))
        source = Iex(path)
        assert messages_of(source) == iex_expected([iex("T", ns=k) for k in range(2)])
        assert f"input ended at byte {size}" in (source.truncated or "")
