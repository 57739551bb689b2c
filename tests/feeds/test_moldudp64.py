"""ITCH in MoldUDP64 captures: every framing yields the messages, and losses are reported."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.errors import ConfigError
from tests.examples import examples, first_of
from tests.feeds.build import (
    ITCH_LENGTHS,
    ethernet,
    framed,
    itch,
    messages_in,
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
    """Return the messages in datagrams of the given sizes."""
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


def test_duplicates_are_skipped_and_counted(tmp_path: Path) -> None:
    twice = [datagram for datagram in DATAGRAMS for _ in range(2)]
    source = source_of(tmp_path / "capture", twice)
    assert messages_of(source) == EXPECTED
    assert source.notes == ("messages skipped because they had come before: 23",)


def test_an_overlapping_datagram_yields_its_new_messages(tmp_path: Path) -> None:
    overlapping = [mold(1, MESSAGES[:10]), mold(4, MESSAGES[3:20]), mold(20, MESSAGES[19:])]
    source = source_of(tmp_path / "capture", overlapping)
    assert messages_of(source) == EXPECTED
    assert source.statistics().duplicates == 8


def test_a_gap_is_reported(tmp_path: Path) -> None:
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


def test_messages_that_do_not_fit_stop_and_are_located(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    source = source_of(path, [DATAGRAMS[0], mold(2, MESSAGES[1:3], count=3), DATAGRAMS[3]])
    assert messages_of(source) == EXPECTED[:1]
    assert source.truncated is not None
    assert "its 3 messages do not fit into its" in source.truncated


def test_gaps_are_where_the_numbers_jump_in_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(tmp_path / "capture", [*DATAGRAMS[:1], *DATAGRAMS[3:4], DATAGRAMS[6], mold(30, [])])
    for size in (100, 4, 1):
        monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", size)
        found: list[object] = []
        for chunk in source.chunks():
            for missing, run in chunk.runs():
                found += [missing] if missing else []
                found += [payload for _, _, payload in messages_in(run)]
        assert found == [MESSAGES[0], 3, *MESSAGES[4:11], 2, *MESSAGES[13:], 6]


def test_a_capture_that_begins_late_reports_earlier_messages(tmp_path: Path) -> None:
    source = source_of(tmp_path / "capture", DATAGRAMS[3:])
    assert [chunk.gaps for chunk in source.chunks()] == [((0, 4),)]
    assert source.notes == ("messages sent before the first one of the input: 4",)


def test_unknown_and_longer_messages_are_skipped_and_cut(tmp_path: Path) -> None:
    odd = [MESSAGES[1] + b"more", b"z" * 40, MESSAGES[2]]
    source = source_of(tmp_path / "capture", [DATAGRAMS[0], mold(2, odd), mold(5, [b"z" * 12])])
    assert messages_of(source) == EXPECTED[:3]
    assert source.notes == (
        "messages skipped because their type is unknown ('z' 2): 2",
        "messages cut to the specified length: 1",
    )


@settings(max_examples=examples(150))
@given(st.data())
def test_lost_doubled_and_reordered_packets_against_a_list(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every received message is delivered once, in order of first arrival; missing ones are gaps."""
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=12))
    many = sum(sizes)
    messages = [itch("D", locate=1, ns=number) for number in range(many)]
    sent = list(enumerate(datagrams_of(messages, sizes)))
    chosen = data.draw(st.lists(st.sampled_from(sent), min_size=1, max_size=20))
    begins = [sum(sizes[:number]) for number, _ in chosen]
    expected: list[object] = [begins[0]] if begins[0] else []
    following = begins[0]
    for begin, (number, _) in zip(begins, chosen, strict=True):
        if begin > following:
            expected.append((following, begin))
            following = begin
        known = {item for item in expected if isinstance(item, bytes)}
        first = max(begin, begins[0])
        expected += [each for each in messages[first : begin + sizes[number]] if each not in known]
        following = max(following, begin + sizes[number])
    came = {item for item in expected if isinstance(item, bytes)}
    missing = [
        sum(messages[number] not in came for number in range(*item)) if isinstance(item, tuple) else item
        for item in expected
    ]
    path = tmp_path_factory.getbasetemp() / "packets.pcap"
    source = source_of(path, [datagram for _, datagram in chosen])
    found: list[object] = []
    for chunk in source.chunks():
        for count, run in chunk.runs():
            found += [count] if count else []
            found += [payload for _, _, payload in messages_in(run)]
    assert found == [item for item in missing if item != 0]
    assert source.truncated is None


@pytest.mark.parametrize("unknown", [[b""], [b"z"], [b"\xff" * 20], [b"z" * 11], [b"z" * 40] * 65, [b"", b"z", b""]])
def test_messages_of_unknown_types_and_of_any_size_are_skipped_and_counted(
    tmp_path: Path, unknown: list[bytes]
) -> None:
    for datagrams in (
        [DATAGRAMS[0], mold(2, [MESSAGES[1], *unknown]), mold(3 + len(unknown), [MESSAGES[2]])],
        [DATAGRAMS[0], mold(2, [*unknown, MESSAGES[1]]), mold(3 + len(unknown), [MESSAGES[2]])],
    ):
        source = source_of(tmp_path / "capture", datagrams)
        assert messages_of(source) == EXPECTED[:3]
        assert source.truncated is None
        found = source.statistics()
        assert found.unknown == sum(count for _, count in found.unknown_types) == len(unknown)
        assert {kind for kind, _ in found.unknown_types} == {each[:1].decode("latin-1") for each in unknown}


@pytest.mark.parametrize("blank", [b"\0" * 8, b"\0 \0 \0 \0 "])
def test_an_empty_stock_does_not_make_its_locate_forget_its_symbol(tmp_path: Path, blank: bytes) -> None:
    add = itch("A", stock="KNOWN")
    empty = add.replace(b"KNOWN   ", blank)
    source = source_of(tmp_path / "capture", [mold(1, [add, empty, itch("D")])])
    assert [topic for topic, _, _ in messages_of(source)] == [b"KNOWN.A", b"KNOWN.A", b"KNOWN.D"]


def test_two_alternating_sessions_and_one_that_begins_late(tmp_path: Path) -> None:
    orders = [itch("A", ns=number) for number in range(12)]
    turns = [
        mold(1_000 * line + 1 + number, [orders[2 * number + line]], session=b"%010d" % line)
        for number in range(5)
        for line in (0, 1)
    ]
    source = source_of(tmp_path / "capture", turns)
    assert [payload for _, _, payload in messages_of(source)] == orders[:10]
    assert [chunk.gaps for chunk in source.chunks()] == [((1, 1_000),)]
    assert source.notes == ("sequence gaps: 1", "messages that never came: 1,000")


@pytest.mark.parametrize("bad", [b"S", itch("A")[:-1], itch("D")[:3]])
def test_a_bad_message_stops_and_is_located(tmp_path: Path, bad: bytes) -> None:
    source = source_of(tmp_path / "capture", [DATAGRAMS[0], mold(2, [MESSAGES[1], bad])])
    assert messages_of(source) == EXPECTED[:2]
    assert source.truncated is not None
    assert "no valid message starts at byte" in source.truncated


@pytest.mark.parametrize("make", first_of([pcap, pcapng]))
def test_truncated_at_every_byte(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "capture"
    whole = make([ethernet(datagram) for datagram in DATAGRAMS])
    ends = {
        len(make([ethernet(datagram) for datagram in DATAGRAMS[:k]])): sum(SIZES[:k]) for k in range(len(SIZES) + 1)
    }
    count = 0
    # Below four bytes it is not recognized as a capture.
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
