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
import blackbox_feeds.io.window
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


def read(path: Path, port: int | None = None, window_bytes: int = 1 << 20) -> Found:
    """Return all payloads, capture times, why it stopped, and the counts."""
    payloads, times = [], []
    with open_window(path, window_bytes) as window:
        capture = Capture(window, port)
        for found in capture.datagrams():
            for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True):
                payloads.append(found.data[start : start + length].tobytes())
            times += found.capture_ns.tolist()
    return payloads, times, capture.stopped, snapshot(capture.counts)


def read_bytes(tmp_path: Path, data: bytes, **options: Any) -> Found:
    path = tmp_path / "capture"
    path.write_bytes(data)
    return read(path, **options)


def read_with_dpkt(data: bytes) -> tuple[list[bytes], list[float]]:
    payloads, times = [], []
    for time, frame in dpkt.pcap.UniversalReader(BytesIO(data)):
        ip = dpkt.ethernet.Ethernet(frame).data
        if isinstance(ip, dpkt.ip.IP) and isinstance(ip.data, dpkt.udp.UDP):
            payloads.append(bytes(ip.data.data))
            times.append(float(time))
    return payloads, times


@pytest.mark.parametrize("name", ["goiex_DEEP10.pcap.gz", "goiex_TOPS16.pcapng.gz"])
def test_real_capture_agrees_with_dpkt(shared_data: Path, name: str) -> None:
    path = shared_data / "iex" / name
    packed = path.read_bytes()
    data = gzip.decompress(packed)
    # dpkt accepts a last record that is cut off: compare the records before it.
    data = data[: 24 + (1 << 20)]
    expected, times = read_with_dpkt(data)
    payloads, capture_ns, _, _ = read(path)
    count = len(expected) - 1
    assert payloads[:count] == expected[:count]
    assert [time // 1_000 for time in capture_ns[:count]] == [round(time * 1e6) for time in times[:count]]


def test_a_cut_real_capture_is_located(shared_data: Path) -> None:
    path = shared_data / "iex/goiex_DEEP10.pcap.gz"
    payloads, _, stopped, counts = read(path)
    assert len(payloads) == 121_314
    assert counts.packets == counts.datagrams == 121_314
    assert stopped == (f"{path}: input ended at byte 22196224 inside the pcap record that starts at byte 22195748")


def test_a_capture_that_calls_itself_pcapng_may_be_pcap(shared_data: Path) -> None:
    payloads, _, stopped, _ = read(shared_data / "iex/goiex_TOPS16.pcapng.gz")
    assert len(payloads) == 13_022
    assert stopped is None


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_pcap_of_each_byte_order_and_time_unit(tmp_path: Path, order: str, nanoseconds: bool) -> None:
    data = pcap([ethernet(payload) for payload in PAYLOADS], order, nanoseconds)
    payloads, times, stopped, counts = read_bytes(tmp_path, data)
    unit = 1 if nanoseconds else 1_000
    assert payloads == PAYLOADS == read_with_dpkt(data)[0]
    assert times == [SECOND * 10**9 + 7 * k * unit for k in range(20)]
    assert stopped is None
    assert counts == InputStatistics(packets=20, datagrams=20)


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_of_each_byte_order(tmp_path: Path, order: str) -> None:
    data = pcapng([ethernet(payload) for payload in PAYLOADS], order)
    payloads, times, stopped, _ = read_bytes(tmp_path, data)
    assert payloads == PAYLOADS == read_with_dpkt(data)[0]
    assert times == [7_000 * k for k in range(20)]
    assert stopped is None


@pytest.mark.parametrize(
    ("resolution", "ticks", "time_ns"),
    [
        (None, 1_000_001, 1_000_001_000),
        (0, 3, 3 * 10**9),
        (9, 123, 123),
        (12, 123_456, 123),
        (18, 5 * 10**18 + 999_999_999, 5 * 10**9),
        (100, 5 * 10**18, 5),
        (0x80 | 10, 5 * 1024 + 512, 5_500_000_000),
        (0x80 | 32, (7 << 32) + (1 << 31), 7_500_000_000),
        (0x80 | 60, (3 << 60) + (1 << 58), 3_250_000_000),
    ],
)
def test_pcapng_time_resolutions(tmp_path: Path, resolution: int | None, ticks: int, time_ns: int) -> None:
    options = b""
    if resolution is not None:
        options = struct.pack("<HHBxxx", 9, 1, resolution) + struct.pack("<HH", 0, 0)
    data = section() + interface(options=options) + enhanced(ethernet(b"x"), ticks)
    _, times, _, _ = read_bytes(tmp_path, data)
    assert times == [time_ns]


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_time_offset(tmp_path: Path, order: str) -> None:
    options = struct.pack(order + "HH4s", 2, 4, b"eth0") + struct.pack(order + "HHq", 14, 8, -5)
    data = section(order) + interface(order, options) + enhanced(ethernet(b"x"), 1, order=order)
    assert read_bytes(tmp_path, data)[1] == [-5 * 10**9 + 1_000]


def test_pcapng_sections_interfaces_and_other_blocks(tmp_path: Path) -> None:
    nanoseconds = struct.pack("<HHBxxx", 9, 1, 9)
    frame = ethernet(b"simple")
    data = (
        section()
        + interface(link=105)
        + interface(options=nanoseconds)
        + block(4, b"names of hosts")
        + enhanced(ethernet(b"wireless"), number=0)
        + enhanced(ethernet(b"one"), 11, number=1)
        + section(">")
        + interface(">")
        + block(0x0BAD, b"custom", ">")
        + block(3, struct.pack(">I", len(frame)) + frame, ">")
        + block(2, struct.pack(">HHIIII", 0, 0, 0, 9, len(frame), len(frame)) + frame, ">")
    )
    payloads, times, stopped, counts = read_bytes(tmp_path, data)
    assert payloads == [b"one", b"simple", b"simple"]
    assert times == [11, 0, 9_000]
    assert stopped is None
    assert counts == InputStatistics(packets=4, datagrams=3, other_link=1)
    assert counts.notes() == ("packets skipped because their link type is not read: 1",)


def read_cooked_with_dpkt(data: bytes, link: int) -> list[bytes]:
    """The UDP payloads of a cooked capture, by dpkt."""
    payloads = []
    for _, packet in dpkt.pcap.UniversalReader(BytesIO(data)):
        cooked = dpkt.sll.SLL(packet) if link == 113 else dpkt.sll2.SLL2(packet)
        if isinstance(cooked.data, dpkt.ip.IP) and isinstance(cooked.data.data, dpkt.udp.UDP):
            payloads.append(bytes(cooked.data.data.data))
    return payloads


@pytest.mark.parametrize("link", [113, 276])
@pytest.mark.parametrize("order", ["<", ">"])
def test_captures_of_any_interface_agree_with_dpkt(tmp_path: Path, link: int, order: str) -> None:
    packets = [linked(ethernet(payload, padding=b"\0" * (k % 3)), link) for k, payload in enumerate(PAYLOADS)]
    classic = pcap(packets, order, link=link)
    assert read_bytes(tmp_path, classic)[0] == PAYLOADS == read_cooked_with_dpkt(classic, link)
    blocks = [enhanced(packet, 7 * number, order=order) for number, packet in enumerate(packets)]
    newer = section(order) + interface(order, link=link) + b"".join(blocks)
    payloads, times, stopped, counts = read_bytes(tmp_path, newer)
    assert payloads == PAYLOADS == read_cooked_with_dpkt(newer, link)
    assert times == [7_000 * k for k in range(20)]
    assert stopped is None
    assert counts == InputStatistics(packets=20, datagrams=20)


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


def test_interfaces_of_several_link_types_in_one_capture(tmp_path: Path) -> None:
    links = [1, 113, 276, 101, 0]
    data = section() + b"".join(interface(link=link) for link in links)
    data += b"".join(enhanced(linked(ethernet(bytes([k])), links[k % 5]), number=k % 5) for k in range(25))
    assert read_bytes(tmp_path, data)[0] == [bytes([k]) for k in range(25)]


@pytest.mark.parametrize("link", [0, 1, 101, 113, 276])
def test_packets_cut_at_every_byte_never_read_too_far(tmp_path: Path, link: int) -> None:
    whole = linked(ethernet(b"payload", vlans=[0x8100] if link in (1, 113, 276) else []), link)
    packets = [whole[:size] for size in range(len(whole) + 1)]
    payloads, _, stopped, counts = read_bytes(tmp_path, pcap(packets, link=link))
    assert payloads == [b"payload"]
    assert stopped is None
    assert counts.packets == len(packets)


def test_simple_packets_are_cut_at_the_snap_length(tmp_path: Path) -> None:
    frame = ethernet(b"x" * 100)
    kept = frame[:60]
    data = section() + interface(snap_bytes=60) + block(3, struct.pack("<I", len(frame)) + kept)
    assert read_bytes(tmp_path, data)[3] == InputStatistics(packets=1, cut=1)


def test_packets_without_a_complete_udp_datagram_are_skipped_and_counted(tmp_path: Path) -> None:
    good = ethernet(b"good")
    lying = bytearray(good)
    lying[38:40] = struct.pack(">H", 60_000)  # the UDP length
    short_header = bytearray(good)
    short_header[14] = 0x44
    ipv6 = good[:12] + b"\x86\xdd" + good[14:]
    packets = [
        good,
        ethernet(b"tagged", vlans=[0x8100]),
        ethernet(b"twice", vlans=[0x88A8, 0x8100]),
        ethernet(b"options", options=b"\1" * 12),
        ethernet(b"padded", padding=b"\0" * 40),
        ethernet(b"tcp", protocol=6),
        ethernet(b"first", fragment=0x2000),
        ethernet(b"later", fragment=0x0010),
        ethernet(b"do not fragment", fragment=0x4000),
        ethernet(b"elsewhere", port=9),
        ipv6,
        bytes(lying),
        bytes(short_header),
        b"",
        b"\1" * 13,
        b"\1" * 12 + b"\x81\x00" * 40,
    ]
    payloads, _, stopped, counts = read_bytes(tmp_path, pcap(packets), port=26400)
    assert payloads == [b"good", b"tagged", b"twice", b"options", b"padded", b"do not fragment"]
    assert stopped is None
    assert counts == InputStatistics(packets=16, datagrams=6, not_udp=5, fragments=2, other_port=1, malformed=2)
    assert counts.notes() == (
        "packets skipped because their headers contradict each other: 2",
        "packets skipped because they were fragments of an IP datagram: 2",
    )


def test_datagrams_captured_only_in_part_are_counted(tmp_path: Path) -> None:
    packets = [ethernet(b"x" * 10), ethernet(b"y" * 100)]
    payloads, _, _, counts = read_bytes(tmp_path, pcap(packets, snap_bytes=80))
    assert payloads == [b"x" * 10]
    assert counts == InputStatistics(packets=2, datagrams=1, cut=1)


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("window_bytes", [1, 40, 333])
def test_gzip_windows_and_batches_of_any_size(
    tmp_path: Path, make: Any, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blackbox_feeds.io.pcap, "_BATCH", 3)
    data = gzip.compress(make([ethernet(payload) for payload in PAYLOADS]))
    payloads, _, stopped, _ = read_bytes(tmp_path, data, window_bytes=window_bytes)
    assert payloads == PAYLOADS
    assert stopped is None


@pytest.mark.parametrize("make", [pcap, partial(pcap, order=">"), pcapng])
def test_truncated_at_every_byte(tmp_path: Path, make: Any) -> None:
    whole = make([ethernet(payload) for payload in PAYLOADS[:6]])
    sizes = {len(make([ethernet(p) for p in PAYLOADS[:k]])): k for k in range(7)}
    clean = set(sizes) | ({0x1C} if make is pcapng else set())
    done = 0
    for size in range(len(whole) + 1):
        done = sizes.get(size, done)
        payloads, _, stopped, _ = read_bytes(tmp_path, whole[:size])
        assert payloads == PAYLOADS[:done]
        assert (stopped is None) == (size in clean)
        assert stopped is None or f"input ended at byte {size}" in stopped


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_bit_flips_never_crash(tmp_path: Path, make: Any) -> None:
    whole = make([ethernet(payload) for payload in PAYLOADS[:6]])
    chance = random.Random(3)
    for _ in range(1_500):
        flipped = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3])):
            bit = chance.randrange(32, 8 * len(whole))
            flipped[bit // 8] ^= 1 << bit % 8
        try:
            payloads, _, _, counts = read_bytes(tmp_path, bytes(flipped))
        except SourceError as error:
            assert "link type was" in str(error)  # noqa: PT017 - not every flip raises
            continue
        assert counts.datagrams == len(payloads) <= counts.packets <= 20


def test_an_invalid_record_stops_and_is_located(tmp_path: Path) -> None:
    data = pcap([ethernet(b"x")]) + struct.pack("<IIII", 0, 0, 1 << 20, 1 << 20) + b"\0" * 100
    payloads, _, stopped, _ = read_bytes(tmp_path, data)
    assert payloads == [b"x"]
    assert stopped == (
        f"{tmp_path / 'capture'}: no valid pcap record starts at byte 83: "
        "its captured bytes were 1048576, expected up to 262144"
    )


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<II", 6, 13) + b"\0" * 20,
        struct.pack("<II", 6, 8) + b"\0" * 20,
        struct.pack("<II", 6, 1 << 30) + b"\0" * 20,
        struct.pack("<II4xI", 5, 16, 17) + b"\0" * 20,
        struct.pack("<III", 0x0A0D0D0A, 28, 0xDEADBEEF) + b"\0" * 20,
        block(6, b"\0" * 16),
        block(6, struct.pack("<IIIII", 9, 0, 0, 0, 0)),
        block(6, struct.pack("<IIIII", 0, 0, 0, 5, 5)),
        block(1, b"\0" * 4),
        block(3, b""),
    ],
)
def test_an_invalid_block_stops_and_is_located(tmp_path: Path, bad: bytes) -> None:
    good = pcapng([ethernet(b"x")])
    payloads, _, stopped, _ = read_bytes(tmp_path, good + bad)
    assert payloads == [b"x"]
    assert stopped is not None
    assert f"no valid pcapng block starts at byte {len(good)}: its type was" in stopped


def test_too_many_interfaces_are_an_error(tmp_path: Path) -> None:
    _, _, stopped, _ = read_bytes(tmp_path, section() + interface() * 257)
    assert stopped is not None
    assert "no valid pcapng block starts at byte" in stopped


def test_simple_packet_needs_an_interface(tmp_path: Path) -> None:
    _, _, stopped, _ = read_bytes(tmp_path, section() + block(3, struct.pack("<I", 4) + b"abcd"))
    assert stopped is not None


def test_what_is_not_a_capture_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="first 4 bytes were 68 65 6c 6c, expected those of a pcap"):
        read_bytes(tmp_path, b"hello, this is some other file")
    data = bytearray(pcap([]))
    data[20] = 105
    with pytest.raises(SourceError, match=r"link type was 105, expected one of 1 \(Ethernet\), 0 \(BSD"):
        read_bytes(tmp_path, bytes(data))


def test_a_block_larger_than_the_window_is_read(tmp_path: Path) -> None:
    data = section() + interface() + block(5, b"\0" * 9_000) + enhanced(ethernet(b"after"))
    payloads, _, stopped, _ = read_bytes(tmp_path, gzip.compress(data), window_bytes=256)
    assert payloads == [b"after"]
    assert stopped is None
