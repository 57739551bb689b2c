"""Files made by the tests, byte by byte with `struct`, from the specifications."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import partial

import pytest
from blackbox_feeds.io.open_window import open_window

from blackbox.feed.source import Chunk, Source

Message = tuple[bytes, int, bytes]
"""Topic, ts_event, payload."""

# Fields by type, as in the specification. ITCH messages begin with type, locate, tracking number and 6-byte time.
ITCH_FORMS = {kind: "cHH6s" + fields for kind, fields in {
    "S": "c", "R": "8sccIcc2scccccIc", "H": "8scc4s", "Y": "8sc", "L": "4s8sccc", "V": "QQQ", "W": "c",
    "K": "8sIcI", "J": "8sIIII", "h": "8scc", "A": "QcI8sI", "F": "QcI8sI4s", "E": "QIQ", "C": "QIQcI",
    "X": "QI", "D": "Q", "U": "QQII", "P": "QcI8sIQ", "Q": "Q8sIQc", "B": "Q", "I": "QQc8sIIIcc",
    "N": "8sc", "O": "8scIIIQII",
}.items()}  # fmt: skip
IEX_FORMS = {
    "S": "ccq", "D": "cBq8sIqB", "H": "ccq8s4s", "I": "ccq8s", "O": "ccq8s", "P": "ccq8sc", "E": "ccq8s",
    "Q": "cBq8sIqqI", "8": "cBq8sIq", "5": "cBq8sIq", "T": "cBq8sIqq", "X": "ccq8sq", "B": "cBq8sIqq",
    "A": "ccq8sIqqIcBIqqqq",
}  # fmt: skip
ITCH_LENGTHS = {kind: struct.calcsize(">" + form) for kind, form in ITCH_FORMS.items()}
ITCH_STOCK_AT = {
    kind: struct.calcsize(">" + form.partition("8s")[0]) for kind, form in ITCH_FORMS.items() if "8s" in form
}
IEX_LENGTHS = {kind: struct.calcsize("<" + form) for kind, form in IEX_FORMS.items()}
TOPS, DEEP = 0x8003, 0x8004


def messages_of(source: Source) -> list[Message]:
    """Return every message of a source, one by one."""
    return [message for chunk in source.chunks() for message in messages_in(chunk)]


def payloads_of(source: Source) -> list[bytes]:
    return [payload for *_, payload in messages_of(source)]


def payloads_and_gaps_of(source: Source) -> list[bytes | int]:
    """Return the payloads of a source, and numbers of missing messages at their positions."""
    found: list[bytes | int] = []
    for chunk in source.chunks():
        for missing, run in chunk.runs():
            found += [missing] if missing else []
            found += [payload for *_, payload in messages_in(run)]
    return found


def messages_in(chunk: Chunk) -> Iterable[Message]:
    for index, ts_event, start, length in zip(
        chunk.topic_index.tolist(),
        chunk.ts_event.tolist(),
        chunk.starts.tolist(),
        chunk.lengths.tolist(),
        strict=True,
    ):
        payload = chunk.payloads[start : start + length].tobytes()
        yield chunk.topics[index], ts_event, payload


def itch(kind: str, locate: int = 1, ns: int = 0, stock: str = "AAPL", fill: bytes = b"\x11") -> bytes:
    """Return one ITCH message; fields without an argument are filled with `fill`."""
    head = struct.pack(">cHH", kind.encode(), locate, 0) + ns.to_bytes(6, "big")
    size = ITCH_LENGTHS[kind]
    body = bytearray(head + (fill * size)[: size - len(head)])
    if kind in ITCH_STOCK_AT:
        at = ITCH_STOCK_AT[kind]
        body[at : at + 8] = stock.ljust(8).encode("latin-1")
    return bytes(body)


def framed(messages: Iterable[bytes]) -> bytes:
    """Return each message after its big-endian length."""
    return b"".join(struct.pack(">H", len(message)) + message for message in messages)


def mold(
    sequence: int,
    messages: Sequence[bytes],
    session: bytes = b"0000000001",
    count: int | None = None,
) -> bytes:
    """Return a MoldUDP64 datagram."""
    number = len(messages) if count is None else count
    return session + struct.pack(">QH", sequence, number) + framed(messages)


def iex(kind: str, ns: int = 0, symbol: str = "AAPL", extra: bytes = b"") -> bytes:
    """Return one IEX message."""
    head = struct.pack("<ccq", kind.encode(), b"x", ns)
    if kind != "S":
        head += symbol.ljust(8).encode("latin-1")
    return head.ljust(IEX_LENGTHS[kind], b"\x22") + extra


def iex_tp(
    sequence: int,
    messages: Sequence[bytes],
    send_time: int = 0,
    protocol: int = DEEP,
    session: int = 7,
    payload_bytes: int | None = None,
    count: int | None = None,
) -> bytes:
    """Return an IEX-TP datagram."""
    blocks = b"".join(struct.pack("<H", len(message)) + message for message in messages)
    size = len(blocks) if payload_bytes is None else payload_bytes
    number = len(messages) if count is None else count
    return struct.pack("<BBHIIHHqqq", 1, 0, protocol, 1, session, size, number, 0, sequence, send_time) + blocks


def iex_expected(messages: Sequence[bytes]) -> list[Message]:
    """Return IEX messages decoded by `struct`."""
    found = []
    for payload in messages:
        kind = payload[:1].decode()
        symbol = "#system" if kind == "S" else payload[10:18].decode().rstrip() or "#0"
        (ns,) = struct.unpack_from("<q", payload, 2)
        found.append((f"{symbol}.{kind}".encode(), ns, payload[: IEX_LENGTHS[kind]]))
    return found


def ethernet(
    payload: bytes,
    port: int = 26400,
    vlans: Sequence[int] = (),
    options: bytes = b"",
    fragment: int = 0,
    protocol: int = 17,
    padding: bytes = b"",
) -> bytes:
    """Return an Ethernet frame with one UDP datagram over IPv4."""
    udp = struct.pack(">HHHH", 40000, port, 8 + len(payload), 0) + payload
    ip = struct.pack(
        ">BBHHHBBH4s4s",
        0x45 + len(options) // 4,
        0,
        20 + len(options) + len(udp),
        1,
        fragment,
        64,
        protocol,
        0,
        b"\x0a\0\0\1",
        b"\xe9\x36\x0c\x01",
    )
    tags = b"".join(struct.pack(">HH", tag, 5) for tag in vlans)
    return b"\1" * 12 + tags + b"\x08\x00" + ip + options + udp + padding


def linked(frame: bytes, link: int) -> bytes:
    """Convert an Ethernet frame to another link type: the header differs, the rest is the same."""
    kind, payload = frame[12:14], frame[14:]
    address = b"\1\2\3\4\5\6\0\0"
    headers = {
        1: frame[:14],
        113: struct.pack(">HHH", 2, 1, 6) + address + kind,
        276: kind + struct.pack(">HIHBB", 0, 7, 1, 2, 6) + address,
        0: struct.pack("<I", 2),
        108: struct.pack(">I", 2),
        101: b"",
        228: b"",
        12: b"",
        14: b"",
    }
    return headers[link] + payload


def pcap(
    packets: Iterable[bytes],
    order: str = "<",
    nanoseconds: bool = False,
    snap_bytes: int = 65535,
    first_second: int = 1_577_716_200,
    link: int = 1,
) -> bytes:
    """Return a classic pcap file; packet k was captured 7 * k time units after `first_second`."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap_bytes, link)]
    for number, packet in enumerate(packets):
        kept = packet[:snap_bytes]
        out.append(struct.pack(order + "IIII", first_second, 7 * number, len(kept), len(packet)) + kept)
    return b"".join(out)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Return a pcapng block."""
    body += b"\0" * (-len(body) % 4)
    size = 12 + len(body)
    return struct.pack(order + "II", kind, size) + body + struct.pack(order + "I", size)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(order: str = "<", options: bytes = b"", link: int = 1, snap_bytes: int = 0) -> bytes:
    return block(1, struct.pack(order + "HHI", link, 0, snap_bytes) + options, order)


def enhanced(packet: bytes, ticks: int = 0, number: int = 0, order: str = "<") -> bytes:
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), len(packet))
    return block(6, head + packet, order)


def pcapng(packets: Iterable[bytes], order: str = "<") -> bytes:
    """Return a pcapng file of one section and one interface with times in microseconds."""
    blocks = [enhanced(packet, 7 * number, order=order) for number, packet in enumerate(packets)]
    return section(order) + interface(order) + b"".join(blocks)


def use_windows(monkeypatch: pytest.MonkeyPatch, feed: str, window_bytes: int) -> None:
    """Let a feed open its files with windows of this size."""
    small = partial(open_window, window_bytes=window_bytes)
    monkeypatch.setattr(f"blackbox_feeds.{feed}.source.open_window", small)
