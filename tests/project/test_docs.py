"""The documents say what the code does: every offset, the worked examples, the exit statuses."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path

import msgspec
import pytest

from blackbox.block import format as layout
from blackbox.block.acknowledgement import Acknowledgement
from blackbox.block.block import Block
from blackbox.block.format import HEARTBEAT_KEY, body_layout
from blackbox.cli.ui.status import STATUS_HELP, Status
from blackbox.feed.schema import QuoteFields, TradeFields, load_schema
from blackbox.replay.control_socket import ControlSocket
from blackbox.replay.controls import Controls
from blackbox.replay.status import ReplayStatus

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIRE = (DOCS / "wire-format.md").read_text()

FLAGS = ("CHECKSUM", "FIXED", "CONTROL", "LINE_B", "END", "SEQUENCES", "NULLS", "NUMBERS", "REFUSED")
EPOCH = 1_699_999_999_000_000_000

HEADER_FIELDS = {
    "magic": "MAGIC",
    "version": "VERSION",
    "key_bytes": "KEY_BYTES",
    "flags": "FLAGS",
    "schema": "SCHEMA",
    "slice": "SLICE",
    "count": "COUNT",
    "epoch": "EPOCH",
    "sequence": "SEQUENCE",
    "ts_out": "TS_OUT",
    "ts_in": "TS_IN",
    "topics": "TOPICS",
    "topic_bytes": "TOPIC_BYTES",
    "body_bytes": "BODY_BYTES",
    "stride": "STRIDE",
    "body_checksum": "BODY_CHECKSUM",
    "header_checksum": "HEADER_CHECKSUM",
}


def dump(name: str) -> bytes:
    """The bytes of a hex dump of the document."""
    (lines,) = re.findall(rf"```hex {name}\n(.*?)```", WIRE, re.DOTALL)
    octets = b""
    for line in lines.splitlines():
        place, _, text = line.partition("  ")
        assert int(place, 16) == len(octets)
        octets += bytes.fromhex(text)
    return octets


def example_block() -> Block:
    return Block.encode(
        (b"AAPL.trade", b"MSFT.trade"),
        [0, 1, 0],
        b"12.5040.112.51",
        ts_event=[1_700_000_000_000_000_001, 1_700_000_000_000_000_002, 1_700_000_000_000_000_003],
        offsets=[0, 5, 9, 14],
        slice_id=1,
        epoch=EPOCH,
        sequence=41,
        ts_out=1_700_000_000_000_500_000,
        ts_in=1_700_000_000_000_400_000,
    )


def test_header_table_has_every_offset_and_no_hole() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| \w+ \| (\w+) \|", WIRE.split("## Body")[0], re.MULTILINE)
    assert {field: int(place) for place, _, field in rows} == {
        field: getattr(layout, f"OFFSET_{name}") for field, name in HEADER_FIELDS.items()
    }
    end = 0
    for place, size, _ in rows:
        assert int(place) == end
        end += int(size)
    assert end == layout.HEADER_BYTES


def test_flag_table() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", WIRE, re.MULTILINE)
    assert {name: int(value) for name, value in rows} == {name: getattr(layout, f"FLAG_{name}") for name in FLAGS}
    assert sum(int(value) for _, value in rows) == layout.KNOWN_FLAGS


@pytest.mark.parametrize(
    "flags", ["", "FIXED", "SEQUENCES", "NULLS", "SEQUENCES NULLS", "FIXED SEQUENCES NULLS", "NUMBERS", "NULLS NUMBERS"]
)
@pytest.mark.parametrize(("count", "topics", "topic_bytes"), [(1, 1, 1), (3, 2, 20), (7, 3, 16), (0, 0, 0)])
def test_body_formulas(count: int, topics: int, topic_bytes: int, flags: str) -> None:
    (formulas,) = re.findall(r"With `align.*?\n\n(.*?)\n\n", WIRE, re.DOTALL)
    names = {"count": count} | {name: name in flags.split() for name in ("FIXED", "SEQUENCES", "NULLS", "NUMBERS")}
    sizes = {"topics": topics, "topic_bytes": topic_bytes}
    for line in formulas.splitlines():
        name, _, formula = line.strip().partition("=")
        python = re.sub(r"^(.*) \? (.*) : (.*)$", r"(\2) if \1 else (\3)", formula.strip())
        # `topics` is a number in the formula of its own place, and that place in the one after it.
        known = names | sizes if name.strip() == "topics" else sizes | names
        names[name.strip()] = eval(python, {"align": lambda x: (x + 7) & ~7}, known)
    places = body_layout(count, topics, topic_bytes, 0, sum(getattr(layout, f"FLAG_{n}") for n in flags.split()))
    assert names["ts_event"] == 0
    for name in (
        "topic_index",
        "payload_offsets",
        "sequences",
        "validity",
        "topic_offsets",
        "topic_numbers",
        "topics",
        "payloads",
    ):
        assert names[name] == getattr(places, name), name


def test_worked_example_is_what_is_encoded() -> None:
    block = example_block()
    assert (block.key, block.header) == (b"", dump("data header"))
    assert block.body.tobytes() == dump("data body")


def test_worked_example_decodes() -> None:
    block = Block.decode(b"", dump("data header"), dump("data body"))
    assert block.topics == [b"AAPL.trade", b"MSFT.trade"]
    assert [block.payload(row) for row in range(3)] == [b"12.50", b"40.1", b"12.51"]
    assert block.topic_index.tolist() == [0, 1, 0]
    assert block.ts_event.tolist() == [1_700_000_000_000_000_000 + row for row in (1, 2, 3)]
    assert (block.slice_id, block.schema_id, block.epoch, block.sequence) == (1, 0, EPOCH, 41)
    assert (block.ts_out, block.ts_in) == (1_700_000_000_000_500_000, 1_700_000_000_000_400_000)


def test_heartbeat_example_is_what_is_encoded() -> None:
    block = Block.encode_sequences(HEARTBEAT_KEY, {b"": 44}, slice_id=1, epoch=EPOCH, ts_out=1_700_000_001_000_000_000)
    assert (block.header, block.body.tobytes()) == (dump("heartbeat header"), dump("heartbeat body"))
    assert Block.decode(HEARTBEAT_KEY, block.header, block.body).next_sequences() == {b"": 44}


def test_limits_and_reserved_keys() -> None:
    assert f"{layout.MAX_BODY_BYTES:,} bytes (64 MiB)" in WIRE
    assert f"{layout.MAX_TOPIC_BYTES:,} bytes" in WIRE
    assert "`00 48`" in WIRE
    assert layout.HEARTBEAT_KEY == b"\x00\x48"
    assert "`00 43` + 8 bytes" in WIRE
    assert layout.CONFIRM_KEY == b"\x00\x43"
    assert "`00 41`" in WIRE
    assert layout.ACCEPT_KEY == b"\x00\x41"
    assert "`00 52`" in WIRE
    assert layout.RECORDED_KEY == b"\x00\x52"
    assert layout.NONCE_BYTES == 8


def test_what_a_recorder_tells_is_where_the_table_says() -> None:
    rows = re.findall(r"^- (\d+)[^:]*: (\w+)", WIRE.split("## How far recorders are")[1], re.MULTILINE)
    what = Acknowledgement(b"nonce678", 2, 3, 5, 4, 6, b"KEY", "a recorder")
    said = what.encode()
    for place, name in rows:
        value = getattr(what, name, None)
        if isinstance(value, int):
            assert int.from_bytes(said[int(place) :][:8], "little") == value, name
        elif isinstance(value, bytes):
            assert said[int(place) :].startswith(value), name
    assert said[50:] == b"\3KEYa recorder"
    assert len(rows) == 8


def test_exit_statuses_are_documented_in_operations_and_in_help() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "operations.md").read_text(), re.MULTILINE)
    assert {int(row) for row in rows} == {*map(int, Status), 129, 143}
    assert {int(number) for number in re.findall(r"\b\d+\b", STATUS_HELP)} == {*map(int, Status), 129, 143}


def test_requests_of_the_page_on_replays_are_understood() -> None:
    requests = re.findall(r"`(\{\"do\".*?\})`", (DOCS / "recorders.md").read_text())
    assert len(requests) == 7
    controls = Controls()
    socket = ControlSocket(controls, "tcp://127.0.0.1:1")
    for request in requests:
        answer = msgspec.json.decode(socket._answer([request.encode()]))
        assert list(answer) == list(ReplayStatus.__struct_fields__)


def _of(kind: TradeFields | QuoteFields) -> str:
    only = getattr(kind, "only", None)
    return f"`{kind.message_type}` where `{only[0]}` is `{only[1]}`" if only else f"`{kind.message_type}`"


def test_types_trades_and_quotes_are_those_of_the_schemas() -> None:
    pattern = r"^(`.+`)\n\n- types: (.+)\n- trades: (.+)\n- quotes: (.+)$"
    rows = re.findall(pattern, (DOCS / "feeds.md").read_text(), re.MULTILINE)
    told = {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    names = {point.name for point in entry_points(group="blackbox.schemas")} - {"raw"}
    assert names <= told.keys()
    for name in names:
        schema = load_schema(name)
        types = " ".join(f"`{kind}`" for kind in schema.names or sorted(schema.records))
        trades = ", ".join(map(_of, sorted(schema.trades, key=attrgetter("rank")))) or "none"
        quotes = ", ".join(map(_of, sorted(schema.quotes, key=attrgetter("rank")))) or "none"
        assert told[name] == (types or "none: payloads are JSON", trades, quotes)
