"""A slow and obvious decoder of framed ITCH, to compare the compiled one with."""

from __future__ import annotations

import struct

from blackbox_feeds.io.dates import midnight_ns, trading_day

from tests.feeds.build import ITCH_LENGTHS, ITCH_STOCK_AT, Message


def decode_itch(data: bytes, day: str, template: str) -> tuple[list[Message], int]:
    """Return the valid and complete messages at the start of `data`, and where the last one ends."""
    midnight = midnight_ns(trading_day(day, ""))
    stocks: dict[int, str] = {}
    messages = []
    position = 0
    while position + 3 <= len(data):
        (length,) = struct.unpack_from(">H", data, position)
        payload = data[position + 2 : position + 2 + length]
        kind = chr(payload[0]) if payload else ""
        known = ITCH_LENGTHS.get(kind)
        if len(payload) < length or (known != length and not may_be(data, position)):
            break
        position += 2 + length
        if known is None:
            continue
        payload = payload[:known]
        locate, high, low = struct.unpack_from(">H2xHI", payload, 1)
        if kind in ITCH_STOCK_AT:
            at = ITCH_STOCK_AT[kind]
            stock = payload[at : at + 8].rstrip(b" \0")
            if stock[:1] == b"#" or any(not 0x20 <= byte <= 0x7E for byte in stock):
                continue
            if stock:
                stocks[locate] = stock.decode()
        symbol = "#system" if kind in "SVW" else stocks.get(locate) or f"#{locate}"
        topic = template.format(symbol=symbol, type=kind, locate=locate).encode()
        messages.append((topic, midnight + (high << 32 | low), payload))
    return messages, position


def may_be(data: bytes, position: int) -> bool:
    """Return True if the frame at `position` may be of a new type, or longer: a known frame or the end follows."""
    for _ in range(64):
        (length,) = struct.unpack_from(">H", data, position)
        kind = chr(data[position + 2])
        if not "!" <= kind <= "~" or length < max(ITCH_LENGTHS.get(kind, 0), 12):
            return False
        position += 2 + length
        if position > len(data):
            return False
        if position + 3 > len(data):
            return True
        (length,) = struct.unpack_from(">H", data, position)
        if ITCH_LENGTHS.get(chr(data[position + 2])) == length:
            return True
    return False
