"""ITCH in MoldUDP64 in captures: every framing gives the messages, and losses are told."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import blackbox_feeds.io.columns
import pytest
from blackbox_feeds.io.statistics import InputStatistics
from blackbox_feeds.itch50 import Itch50

from blackbox.errors import ConfigError
from tests.feeds.build import (
    ITCH_LENGTHS,
    ethernet,
    framed,
    itch,
    messages_of,
    mold,
    pcap,
    pcapng,
)
from tests.feeds.reference import decode_itch

DAY = "2019-12-30"
MESSAGES = [itch(kind, locate=1 + k % 3, ns=k) for k, kind in enumerate(ITCH_LENGTHS)]
EXPECTED = decode_itch(framed(MESSAGES), DAY, "{symbol}.{type}")[0]


def datagrams_of(messages: Sequence[bytes], sizes: Sequence[int]) -> list[bytes]:
    """The messages in datagrams of the given sizes."""
    out, at = [], 0
    for size in sizes:
        out.append(mold(1 + at, messages[at : at + size]))
        at += size
    assert at == len(messages)
    return out


SIZES = [1, 3, 0, 7, 2, 0, 10]
DATAGRAMS = datagrams_of(MESSAGES, SIZES)


def source_of(path: Path, datagrams: Sequence[bytes], make: Any = pcap, **options: Any) -> Itch50:
    path.write_bytes(make([ethernet(datagram) for datagram in datagrams]))
    return Itch50(path, DAY, **options)


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("packed", [False, True])
def test_messages_of_a_capture(tmp_path: Path, make: Any, packed: bool) -> None:
    path = tmp_path / "capture"
    data = make([ethernet(datagram) for datagram in DATAGRAMS])
    path.write_bytes(gzip.compress(data) if packed else data)
    source = Itch50(path, DAY)
    assert messages_of(source) == EXPECTED
    assert source.truncated is None
    assert source.notes == ()
    assert source.statistics() == InputStatistics(packets=7, datagrams=7, sessions=1)


def test_chunks_may_end_inside_a_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 4)
    source = source_of(tmp_path / "capture", DATAGRAMS)
    assert messages_of(source) == EXPECTED


def test_end_of_session_and_next_session(tmp_path: Path) -> None:
    datagrams = [
        *DATAGRAMS,
        mold(24, [], count=0xFFFF),
        mold(1, MESSAGES[:2], session=b"0000000002"),
    ]
    source = source_of(tmp_path / "capture", datagrams)
    assert [payload for _, _, payload in messages_of(source)] == MESSAGES + MESSAGES[:2]
    assert source.statistics().sessions == 2
    assert source.notes == ()


def test_duplicates_are_skipped_and_told(tmp_path: Path) -> None:
    twice = [datagram for datagram in DATAGRAMS for _ in range(2)]
    source = source_of(tmp_path / "capture", twice)
    assert messages_of(source) == EXPECTED
    assert source.notes == ("messages skipped because they had come before: 23",)


def test_a_datagram_that_overlaps_gives_its_new_messages(tmp_path: Path) -> None:
    overlapping = [mold(1, MESSAGES[:10]), mold(4, MESSAGES[3:20]), mold(20, MESSAGES[19:])]
    source = source_of(tmp_path / "capture", overlapping)
    assert messages_of(source) == EXPECTED
    assert source.statistics().duplicates == 8


def test_a_gap_is_told(tmp_path: Path) -> None:
    source = source_of(tmp_path / "capture", DATAGRAMS[:3] + DATAGRAMS[4:])
    found = [payload for _, _, payload in messages_of(source)]
    assert found == MESSAGES[:4] + MESSAGES[11:]
    assert source.truncated is None
    assert source.notes == ("sequence gaps: 1", "messages that never came: 7")


def test_a_late_datagram_fills_its_gap(tmp_path: Path) -> None:
    late = [*DATAGRAMS[:3], DATAGRAMS[4], DATAGRAMS[3], *DATAGRAMS[5:]]
    source = source_of(tmp_path / "capture", late)
    found = [payload for _, _, payload in messages_of(source)]
    assert found == MESSAGES[:4] + MESSAGES[11:13] + MESSAGES[4:11] + MESSAGES[13:]
    assert source.statistics().late == 7
    assert source.statistics().missing == 0


def test_only_the_port_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    packets = [ethernet(b"something else", port=53), ethernet(DATAGRAMS[0])]
    path.write_bytes(pcap(packets))
    source = Itch50(path, DAY, port=26400)
    assert messages_of(source) == EXPECTED[:1]
    source = Itch50(path, DAY)
    assert messages_of(source) == []
    assert source.truncated == (
        f"{path}: no MoldUDP64 datagram starts at byte 82: its length was 14, expected 20 or more; "
        "if the capture holds other traffic too, give the feed's UDP port"
    )
    with pytest.raises(ConfigError, match="port was 65536, expected a UDP port"):
        Itch50(path, DAY, port=65536)


def test_messages_that_do_not_fit_stop_and_say_where(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    source = source_of(path, [DATAGRAMS[0], mold(2, MESSAGES[1:3], count=3), DATAGRAMS[3]])
    assert messages_of(source) == EXPECTED[:1]
    assert source.truncated is not None
    assert "its 3 messages do not fit into its" in source.truncated


@pytest.mark.parametrize("bad", [b"", b"z", b"S", itch("A")[:-1], itch("A") + b"!"])
def test_a_bad_message_stops_and_says_where(tmp_path: Path, bad: bytes) -> None:
    source = source_of(tmp_path / "capture", [DATAGRAMS[0], mold(2, [MESSAGES[1], bad])])
    assert messages_of(source) == EXPECTED[:2]
    assert source.truncated is not None
    assert "no valid message starts at byte" in source.truncated


@pytest.mark.parametrize("make", [pcap, pytest.param(pcapng, marks=pytest.mark.long)])
def test_truncated_at_every_byte(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "capture"
    whole = make([ethernet(datagram) for datagram in DATAGRAMS])
    ends = {
        len(make([ethernet(datagram) for datagram in DATAGRAMS[:k]])): sum(SIZES[:k]) for k in range(len(SIZES) + 1)
    }
    count = 0
    # Below four bytes it is not yet a capture.
    for size in range(4, len(whole) + 1):
        count = ends.get(size, count)
        path.write_bytes(whole[:size])
        source = Itch50(path, DAY)
        assert messages_of(source) == EXPECTED[:count]
        assert source.truncated is None or f"input ended at byte {size}" in source.truncated
        assert source.truncated is not None or size in ends or make is pcapng


def test_bit_flips_never_crash(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    whole = pcap([ethernet(datagram) for datagram in DATAGRAMS])
    chance = random.Random(4)
    for _ in range(600):
        flipped = bytearray(whole)
        bit = chance.randrange(24 * 8, 8 * len(whole))
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert len(messages_of(Itch50(path, DAY))) <= len(MESSAGES)
