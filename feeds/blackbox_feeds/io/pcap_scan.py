"""The compiled part of `blackbox_feeds.io.pcap`: walk records or blocks, and find the UDP datagram in each.

Both scans write to three columns, and stop when these are full, when the bytes end, or at an invalid record. Nothing is
read outside `data`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.io.integers import big_16, big_32, little_16, little_32
from blackbox_feeds.io.statistics import (
    CUT,
    DATAGRAMS,
    FRAGMENTS,
    MALFORMED,
    NOT_UDP,
    OTHER_LINK,
    OTHER_PORT,
    PACKETS,
)


class Reason(IntEnum):
    """Why a scan stopped: the columns are full, `data` ends, the next bytes are invalid, or it passed a fragment."""

    FILLED = 0
    MORE = 1
    BAD = 2
    FRAGMENT = 3


MAX_PACKET_BYTES = 262_144
"""libpcap's own limit for the captured bytes of one packet."""
MAX_BLOCK_BYTES = 16 << 20
"""A longer pcapng block counts as corrupt."""
MAX_INTERFACES = 256
"""Most interfaces described in one section of a pcapng file."""

LINKS: Final = {
    1: "Ethernet",
    0: "BSD loopback",
    108: "OpenBSD loopback",
    12: "raw IP",
    14: "raw IP",
    101: "raw IP",
    228: "raw IPv4",
    113: "Linux cooked",
    276: "Linux cooked v2",
}
"""Supported link types."""
_ETHERNET, _LOOPBACK, _COOKED, _COOKED_2 = 1, 0, 113, 276
_RAW_IP = (12, 14, 101, 228)
_LINKS_READ = tuple(LINKS)
_NO_ETHERTYPE = (770, 803, 824)
"""ARPHRD values (frame relay, radiotap, netlink) of cooked packets without an Ethernet protocol type."""
_INET = 2
"""AF_INET of every system, in its own byte order."""
_IPV4 = 0x0800
_VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
_UDP = 17
_FRAGMENT_BITS = 0x3FFF
_RECORD_BYTES = 16

_SECTION_HEADER = 0x0A0D0D0A
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _ENHANCED_PACKET = 1, 2, 3, 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_TIME_RESOLUTION, _TIME_OFFSET = 9, 14

# The state of a scan: byte order, ns per unit of a classic record, interfaces so far, offset and time of the last
# fragment, then five columns per interface.
SWAPPED, UNIT_NS, INTERFACES, FRAGMENT_AT, FRAGMENT_NS = range(5)
_TABLE = 5
_LINK, _SNAP_BYTES, _BINARY, _EXPONENT, _OFFSET_S = range(5)
_COLUMNS = 5


def new_scan_state(swapped: bool = False, unit_ns: int = 0, link: int = 0) -> NDArray[numpy.int64]:
    """Return the state before the first record (classic: `unit_ns` per time unit, `link` type) or block."""
    state = numpy.zeros(_TABLE + _COLUMNS * MAX_INTERFACES, numpy.int64)
    state[SWAPPED] = swapped
    state[UNIT_NS] = unit_ns
    state[_TABLE + _LINK] = link
    return state


@njit(nogil=True, cache=True)
def _word_16(data: NDArray[numpy.uint8], position: int, swapped: int) -> int:
    return big_16(data, position) if swapped else little_16(data, position)


@njit(nogil=True, cache=True)
def word_32(data: NDArray[numpy.uint8], position: int, swapped: int) -> int:
    """32 bits at `position` in the byte order of the file."""
    return big_32(data, position) if swapped else little_32(data, position)


