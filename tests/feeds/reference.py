"""A slow and obvious decoder of framed ITCH, to hold the compiled one against."""

from __future__ import annotations

import struct

from blackbox_feeds.io.dates import midnight_ns, trading_day

from tests.feeds.build import ITCH_LENGTHS, ITCH_STOCK_AT, Message


def decode_itch(data: bytes, day: str, template: str) -> tuple[list[Message], int]:
    """The messages at the start of `data` that are valid and whole, and where the last one ends."""
    midnight = midnight_ns(trading_day(day, ""))
    stocks: dict[int, str] = {}
    messages = []
    position = 0
    while position + 3 <= len(data):
        (length,) = struct.unpack_from(">H", data, position)
        payload = data[position + 2 : position + 2 + length]
        kind = chr(payload[0]) if payload else ""
        if ITCH_LENGTHS.get(kind) != length or len(payload) < length:
            break
        locate, high, low = struct.unpack_from(">H2xHI", payload, 1)
        if kind in ITCH_STOCK_AT:
            at = ITCH_STOCK_AT[kind]
            if payload[at : at + 8] != b" " * 8:
                stocks[locate] = payload[at : at + 8].decode("latin-1").rstrip(" \0")
        symbol = stocks.get(locate) or f"#{locate}"
        symbol = "".join(c if "!" <= c <= "~" else "?" for c in symbol)
        if kind in "SVW":
            symbol = "#system"
        topic = template.format(symbol=symbol, type=kind, locate=locate).encode()
        messages.append((topic, midnight + (high << 32 | low), payload))
        position += 2 + length
    return messages, position
