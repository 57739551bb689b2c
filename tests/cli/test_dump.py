"""`blackbox dump`: messages as text and as JSON."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import Recording, Schema
from blackbox.block.batch.plain_message import decimal_text
from blackbox.feed.schema.schema import price
from tests.cli.commands import succeed
from tests.cli.days import OPEN, SECOND, trade
from tests.journals import Day, Put, Row, feed_of


def objects(*words: object) -> list[dict[str, Any]]:
    ended = succeed("dump", *words, "--json")
    return [json.loads(line) for line in ended.out.splitlines()]


def test_messages_are_dumped_as_text_and_as_json(day: Day) -> None:
    ended = succeed("dump", day.path, "--count", 3)
    lines = ended.out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("2026-11-20T14:30:00.000000000Z AAPL.P message_type=P ")
    assert "price=12.3450" in lines[0]
    found = objects(day.path)
    assert found[0] == {
        "topic": "AAPL.P",
        "ts_event": OPEN,
        "ts_out": OPEN,
        "ts_recv": OPEN + 7,
        "slice": 0,
        "epoch": 1,
        "sequence": 0,
        "record": {
            "message_type": "P",
            "stock_locate": 0,
            "tracking_number": 0,
            "timestamp": 9 * 3600 + 1800,
            "order_reference_number": 2**63,
            "buy_sell_indicator": "B",
            "shares": 0,
            "stock": "AAPL",
            "price": "12.3450",
            "match_number": 0,
        },
    }
    expected = [(m.slice_id, m.sequence, m.topic.decode(), m.ts_event) for m in day.told()]
    assert [(m["slice"], m["sequence"], m["topic"], m["ts_event"]) for m in found] == expected


def test_payloads_without_a_schema_are_dumped_in_base64(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A\xff", b"\x00\xff", 1), Row(b"A", b"", 2))))
    first, second = objects(day.path)
    assert (first["topic"], base64.b64decode(first["payload"])) == ("A\\xff", b"\x00\xff")
    assert second["payload"] == ""


@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        (["--prefix", "BAC"], [*range(10), *range(15, 25)]),
        (["--prefix", "AAPL", "--prefix", "BAC", "--start", "09:30:18"], [18, 19, 23, 24]),
        (["--start", "09:30:03", "--stop", "09:30:05", "--slice", "0"], [3, 4]),
        (["--stop", str(OPEN + SECOND), "--slice", "0", "--slice", "1"], [0, 0]),
        (["--start", "2026-11-20T14:30:19Z", "--slice", "1"], [24]),
        (["--prefix", "X", "--prefix", "Y"], []),
        (["--symbol", "AAP", "--symbol", "BAC"], [*range(10), *range(15, 25)]),
        (["--symbol", "AAPL", "--prefix", "AA", "--stop", "09:30:02"], [0, 1]),
    ],
)
def test_options_select_the_dumped_messages(day: Day, words: list[str], sequences: list[int]) -> None:
    assert [message["sequence"] for message in objects(day.path, *words)] == sequences


@pytest.mark.parametrize(
    ("number", "decimals", "text"),
    [(123_450, 4, "12.3450"), (-5, 4, "-0.0005"), (0, 2, "0.00"), (7, 0, "7"), (2**63 - 1, 4, "922337203685477.5807")],
)
def test_prices_are_exact(number: int, decimals: int, text: str) -> None:
    assert decimal_text(number, decimals) == text


@pytest.mark.parametrize("order", [(2, 4), (4, 2)])
def test_prices_have_the_decimals_of_their_own_schema(tmp_path: Path, order: tuple[int, ...]) -> None:
    for decimals in order:
        dtype = numpy.dtype([("kind", "S1"), ("price", price("<i8", decimals))])
        feed = msgspec.structs.replace(feed_of(), schema=Schema("own", 4_000, {"P": dtype}))
        day = Day(tmp_path / str(decimals), feed)
        day.put(0, Put((Row(b"A.P", numpy.array([(b"P", 123_450)], dtype).tobytes(), 1),), schema=4_000))
        (found,) = objects(day.path)
        assert found["record"]["price"] == decimal_text(123_450, decimals)


def test_a_day_of_a_raw_feed_has_the_schema_of_its_blocks(tmp_path: Path) -> None:
    day = Day(tmp_path / "recorded" / "2026-11-20", feed_of(2))
    day.put(0, Put((trade("AAPL", 0),), schema=1))
    recording = Recording.open(day.path)
    assert (recording.feed.schema, recording.schema.name) == ("itch50", "itch50")
    assert recording.to_arrow(message_type="P").column("stock").to_pylist() == ["AAPL"]
    (found,) = objects(day.path)
    assert found["record"]["stock"] == "AAPL"
    day.put(1, Put((Row(b"B", b"?"),)))
    assert Recording.open(day.path).feed.schema == "raw"
