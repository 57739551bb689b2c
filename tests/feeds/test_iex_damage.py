"""IEX captures that are truncated, corrupt, or of another format: the position is reported."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blackbox_feeds.iex import DEEP10, Iex

from blackbox.errors import SourceError
from tests.feeds.build import ethernet, iex, iex_expected, iex_tp, messages_of, pcap, pcapng

DEEP_MESSAGES = [iex(kind, ns=k, symbol=f"S{k % 3}") for k, kind in enumerate(DEEP10.records)]


def source_of(path: Path, datagrams: Sequence[bytes]) -> Iex:
    path.write_bytes(pcap([ethernet(datagram) for datagram in datagrams]))
    return Iex(path)


def test_a_message_too_short_for_its_type_stops_and_is_located(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    source = source_of(path, [iex_tp(1, [iex("T"), iex("H")[:-1], iex("E")])])
    assert messages_of(source) == iex_expected([iex("T")])
    start = 24 + 16 + 42 + 40 + 2 + 38
    assert source.truncated == (
        f"{path}: no valid message starts at byte {start}: its length was 21, expected 22 or more for type H"
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            iex_tp(2, [iex("T")], payload_bytes=41),
            "its payload length was 41, expected 40 by its UDP",
        ),
        (iex_tp(2, [iex("T")], count=2), "its 2 messages do not fill its payload of 40 bytes"),
        (iex_tp(2, [iex("T")], count=0), "its 0 messages do not fill its payload of 40 bytes"),
    ],
)
def test_an_inconsistent_datagram_stops_and_is_located(tmp_path: Path, bad: bytes, words: str) -> None:
    path = tmp_path / "capture"
    good = iex_tp(1, [iex("E")])
    source = source_of(path, [good, bad, good])
    assert messages_of(source) == iex_expected([iex("E")])
    start = 24 + 2 * (16 + 42) + len(good)
    assert source.truncated == f"{path}: no valid IEX-TP datagram starts at byte {start}: {words}" + (
        " header" if "UDP" in words else ""
    )


def test_a_capture_without_iex_tp_is_one_clear_error(tmp_path: Path) -> None:
    source = source_of(tmp_path / "capture", [b"x" * 60])
    with pytest.raises(SourceError, match="no IEX-TP datagram was found"):
        messages_of(source)
    source = source_of(tmp_path / "capture", [iex_tp(1, [iex("T")], protocol=0x8005)])
    with pytest.raises(SourceError, match=r"protocol was 0x8005, expected 0x8003 \(iex_tops16\), 0x80"):
        messages_of(source)
    (tmp_path / "text").write_text("some text, not a capture at all")
    with pytest.raises(SourceError, match="expected those of a pcap or pcapng capture"):
        messages_of(Iex(tmp_path / "text"))
    with pytest.raises(
        SourceError, match="cannot be read: No such file or directory, expected a pcap or pcapng capture"
    ):
        messages_of(Iex(tmp_path / "none"))


@pytest.mark.parametrize(
    ("make", "packed"),
    [
        (pcap, False),
        (pcapng, True),
        pytest.param(pcap, True, marks=pytest.mark.long),
        pytest.param(pcapng, False, marks=pytest.mark.long),
    ],
)
def test_truncated_at_every_byte(tmp_path: Path, make: Any, packed: bool) -> None:
    path = tmp_path / "capture"
    datagrams = [iex_tp(1 + k, [message], send_time=k) for k, message in enumerate(DEEP_MESSAGES[:6])]
    expected = iex_expected(DEEP_MESSAGES[:6])
    packets = [ethernet(datagram) for datagram in datagrams]
    whole = make(packets)
    ends = {len(make(packets[:k])): k for k in range(7)}
    # A capture that ends properly before its first datagram does not identify its feed.
    empty = {24} if make is pcap else {28, len(make([]))}
    count = 0
    for size in range(len(whole) + 1):
        count = ends.get(size, count)
        path.write_bytes(gzip.compress(whole[:size]) if packed else whole[:size])
        source = Iex(path)
        if size in empty:
            with pytest.raises(SourceError, match="no IEX-TP datagram was found"):
                messages_of(source)
            continue
        assert messages_of(source) == expected[:count]
        if size in ends:
            assert source.truncated is None
        else:
            assert source.truncated is not None
            assert f"input ended at byte {size}" in source.truncated


def test_bit_flips_never_crash(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    datagrams = [iex_tp(1 + 3 * k, DEEP_MESSAGES[3 * k : 3 * k + 3], k) for k in range(4)]
    whole = pcap([ethernet(datagram) for datagram in datagrams])
    chance = random.Random(6)
    for _ in range(600):
        flipped = bytearray(whole)
        bit = chance.randrange(24 * 8, 8 * len(whole))
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert len(messages_of(Iex(path))) <= 12