@njit(nogil=True, cache=True)
def _ethertype(data: NDArray[numpy.uint8], link: int, start: int, end: int) -> tuple[int, int]:
    """Return the Ethernet type of a packet's payload, and its offset; -1: it has none, or is too short."""
    if link in _RAW_IP:
        return _IPV4, start
    if link == _ETHERNET:
        kind, payload = start + 12, start + 14
    elif link == _COOKED:
        kind, payload = start + 14, start + 16
    elif link == _COOKED_2:
        kind, payload = start, start + 20
    else:
        payload = start + 4
        is_inet = payload <= end and (
            big_32(data, start) == _INET or (link == _LOOPBACK and little_32(data, start) == _INET)
        )
        return _IPV4 if is_inet else -1, payload
    if payload > end:
        return -1, payload
    hardware = start + 2 if link == _COOKED else start + 8
    if link != _ETHERNET and big_16(data, hardware) in _NO_ETHERTYPE:
        return -1, payload
    return big_16(data, kind), payload


@njit(nogil=True, cache=True)
def _ipv4_start(data: NDArray[numpy.uint8], link: int, start: int, end: int) -> int:
    kind, payload = _ethertype(data, link, start, end)
    while kind in _VLAN_TAGS:
        kind = big_16(data, payload + 2) if payload + 4 <= end else -1
        payload += 4
    return payload if kind == _IPV4 else -1


@njit(nogil=True, cache=True)
def find_datagram(
    data: NDArray[numpy.uint8], link: int, start: int, end: int, cut: bool, port: int
) -> tuple[int, int, int]:
    """Return the UDP datagram in the packet `data[start:end]` of a link type.

    `cut`: the capture has only part of the frame; `port`: destination to select, -1 for any. Returns (index of the
    count, offset of the payload, its length), or (FRAGMENTS, offset of the IP packet, 0).
    """
    ip = _ipv4_start(data, link, start, end)
    if ip < 0 or ip + 20 > end or data[ip] >> 4 != 4 or data[ip + 9] != _UDP:
        return NOT_UDP, 0, 0
    if big_16(data, ip + 6) & _FRAGMENT_BITS:
        return (CUT if cut else MALFORMED) if ip + big_16(data, ip + 2) > end else FRAGMENTS, ip, 0
    udp = ip + (data[ip] & 15) * 4
    short = CUT if cut else MALFORMED
    if udp < ip + 20 or udp + 8 > end:
        return short, 0, 0
    if port >= 0 and big_16(data, udp + 2) != port:
        return OTHER_PORT, 0, 0
    length = big_16(data, udp + 4)
    if length < 8 or udp - ip + length > big_16(data, ip + 2):
        return MALFORMED, 0, 0
    if udp + length > end:
        return short, 0, 0
    return DATAGRAMS, udp + 8, length - 8


class DatagramColumns(NamedTuple):
    """Columns for the datagrams found by a scan."""

    starts: NDArray[numpy.int64]
    lengths: NDArray[numpy.int32]
    capture_ns: NDArray[numpy.int64]


@njit(nogil=True, cache=True)
def _take_packet(
    data: NDArray[numpy.uint8],
    link: int,
    start: int,
    captured: int,
    original: int,
    time_ns: int,
    port: int,
    counts: NDArray[numpy.int64],
    columns: DatagramColumns,
    row: int,
    state: NDArray[numpy.int64],
) -> int:
    """Count the packet at `start`, and write its datagram, if it has one, to `row`; return the next row.

    A fragment is written to the state, and is not counted as one.
    """
    kind, payload, length = find_datagram(data, link, start, start + captured, captured < original, port)
    counts[PACKETS] += 1
    if kind == FRAGMENTS:
        state[FRAGMENT_AT], state[FRAGMENT_NS] = payload, time_ns
        return row
    counts[kind] += 1
    if kind != DATAGRAMS:
        return row
    columns.starts[row] = payload
    columns.lengths[row] = length
    columns.capture_ns[row] = time_ns
    return row + 1


