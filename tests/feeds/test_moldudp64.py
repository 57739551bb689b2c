"""ITCH in MoldUDP64 captures: every framing yields the messages, and losses are reported."""

from __future__ import annotations

import gzip
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
from tests.examples import examples
from tests.feeds.build import (
    ITCH_LENGTHS,
    ethernet,
    framed,
    itch,
    messages_of,
    mold,
    payloads_and_gaps_of,
    payloads_of,
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


DATAGRAMS = datagrams_of(MESSAGES, [1, 3, 0, 7, 2, 0, 10])


def source_of(path: Path, datagrams: Sequence[bytes], make: Any = pcap, **options: Any) -> Itch50:
    path.write_bytes(make([ethernet(datagram) for datagram in datagrams]))
    return Itch50(path, DAY, **options)


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_messages_of_a_capture(tmp_path: Path, make: Any) -> None:
    source = source_of(tmp_path / "capture", DATAGRAMS, make)
    for _ in range(2):
        assert messages_of(source) == EXPECTED
        assert (source.truncated, source.notes) == (None, ())
        assert source.statistics() == InputStatistics(packets=7, datagrams=7, sessions=1)
        source.path.write_bytes(gzip.compress(source.path.read_bytes()))


def test_end_of_session_and_alternating_sessions(tmp_path: Path) -> None:
    second = [mold(1_000 + number, [itch("D", ns=number)], session=b"0000000002") for number in range(2)]
    datagrams = [*DATAGRAMS[:-1], second[0], DATAGRAMS[-1], mold(24, [], count=0xFFFF), second[1]]
    source = source_of(tmp_path / "capture", datagrams)
    assert payloads_of(source) == [*MESSAGES[:13], itch("D"), *MESSAGES[13:], itch("D", ns=1)]
    assert [chunk.gaps for chunk in source.chunks()] == [((13, 999),)]
    assert source.statistics().sessions == 2


def test_losses_and_repetitions_are_noted(tmp_path: Path) -> None:
    begins_late = [*DATAGRAMS[1:3], DATAGRAMS[1], DATAGRAMS[4], mold(24, []), mold(13, MESSAGES[12:15])]
    source = source_of(tmp_path / "capture", begins_late)
    assert payloads_of(source) == [*MESSAGES[1:4], *MESSAGES[11:15]]
    assert source.notes == (
        "messages sent before the first one of the input: 1",
        "sequence gaps: 2",
        "messages that never came: 15",
        "messages that came late, after a gap: 2",
        "messages skipped because they had come before: 4",
    )


def test_only_the_port_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    packets = [ethernet(b"something else", port=53), ethernet(DATAGRAMS[0])]
    path.write_bytes(pcap(packets))
    assert messages_of(Itch50(path, DAY, port=26400)) == EXPECTED[:1]
    source = Itch50(path, DAY)
    assert messages_of(source) == []
    assert source.truncated == (
        f"{path}: no MoldUDP64 datagram starts at byte 82: its length was 14, expected 20 or more; "
        "if the capture holds other traffic too, give the feed's UDP port"
    )
    for port in (65536, "abc"):
        with pytest.raises(ConfigError, match=f"port was {port!r}, expected a UDP port"):
            Itch50(path, DAY, port=port)  # type: ignore[arg-type]


def test_gaps_are_where_the_numbers_jump_in_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(tmp_path / "capture", [*DATAGRAMS[:1], *DATAGRAMS[3:4], DATAGRAMS[6], mold(30, [])])
    for size in (100, 4, 1):
        monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", size)
        assert payloads_and_gaps_of(source) == [MESSAGES[0], 3, *MESSAGES[4:11], 2, *MESSAGES[13:], 6]


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
    source = source_of(tmp_path_factory.getbasetemp() / "packets.pcap", [datagram for _, datagram in chosen])
    assert payloads_and_gaps_of(source) == [item for item in missing if item != 0]
    assert source.truncated is None


@pytest.mark.parametrize("unknown", [[b""], [b"z"], [b"\xff" * 20], [b"z" * 11], [b"z" * 40] * 65, [b"", b"z", b""]])
def test_unknown_messages_of_any_size_are_skipped_and_longer_ones_cut(tmp_path: Path, unknown: list[bytes]) -> None:
    longer = MESSAGES[1] + b"more"
    for group in ([longer, *unknown], [*unknown, longer]):
        datagrams = [DATAGRAMS[0], mold(2, group), mold(3 + len(unknown), [MESSAGES[2]])]
        source = source_of(tmp_path / "capture", datagrams)
        assert messages_of(source) == EXPECTED[:3]
        assert source.truncated is None
        found = source.statistics()
        assert found.extended == 1
        assert found.unknown == sum(count for _, count in found.unknown_types) == len(unknown)
        assert {kind for kind, _ in found.unknown_types} == {each[:1].decode("latin-1") for each in unknown}


@pytest.mark.parametrize(
    ("datagram", "delivered", "words"),
    [
        (mold(2, [MESSAGES[1], b"S"]), 2, "no valid message starts at byte"),
        (mold(2, [MESSAGES[1], itch("A")[:-1]]), 2, "no valid message starts at byte"),
        (mold(2, MESSAGES[1:3], count=3), 1, "its 3 messages do not fit into its"),
    ],
)
def test_a_bad_message_stops_and_is_located(tmp_path: Path, datagram: bytes, delivered: int, words: str) -> None:
    source = source_of(tmp_path / "capture", [DATAGRAMS[0], datagram, DATAGRAMS[3]])
    assert messages_of(source) == EXPECTED[:delivered]
    assert words in (source.truncated or "")
