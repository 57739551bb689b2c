"""Odd JSON documents as trades and quotes, and the values expected from each: a table made by hand."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any, Final

from blackbox import Recording
from tests.journals import Day, Put, Row, feed_of

Values = tuple[float | None, float | None, int | None]

GOOD: Final[Values] = (1.5, 2.0, 7)
NONE: Final[Values] = (None, None, None)

ODD: Final[tuple[tuple[bytes, Values], ...]] = (
    (b'{"data":{"p":1.5,"q":2,"t":7}}', GOOD),
    # Text before and after the document
    (b'1 {"data":{"p":1.5,"q":2,"t":7}}\r\n \t', GOOD),
    (b'\xff\xfe \xef\xbb\xbf{"data":{"p":1.5,"q":2,"t":7}}', GOOD),
    (b'1 {"data":{"p":1.5,"q":2,"t":7}} x', NONE),
    (b'1 {"data":{"p":1.5,"q":2,"t":7}}{}', NONE),
    (b'1 {"data":{"p":1.5,"q":2,"t":7}},null', NONE),
    (b'1 {"data":{"p":1.5,"q":2,"t":7}}]', NONE),
    (b'1 {"data":{"p":1.5,"q":2,"t":7}}\0', NONE),
    (b'1 {"data":{"p":1.5,"q":2,"t":7}} // x', NONE),
    (b'1 {"data":{"p":1.5,"q":2,"t":7}', NONE),
    (b'1 {x {"data":{"p":1.5,"q":2,"t":7}}', NONE),
    (b"1 no document", NONE),
    (b"", NONE),
    # Its form
    (b'{"data":{"p":9,"q":9,"t":9,"p":1.5,"q":2,"t":7}}', GOOD),
    (b'{"data":{"P":9,"\\u0070":1.5,"q":2,"t":7}}', GOOD),
    (b'{"p":1.5,"q":2,"t":7}', GOOD),
    (b'{"p":1.5,"data":{"q":2},"t":7}', GOOD),
    (b'{"data":[{"p":1}],"p":1.5,"q":2,"t":7}', GOOD),
    (b'{"data":null,"p":1.5,"q":2,"t":7}', GOOD),
    (b'{"data":{"p":null,"q":2,"t":7},"p":1.5}', GOOD),
    (b'{"data":{"p":1.5,"q":2,"t":7},}', NONE),
    (b"{'data':{'p':1.5,'q':2,'t':7}}", NONE),
    (b'{data:{"p":1.5,"q":2,"t":7}}', NONE),
    (b'{"x":"\x01","data":{"p":1.5,"q":2,"t":7}}', NONE),
    (b'{"x":"\\ud800","data":{"p":1.5,"q":2,"t":7}}', NONE),
    (b'{"x":"\\q","data":{"p":1.5,"q":2,"t":7}}', NONE),
    (b'{"data":{"p":1.5,"q":2,"t":7,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", NONE),
    # Numbers
    (b'{"data":{"p":"1.5","q":"2","t":"7"}}', GOOD),
    (b'{"data":{"p":"+15e-1","q":"2.","t":7}}', GOOD),
    (b'{"data":{"p":" 1.5","q":2,"t":7}}', (None, 2, 7)),
    (b'{"data":{"p":"1.5\\n","q":2,"t":7}}', (None, 2, 7)),
    (b'{"data":{"p":"abc","q":2,"t":7}}', (None, 2, 7)),
    (b'{"data":{"p":"\\u0661.5","q":2,"t":"\\u0667"}}', (None, 2, None)),
    (b'{"data":{"p":"1e400","q":2,"t":7}}', (None, 2, 7)),
    (b'{"data":{"p":"NaN","q":"Infinity","t":7}}', (None, None, 7)),
    (b'{"data":{"p":true,"q":[2],"t":{}}}', NONE),
    (b'{"data":{"p":1e400,"q":2,"t":7}}', NONE),
    (b'{"data":{"p":NaN,"q":2,"t":7}}', NONE),
    (b'{"data":{"p":01.5,"q":2,"t":7}}', NONE),
    (b'{"data":{"p":1.5,"q":2,"t":7,"x":-Infinity}}', NONE),
    (b'{"data":{"p":-0.0,"q":1e-400,"t":7}}', (0.0, 0.0, 7)),
    (b'{"data":{"p":9007199254740993,"q":2,"t":9007199254740993}}', (2.0**53, 2, 2**53 + 1)),
    (b'{"data":{"p":1' + b"0" * 400 + b',"q":2,"t":7}}', NONE),
    (b'{"data":{"p":1.5,"q":123456789012345678901234567890,"t":7}}', (1.5, 123456789012345678901234567890.0, 7)),
    # Ids
    (b'{"data":{"p":1.5,"q":2,"t":5.0}}', (1.5, 2, None)),
    (b'{"data":{"p":1.5,"q":2,"t":"5.0"}}', (1.5, 2, None)),
    (b'{"data":{"p":1.5,"q":2,"t":5e0}}', (1.5, 2, None)),
    (b'{"data":{"p":1.5,"q":2,"t":true}}', (1.5, 2, None)),
    (b'{"data":{"p":1.5,"q":2,"t":"+5"}}', (1.5, 2, None)),
    (b'{"data":{"p":1.5,"q":2,"t":"-5"}}', (1.5, 2, -5)),
    (b'{"data":{"p":1.5,"q":2,"t":9223372036854775807}}', (1.5, 2, 2**63 - 1)),
    (b'{"data":{"p":1.5,"q":2,"t":9223372036854775808}}', (1.5, 2, None)),
    (b'{"data":{"p":1.5,"q":2,"t":"9223372036854775808"}}', (1.5, 2, None)),
)
"""Payloads with their price, size and id."""


def odd_day(path: Path) -> Recording:
    """Write them as Binance trades, one per symbol, and then as quotes with that price and size as bid."""
    trades = [Row(b"s%d.trade" % place, payload, place) for place, (payload, _) in enumerate(ODD)]
    renamed = (b'"p"', b'"b"'), (b'"\\u0070"', b'"\\u0062"'), (b'"q"', b'"B"')
    bids = [reduce(lambda text, names: text.replace(*names), renamed, payload) for payload, _ in ODD]
    quotes = [Row(b"s%d.bookTicker" % place, payload, place) for place, payload in enumerate(bids)]
    day = Day(path, feed_of(schema="binance"))
    day.put(0, Put((*trades, *quotes)))
    return Recording.open(day.path)


def odd_trades() -> list[tuple[Any, ...]]:
    """Return (index, price, size, id) of the payloads with a price and a size above 0."""
    return [(place, *values) for place, (_, values) in enumerate(ODD) if values[0] is not None and values[1]]


def odd_quotes() -> list[tuple[Any, ...]]:
    """Return (index, bid, bid size, ask, ask size). A bid is absent if it is 0 or not in the document."""
    sides = [(price, size) if price else (None, None) for _, (price, size, _) in ODD]
    return [(len(ODD) + place, *side, None, None) for place, side in enumerate(sides)]