@njit(nogil=True, cache=True)
def scan_records(
    data: NDArray[numpy.uint8],
    position: int,
    state: NDArray[numpy.int64],
    port: int,
    counts: NDArray[numpy.int64],
    columns: DatagramColumns,
) -> tuple[int, int, int]:
    """Walk the records of a classic pcap file from `position` on.

        record = seconds 4 | fraction 4 | captured bytes 4 | original bytes 4 | packet

    Returns (datagrams found, where to go on, why it stopped).
    """
    swapped = state[SWAPPED]
    unit_ns, link = state[UNIT_NS], state[_TABLE + _LINK]
    found = 0
    while found < len(columns.starts):
        packet = position + _RECORD_BYTES
        if packet > len(data):
            return found, position, Reason.MORE
        captured = word_32(data, position + 8, swapped)
        if captured > MAX_PACKET_BYTES:
            return found, position, Reason.BAD
        if packet + captured > len(data):
            return found, position, Reason.MORE
        original = word_32(data, position + 12, swapped)
        time_ns = word_32(data, position, swapped) * 1_000_000_000 + word_32(data, position + 4, swapped) * unit_ns
        state[FRAGMENT_AT] = 0
        found = _take_packet(data, link, packet, captured, original, time_ns, port, counts, columns, found, state)
        position = packet + captured
        if state[FRAGMENT_AT]:
            return found, position, Reason.FRAGMENT
    return found, position, Reason.FILLED


@njit(nogil=True, cache=True)
def _block_bytes(data: NDArray[numpy.uint8], position: int, state: NDArray[numpy.int64]) -> tuple[int, int]:
    """Return (the length of the block at `position`, Reason.FILLED), or (0, why it cannot be read)."""
    if position + 12 > len(data):
        return 0, Reason.MORE
    if little_32(data, position) == _SECTION_HEADER:
        if little_32(data, position + 8) == _BYTE_ORDER_MAGIC:
            state[SWAPPED] = 0
        elif big_32(data, position + 8) == _BYTE_ORDER_MAGIC:
            state[SWAPPED] = 1
        else:
            return 0, Reason.BAD
    length = word_32(data, position + 4, state[SWAPPED])
    if length < 12 or length % 4 or length > MAX_BLOCK_BYTES:
        return 0, Reason.BAD
    if position + length > len(data):
        return 0, Reason.MORE
    return length, Reason.FILLED if word_32(data, position + length - 4, state[SWAPPED]) == length else Reason.BAD


@njit(nogil=True, cache=True)
def _add_interface(data: NDArray[numpy.uint8], position: int, length: int, state: NDArray[numpy.int64]) -> bool:
    """Record an interface description block. Return False if there is no room, or it is too short."""
    if length < 20 or state[INTERFACES] == MAX_INTERFACES:
        return False
    swapped = state[SWAPPED]
    row = _TABLE + _COLUMNS * state[INTERFACES]
    state[INTERFACES] += 1
    state[row + _LINK] = _word_16(data, position + 8, swapped)
    state[row + _SNAP_BYTES] = word_32(data, position + 12, swapped)
    state[row + _BINARY] = 0
    state[row + _EXPONENT] = 6
    state[row + _OFFSET_S] = 0
    option = position + 16
    end = position + length - 4
    while option + 4 <= end:
        code = _word_16(data, option, swapped)
        size = _word_16(data, option + 2, swapped)
        if code == 0 or option + 4 + size > end:
            break
        if code == _TIME_RESOLUTION and size >= 1:
            state[row + _BINARY] = data[option + 4] >> 7
            state[row + _EXPONENT] = data[option + 4] & 0x7F
        elif code == _TIME_OFFSET and size == 8:
            first = word_32(data, option + 4, swapped)
            second = word_32(data, option + 8, swapped)
            state[row + _OFFSET_S] = first << 32 | second if swapped else second << 32 | first
        option += 4 + (size + 3) // 4 * 4
    return True


