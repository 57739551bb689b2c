"""The docs agree with the code: offsets, worked examples, exit statuses."""

from __future__ import annotations

import inspect
import re
import struct
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path

import msgspec
import pytest
from blackbox_feeds.binance.live.source import BinanceWs
from blackbox_feeds.iex.live import IexClient, IexSettings
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client, MoldUdp64Settings
from blackbox_feeds.itch50.live_soupbintcp import SoupBinTcpClient, SoupBinTcpSettings

from blackbox.block.form import format as layout
from blackbox.block.form.ack_format import Acknowledgement
from blackbox.block.form.layout import ACKNOWLEDGEMENT
from blackbox.cli.ui.status import STATUS_HELP, Status
from blackbox.feed.schema.schema import QuoteFields, TradeFields, load_schema
from blackbox.replay.control_socket import ControlSocket
from blackbox.replay.controls import Controls
from blackbox.replay.status import ReplayStatus
from tests import wire

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIRE = (DOCS / "wire-format.md").read_text()


@pytest.mark.parametrize(
    "flags",
    ["", "FIXED", "SEQUENCES", "NULLS", "SEQUENCES NULLS", "FIXED SEQUENCES NULLS", "NUMBERS", "NULLS NUMBERS SAME"],
)
@pytest.mark.parametrize(("count", "topics", "topic_bytes"), [(1, 1, 1), (3, 2, 20), (7, 3, 16), (0, 0, 0)])
def test_body_formulas(count: int, topics: int, topic_bytes: int, flags: str) -> None:
    (formulas,) = re.findall(r"<!-- layout: formulas -->\n\n(.*?)\n\n", WIRE, re.DOTALL)
    fields = wire.Fields(
        count=count, topics=topics, topic_bytes=topic_bytes, flags=sum(wire.FLAGS[name] for name in flags.split())
    )
    known = fields._asdict() | {name: name in flags.split() for name in wire.FLAGS}
    for line in formulas.splitlines():
        name, _, formula = line.strip().partition("=")
        python = re.sub(r"^(.*) \? (.*) : (.*)$", r"(\2) if \1 else (\3)", formula.strip())
        known[name.strip()] = eval(python, {"align": lambda x: (x + 7) & ~7}, known)
    assert {name: known[f"{name}_at"] for name in wire.starts_of(fields)} == wire.starts_of(fields)


def test_limits_and_reserved_keys() -> None:
    assert f"{layout.MAX_BODY_BYTES:,} bytes (64 MiB)" in WIRE
    assert f"{layout.MAX_TOPIC_BYTES:,} bytes" in WIRE
    assert f"`{layout.CONFIRM_KEY.hex(' ')}` + {layout.NONCE_BYTES} bytes" in WIRE
    for key in (layout.HEARTBEAT_KEY, layout.TRACE_KEY, layout.ACCEPT_KEY, layout.RECORDED_KEY):
        assert f"`{key.hex(' ')}`" in WIRE


def test_an_acknowledgement_has_the_fields_of_its_table() -> None:
    what = Acknowledgement(b"nonce678", 2, 3, 5, 4, 5, "a recorder")
    said = what.encode()
    known = what._asdict() | {"prefix": layout.RECORDED_KEY}
    values = struct.unpack_from(ACKNOWLEDGEMENT.format, said)
    assert dict(zip(ACKNOWLEDGEMENT.offsets, values, strict=True)) == {
        name: known[name] for name in ACKNOWLEDGEMENT.offsets
    }
    assert said[ACKNOWLEDGEMENT.size :] == b"a recorder"
    assert Acknowledgement.decode(said) == what


def test_code_and_configurations_name_pages_in_a_way_that_is_right_for_clone_and_site() -> None:
    folders = (DOCS.parent / name for name in ("blackbox", "feeds", "pyspark_blackbox", "configs"))
    texts = [
        path.read_text()
        for folder in folders
        for path in folder.rglob("*.*")
        if path.suffix in {".py", ".toml", ".yml", ".service", ".conf", ".env"}
    ]
    named = {name for text in texts for name in re.findall(r"`([\w-]+)` in\s+(?:# )?the\s+(?:# )?docs\b", text)}
    assert len(named) > 10
    assert named <= {page.stem for page in DOCS.glob("*.md")}
    assert [found for text in texts for found in re.findall(r"docs/[\w-]+\.md", text)] == []


def test_exit_statuses_are_documented_in_operations_and_in_help() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "operations.md").read_text(), re.MULTILINE)
    assert {int(row) for row in rows} == {*map(int, Status), 129, 143}
    assert {int(number) for number in re.findall(r"\b\d+\b", STATUS_HELP)} == {*map(int, Status), 129, 143}


def test_requests_of_the_replay_page_are_valid() -> None:
    requests = re.findall(r"`(\{\"do\".*?\})`", (DOCS / "recorders.md").read_text())
    assert len(requests) == 7
    controls = Controls()
    controls.begin(0, 1)
    socket = ControlSocket(controls, "tcp://127.0.0.1:1")
    for request in requests:
        answer = msgspec.json.decode(socket._answer([request.encode()]))
        assert list(answer) == list(ReplayStatus.__struct_fields__)


def test_the_options_of_live_sources_are_documented() -> None:
    section = (DOCS / "feeds.md").read_text().partition("\n## Live sources\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:--option )?(\w+)[`=]", section))
    options = set[str]()
    for settings in (MoldUdp64Settings, SoupBinTcpSettings, IexSettings):
        options |= set(settings.__struct_fields__)
    for client in (MoldUdp64Client, SoupBinTcpClient, IexClient):
        options |= inspect.signature(client).parameters.keys() - {"url", "topic"}
    assert options - named - {"protocol"} == set()


def test_the_client_of_a_local_venue_server_on_the_page_is_valid() -> None:
    (url,) = re.findall(r"blackbox publish 'binance\+ws:(.*?)'", (DOCS / "venue-servers.md").read_text())
    assert "@depth" in str(BinanceWs.from_spec(url))


def _of(kind: TradeFields | QuoteFields) -> str:
    only = getattr(kind, "only", None)
    return f"`{kind.message_type}` where `{only[0]}` is `{only[1]}`" if only else f"`{kind.message_type}`"


def test_types_trades_and_quotes_match_the_schemas() -> None:
    pattern = r"^(`.+`)\n\n(?:- types: (.+)\n)?- trades: (.+)\n- quotes: (.+)$"
    rows = re.findall(pattern, (DOCS / "feeds.md").read_text(), re.MULTILINE)
    told = {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    names = {point.name for point in entry_points(group="blackbox.schemas")} - {"raw"}
    assert names <= told.keys()
    for name in names:
        schema = load_schema(name)
        types = " ".join(f"`{kind}`" for kind in schema.names)
        trades = ", ".join(map(_of, sorted(schema.trades, key=attrgetter("rank")))) or "none"
        quotes = ", ".join(map(_of, sorted(schema.quotes, key=attrgetter("rank")))) or "none"
        assert told[name] == (types, trades, quotes)
