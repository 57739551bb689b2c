"""The capture reader compared with generated files and with dpkt."""

from __future__ import annotations

import gzip
import random
import struct
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import blackbox_feeds.io.pcap
import dpkt
import pytest
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.pcap import Capture
from blackbox_feeds.io.statistics import InputStatistics, snapshot

from blackbox.errors import SourceError
from tests.feeds.build import block, enhanced, ethernet, interface, linked, pcap, pcapng, section

Found = tuple[list[bytes], list[int], str | None, InputStatistics]
PAYLOADS = [bytes([k]) * (k * 7 % 50) for k in range(20)]
SECOND = 1_577_716_200


def read_bytes(tmp_path: Path, data: bytes, port: int | None = None, window_bytes: int = 1 << 20) -> Found:
    """Return all payloads, capture times, why it stopped, and the counts."""
    path = tmp_path / "capture"
    path.write_bytes(data)
    payloads, times = [], []
    with open_window(path, window_bytes) as window:
        capture = Capture(window, port)
        for found in capture.datagrams():
            for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True):
                payloads.append(found.data[start : start + length].tobytes())
            times += found.capture_ns.tolist()
    return payloads, times, capture.stopped, snapshot(capture.counts)


def read_with_dpkt(data: bytes, link: int) -> list[bytes]:
    of_link = {1: dpkt.ethernet.Ethernet, 113: dpkt.sll.SLL, 276: dpkt.sll2.SLL2}[link]
    return [bytes(of_link(packet).data.data.data) for _, packet in dpkt.pcap.UniversalReader(BytesIO(data))]


def resolution(value: int) -> bytes:
    """Return the option of a resolution, and the end of options."""
    return struct.pack("<HHBxxxHH", 9, 1, value, 0, 0)


@pytest.mark.parametrize("link", [1, 113, 276])
@pytest.mark.parametrize("order", ["<", ">"])
def test_captures_of_any_interface_and_byte_order_agree_with_dpkt(tmp_path: Path, link: int, order: str) -> None:
    packets = [linked(ethernet(payload, padding=b"\0" * (k % 3)), link) for k, payload in enumerate(PAYLOADS)]
    blocks = [enhanced(packet, 7 * number, order=order) for number, packet in enumerate(packets)]
    for data, begin, unit in (
        (pcap(packets, order, link=link), SECOND * 10**9, 1_000),
        (pcap(packets, order, nanoseconds=True, link=link), SECOND * 10**9, 1),
        (section(order) + interface(order, link=link) + b"".join(blocks), 0, 1_000),
    ):
        payloads, times, stopped, counts = read_bytes(tmp_path, data)
        assert payloads == PAYLOADS == read_with_dpkt(data, link)
        assert times == [begin + 7 * k * unit for k in range(20)]
        assert (stopped, counts) == (None, InputStatistics(packets=20, datagrams=20))


@pytest.mark.parametrize(
    ("options", "ticks", "time_ns"),
    [
        (b"", 1_000_001, 1_000_001_000),
        (resolution(0), 3, 3 * 10**9),
        (resolution(9), 123, 123),
        (resolution(12), 123_456, 123),
        (resolution(18), 5 * 10**18 + 999_999_999, 5 * 10**9),
        (resolution(100), 5 * 10**18, 5),
        (resolution(0x80 | 10), 5 * 1024 + 512, 5_500_000_000),
        (resolution(0x80 | 32), (7 << 32) + (1 << 31), 7_500_000_000),
        (resolution(0x80 | 60), (3 << 60) + (1 << 58), 3_250_000_000),
        # A name, and an offset in seconds.
        (struct.pack("<HH4sHHq", 2, 4, b"eth0", 14, 8, -5), 1, -5 * 10**9 + 1_000),
        (struct.pack(">HH4sHHq", 2, 4, b"eth0", 14, 8, -5), 1, -5 * 10**9 + 1_000),
    ],
)
def test_pcapng_time_resolutions_and_offsets(tmp_path: Path, options: bytes, ticks: int, time_ns: int) -> None:
    order = ">" if options[:1] == b"\0" else "<"
    data = section(order) + interface(order, options) + enhanced(ethernet(b"x"), ticks, order=order)
    assert read_bytes(tmp_path, data)[1] == [time_ns]