@njit(nogil=True, cache=True)
def _nanoseconds(ticks: int, state: NDArray[numpy.int64], row: int) -> int:
    """Return a pcapng time stamp in ns since 1970, by its interface's resolution and offset."""
    exponent = state[row + _EXPONENT]
    if state[row + _BINARY]:
        exponent = min(exponent, 62)
        part = ticks & ((1 << exponent) - 1)
        # 33 bits of a fraction times 10 ** 9 just fit into an int64.
        kept = min(exponent, 33)
        time_ns = (ticks >> exponent) * 1_000_000_000
        time_ns += ((part >> (exponent - kept)) * 1_000_000_000) >> kept
    elif exponent <= 9:
        time_ns = ticks * 10 ** (9 - exponent)
    else:
        time_ns = ticks // 10 ** min(exponent - 9, 18)
    return time_ns + state[row + _OFFSET_S] * 1_000_000_000


@njit(nogil=True, cache=True)
def _packet_bounds(
    data: NDArray[numpy.uint8],
    position: int,
    kind: int,
    length: int,
    state: NDArray[numpy.int64],
) -> tuple[int, int, int, int, int]:
    """Return a packet block's (interface row, start, captured, original, time in ns).

    The row is -1 if the block is not valid.
    """
    swapped = state[SWAPPED]
    if kind == _SIMPLE_PACKET:
        if length < 16 or state[INTERFACES] == 0:
            return -1, 0, 0, 0, 0
        original = word_32(data, position + 8, swapped)
        captured = min(original, length - 16)
        snap_bytes = state[_TABLE + _SNAP_BYTES]
        if snap_bytes:
            captured = min(captured, snap_bytes)
        return _TABLE, position + 12, captured, original, 0
    if length < 32:
        return -1, 0, 0, 0, 0
    interface = word_32(data, position + 8, swapped)
    if kind == _OLD_PACKET:
        interface = _word_16(data, position + 8, swapped)
    captured = word_32(data, position + 20, swapped)
    if interface >= state[INTERFACES] or captured > min(length - 32, MAX_PACKET_BYTES):
        return -1, 0, 0, 0, 0
    row = _TABLE + _COLUMNS * interface
    original = word_32(data, position + 24, swapped)
    high = word_32(data, position + 12, swapped)
    ticks = high << 32 | word_32(data, position + 16, swapped)
    return row, position + 28, captured, original, _nanoseconds(ticks, state, row)


@njit(nogil=True, cache=True)
def scan_blocks(
    data: NDArray[numpy.uint8],
    position: int,
    state: NDArray[numpy.int64],
    port: int,
    counts: NDArray[numpy.int64],
    columns: DatagramColumns,
) -> tuple[int, int, int]:
    """Walk the blocks of a pcapng file from `position` on.

        block = type 4 | length 4 | body | length 4

    Returns (datagrams found, where to go on, why it stopped). Simple packet blocks have no time:
    theirs is 0.
    """
    found = 0
    while found < len(columns.starts):
        length, why = _block_bytes(data, position, state)
        if why != Reason.FILLED:
            return found, position, why
        kind = word_32(data, position, state[SWAPPED])
        if kind == _SECTION_HEADER:
            state[INTERFACES] = 0
        elif kind == _INTERFACE:
            if not _add_interface(data, position, length, state):
                return found, position, Reason.BAD
        elif kind in (_OLD_PACKET, _SIMPLE_PACKET, _ENHANCED_PACKET):
            row, packet, captured, original, time_ns = _packet_bounds(data, position, kind, length, state)
            if row < 0:
                return found, position, Reason.BAD
            link = state[row + _LINK]
            if link in _LINKS_READ:
                state[FRAGMENT_AT] = 0
                found = _take_packet(
                    data, link, packet, captured, original, time_ns, port, counts, columns, found, state
                )
                if state[FRAGMENT_AT]:
                    return found, position + length, Reason.FRAGMENT
            else:
                counts[PACKETS] += 1
                counts[OTHER_LINK] += 1
        position += length
    return found, position, Reason.FILLED