def test_pcapng_sections_interfaces_and_other_blocks(tmp_path: Path) -> None:
    nanoseconds = struct.pack("<HHBxxx", 9, 1, 9)
    frame = ethernet(b"simple")
    data = (
        section()
        + interface(link=105)
        + interface(options=nanoseconds)
        + interface(link=113)
        + block(4, b"names of hosts")
        + enhanced(ethernet(b"wireless"), number=0)
        + enhanced(ethernet(b"one"), 11, number=1)
        + enhanced(linked(ethernet(b"cooked"), 113), 12, number=2)
        + section(">")
        + interface(">")
        + block(0x0BAD, b"custom", ">")
        + block(3, struct.pack(">I", len(frame)) + frame, ">")
        + block(2, struct.pack(">HHIIII", 0, 0, 0, 9, len(frame), len(frame)) + frame, ">")
    )
    payloads, times, stopped, counts = read_bytes(tmp_path, data)
    assert payloads == [b"one", b"cooked", b"simple", b"simple"]
    assert times == [11, 12_000, 0, 9_000]
    assert stopped is None
    assert counts == InputStatistics(packets=5, datagrams=4, other_link=1)
    assert counts.notes() == ("packets skipped because their link type is not read: 1",)


@pytest.mark.parametrize("link", [1, 113, 276])
def test_vlan_tags_behind_every_header_that_has_a_protocol(tmp_path: Path, link: int) -> None:
    packets = [linked(ethernet(b"x", vlans=vlans), link) for vlans in ([], [0x8100], [0x88A8, 0x8100])]
    other = linked(ethernet(b"y")[:12] + b"\x86\xdd" + ethernet(b"y")[14:], link)
    payloads, _, _, counts = read_bytes(tmp_path, pcap([*packets, other], link=link))
    assert payloads == [b"x"] * 3
    assert counts == InputStatistics(packets=4, datagrams=3, not_udp=1)


@pytest.mark.parametrize("link", [0, 12, 14, 101, 108, 228])
def test_captures_without_a_protocol_type_are_ip(tmp_path: Path, link: int) -> None:
    data = pcap([linked(ethernet(payload), link) for payload in PAYLOADS], link=link)
    assert read_bytes(tmp_path, data)[0] == PAYLOADS
    big_endian = pcap([b"\0\0\0\2" + ethernet(b"x")[14:], b"\0\0\0\x1e" + ethernet(b"y")[14:]], link=0)
    assert read_bytes(tmp_path, big_endian)[0] == [b"x"]


@pytest.mark.parametrize("link", [0, 1, 101, 113, 276])
def test_packets_cut_at_every_byte_never_read_too_far(tmp_path: Path, link: int) -> None:
    whole = linked(ethernet(b"payload", vlans=[0x8100] if link in (1, 113, 276) else []), link)
    packets = [whole[:size] for size in range(len(whole) + 1)]
    payloads, _, stopped, counts = read_bytes(tmp_path, pcap(packets, link=link))
    assert (payloads, stopped, counts.packets) == ([b"payload"], None, len(packets))


def test_datagrams_captured_only_in_part_are_counted(tmp_path: Path) -> None:
    frame = ethernet(b"y" * 100)
    simple = section() + interface(snap_bytes=60) + block(3, struct.pack("<I", len(frame)) + frame[:60])
    assert read_bytes(tmp_path, simple)[3] == InputStatistics(packets=1, cut=1)
    payloads, _, _, counts = read_bytes(tmp_path, pcap([ethernet(b"x" * 10), frame], snap_bytes=80))
    assert (payloads, counts) == ([b"x" * 10], InputStatistics(packets=2, datagrams=1, cut=1))
    assert counts.notes() == ("datagrams skipped because they were captured only in part: 1",)


def test_packets_without_a_complete_udp_datagram_are_skipped_and_counted(tmp_path: Path) -> None:
    good = ethernet(b"good")
    lying = bytearray(good)
    lying[38:40] = struct.pack(">H", 60_000)  # the UDP length
    short_header = bytearray(good)
    short_header[14] = 0x44
    packets = [
        good,
        ethernet(b"options", options=b"\1" * 12),
        ethernet(b"padded", padding=b"\0" * 40),
        ethernet(b"tcp", protocol=6),
        ethernet(b"first", fragment=0x2000),
        ethernet(b"later", fragment=0x0010),
        ethernet(b"do not fragment", fragment=0x4000),
        ethernet(b"elsewhere", port=9),
        bytes(lying),
        bytes(short_header),
        b"",
        b"\1" * 13,
        b"\1" * 12 + b"\x81\x00" * 40,
    ]
    payloads, _, stopped, counts = read_bytes(tmp_path, pcap(packets), port=26400)
    assert payloads == [b"good", b"options", b"padded", b"do not fragment"]
    assert stopped is None
    assert counts == InputStatistics(packets=13, datagrams=4, not_udp=4, fragments=2, other_port=1, malformed=2)
    assert counts.notes() == (
        "packets skipped because their headers contradict each other: 2",
        "packets skipped because they were fragments of an incomplete IP datagram: 2",
    )


def checksum_of(payload: bytes) -> int:
    """Return the UDP checksum, by dpkt."""
    whole = dpkt.ip.IP(bytes(dpkt.ip.IP(ethernet(payload)[14:])))
    return int(whole.data.sum)


def fragments_of(payload: bytes, number: int, size: int, port: int = 26400, checksum: int = 0) -> list[bytes]:
    """Return the frames of a datagram in IP fragments of `size` payload bytes."""
    frame = ethernet(payload, port)
    whole = frame[34:40] + struct.pack(">H", checksum) + frame[42:]
    frames = []
    for start in range(0, len(whole), size):
        part = whole[start : start + size]
        more = 0x2000 if start + size < len(whole) else 0
        ip = bytearray(frame[14:34])
        ip[2:8] = struct.pack(">HHH", 20 + len(part), number, more | start // 8)
        frames.append(frame[:14] + bytes(ip) + part)
    return frames


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("link", [1, 113, 276])
def test_fragments_in_any_order_are_put_together(tmp_path: Path, make: Any, link: int) -> None:
    """Between whole datagrams, interleaved, doubled and shuffled; each datagram is where its last fragment is."""
    choice = random.Random(link)
    packets, expected, reassembled = [ethernet(b"first")], [b"first"], 0
    for number in range(0, 40, 2):
        pair = [choice.randbytes(choice.randint(60, 3_000)) for _ in range(2)]
        mixed = [
            (frame, which)
            for which, payload in enumerate(pair)
            for frame in fragments_of(payload, number + which, 8 * choice.randint(1, 100))
        ]
        choice.shuffle(mixed)
        left = [sum(which == each for _, which in mixed) for each in (0, 1)]
        reassembled += sum(many > 1 for many in left)
        for frame, which in mixed:
            left[which] -= 1
            packets += [frame] * (1 + (left[which] > 0 and choice.random() < 0.2))
            expected += [] if left[which] else [pair[which]]
        packets.append(ethernet(b"%d" % number))
        expected.append(b"%d" % number)
    if make is pcap:
        data = pcap([linked(packet, link) for packet in packets], link=link)
    else:
        data = section() + interface(link=link) + b"".join(enhanced(linked(packet, link)) for packet in packets)
    payloads, times, stopped, counts = read_bytes(tmp_path, data, window_bytes=5_000)
    assert (payloads, len(times), stopped) == (expected, len(expected), None)
    assert counts == InputStatistics(packets=len(packets), datagrams=len(expected), reassembled=reassembled)


def test_fragments_of_datagrams_that_stay_incomplete_are_counted(tmp_path: Path) -> None:
    lost = fragments_of(b"lost" * 100, 1, 80)[1:]
    one, two, *_ = fragments_of(b"contradicts" * 20, 2, 80)
    changed = two[:-1] + b"?"
    overlapping = [*fragments_of(b"overlaps" * 20, 3, 80), fragments_of(b"overlaps" * 20, 3, 16)[1]]
    elsewhere = fragments_of(b"elsewhere" * 20, 4, 80, port=9)
    lying = fragments_of(b"lying" * 20, 5, 80)
    lying[0] = lying[0][:38] + struct.pack(">H", 60_000) + lying[0][40:]  # the UDP length
    packets = [*lost, one, two, changed, *reversed(overlapping), *elsewhere, *lying, ethernet(b"whole")]
    payloads, _, _, counts = read_bytes(tmp_path, pcap(packets), port=26400)
    assert payloads == [b"whole"]
    skipped = len(lost) + 3 + len(overlapping)
    assert counts == InputStatistics(
        packets=len(packets), datagrams=1, fragments=skipped, reassembled=2, other_port=1, malformed=1
    )


def test_fragments_of_two_datagrams_are_not_joined(tmp_path: Path) -> None:
    """Both datagrams have the same identification, and each lost a fragment."""
    for size in (200, 201):
        pair = [letter * size for letter in (b"a", b"b")]
        one, other = (fragments_of(payload, 1, 80, checksum=checksum_of(payload)) for payload in pair)
        assert read_bytes(tmp_path, pcap([*one, *other]))[0] == pair
        payloads, _, _, counts = read_bytes(tmp_path, pcap([*one[:1], *other[1:]]))
        assert payloads == []
        assert counts == InputStatistics(packets=len(one), reassembled=1, malformed=1)


def test_fragments_wait_in_bounded_memory_and_time(tmp_path: Path) -> None:
    """An identification that comes again after a second is of another datagram; of 65 waiting ones, one is dropped."""
    halves = [fragments_of(b"%d" % number * 100, number, 104) for number in range(65)]
    packets = [*(first for first, *_ in halves), *(frame for _, *rest in reversed(halves) for frame in rest)]
    payloads, _, _, counts = read_bytes(tmp_path, pcap(packets))
    assert payloads == [b"%d" % number * 100 for number in range(64, 0, -1)]
    assert (counts.reassembled, counts.fragments) == (64, len(halves[0]))
    first, second, *_ = fragments_of(b"x" * 150, 1, 104)
    late = section() + interface() + enhanced(first) + enhanced(second, ticks=1_100_000)
    payloads, _, _, counts = read_bytes(tmp_path, late)
    assert (payloads, counts.fragments) == ([], 2)


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("window_bytes", [1, 40, 333])
def test_gzip_windows_and_batches_of_any_size(
    tmp_path: Path, make: Any, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blackbox_feeds.io.pcap, "_BATCH", 3)
    data = gzip.compress(make([ethernet(payload) for payload in PAYLOADS]))
    payloads, _, stopped, _ = read_bytes(tmp_path, data, window_bytes=window_bytes)
    assert (payloads, stopped) == (PAYLOADS, None)


@pytest.mark.parametrize("make", [partial(pcap, order=">"), pcapng])
def test_truncated_at_every_byte(tmp_path: Path, make: Any) -> None:
    whole = make([ethernet(payload) for payload in PAYLOADS[:3]])
    sizes = {len(make([ethernet(p) for p in PAYLOADS[:k]])): k for k in range(4)}
    clean = set(sizes) | ({0x1C} if make is pcapng else set())
    done = 0
    for size in range(len(whole) + 1):
        done = sizes.get(size, done)
        payloads, _, stopped, _ = read_bytes(tmp_path, whole[:size])
        assert payloads == PAYLOADS[:done]
        assert (stopped is None) == (size in clean)
        assert stopped is None or f"input ended at byte {size}" in stopped


ONE_BLOCK = pcapng([ethernet(b"x")])
BAD_BLOCK = "its type was"


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (
            pcap([ethernet(b"x")]),
            struct.pack("<IIII", 0, 0, 1 << 20, 1 << 20) + b"\0" * 100,
            "its captured bytes were 1048576, expected up to 262144",
        ),
        (ONE_BLOCK, struct.pack("<II", 6, 13) + b"\0" * 20, BAD_BLOCK),
        (ONE_BLOCK, struct.pack("<II", 6, 8) + b"\0" * 20, BAD_BLOCK),
        (ONE_BLOCK, struct.pack("<II", 6, 1 << 30) + b"\0" * 20, BAD_BLOCK),
        (ONE_BLOCK, struct.pack("<II4xI", 5, 16, 17) + b"\0" * 20, BAD_BLOCK),
        (ONE_BLOCK, struct.pack("<III", 0x0A0D0D0A, 28, 0xDEADBEEF) + b"\0" * 20, BAD_BLOCK),
        (ONE_BLOCK, block(6, b"\0" * 16), BAD_BLOCK),
        (ONE_BLOCK, block(6, struct.pack("<IIIII", 9, 0, 0, 0, 0)), BAD_BLOCK),
        (ONE_BLOCK, block(6, struct.pack("<IIIII", 0, 0, 0, 5, 5)), BAD_BLOCK),
        (ONE_BLOCK, block(1, b"\0" * 4), BAD_BLOCK),
        (ONE_BLOCK, block(3, b""), BAD_BLOCK),
        (ONE_BLOCK + interface() * 255, interface(), BAD_BLOCK),
        (ONE_BLOCK + section(), block(3, struct.pack("<I", 4) + b"abcd"), BAD_BLOCK),
    ],
)
def test_an_invalid_record_or_block_stops_and_is_located(tmp_path: Path, good: bytes, bad: bytes, words: str) -> None:
    payloads, _, stopped, _ = read_bytes(tmp_path, good + bad)
    assert payloads == [b"x"]
    noun = "pcapng block" if words is BAD_BLOCK else "pcap record"
    told = f"{tmp_path / 'capture'}: no valid {noun} starts at byte {len(good)}: {words}"
    assert (stopped or "").startswith(told)


def test_another_file_or_link_type_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="first 4 bytes were 68 65 6c 6c, expected those of a pcap"):
        read_bytes(tmp_path, b"hello, this is some other file")
    with pytest.raises(SourceError, match=r"link type was 105, expected one of 1 \(Ethernet\), 0 \(BSD"):
        read_bytes(tmp_path, pcap([], link=105))
