"""Instruments of a day against plain loops over its messages, decoded by `struct` or by Databento's library."""

from __future__ import annotations

import json
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import databento_dbn
import msgspec
import numpy
import pytest
from blackbox_feeds.dbn import SCHEMA as DBN
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.iex.messages import DEEP10
from blackbox_feeds.itch50.messages import SCHEMA as ITCH

from blackbox import ConfigError, Feed, Recording, Recordings, Schema
from blackbox.archive.export import instruments
from blackbox.archive.importing.import_days import import_days
from blackbox.cli.ui.status import Status
from blackbox.errors import JournalError
from blackbox.feed.schema.document import SchemaDocument
from blackbox.feed.schema.instrument_fields import InstrumentFields
from tests.cli.commands import invoke
from tests.damaged import damage_body
from tests.feeds.test_dbn import metadata_of
from tests.journals import Day, Put, Row, feed_of

NINE = int(datetime(2026, 1, 5, 14, 0, tzinfo=UTC).timestamp()) * 10**9
"""09:00 in New York."""
SECOND = 10**9
UNDEF = (1 << 63) - 1
Message = tuple[str, int, bytes]
"""Topic, ns since 1970, payload."""


def day_of(
    directory: Path,
    schema: Schema,
    messages: list[Message],
    slices: int = 1,
    *,
    name: str = "day",
    date: str = "2026-01-05",
) -> Recording:
    topics, times, payloads = (list(each) for each in zip(*messages, strict=True))
    columns = {"topic": topics, "ts_event": numpy.array(times), "payload": payloads}
    return Recording.create(directory, Feed.local(name, slices, schema=schema), columns, date=date)


def directory(symbol: str, locate: int, lot: int, kind: str) -> bytes:
    head = struct.pack(">cHH6s8s", b"R", locate, 0, bytes(6), symbol.ljust(8).encode())
    return head + struct.pack(">ccIcc2scccccIc", b"Q", b"N", lot, b"N", kind.encode(), b"Z ", *[b"P"] * 5, 0, b"N")


def trading(symbol: str, locate: int, state: str) -> bytes:
    stock = symbol.ljust(8).encode()
    return struct.pack(">cHH6s8scc4s", b"H", locate, 0, bytes(6), stock, state.encode(), b" ", b"T1  ")


def test_an_itch_day_has_the_newest_directory_and_state_of_each_stock(tmp_path: Path) -> None:
    """Random messages in random order, in two slices; the plain loop unpacks the bytes."""
    some = random.Random(43)
    classes, states = {"C": "common stock", "A": "American depositary share", "?": "?"}, {"T": "trading", "H": "halted"}
    messages: list[Message] = []
    for number in range(400):
        locate = some.randrange(1, 40)
        symbol = f"S{locate % 30}"  # some symbols have two locates
        kind, time = some.choice("RRHX"), NINE + some.randrange(200) * SECOND
        payload = {
            "R": directory(symbol, locate, number, some.choice("CA?")),
            "H": trading(symbol, locate, some.choice("TH")),
            "X": struct.pack(">cHH6sQI", b"X", locate, 0, bytes(6), number, 1),
        }[kind]
        messages.append((f"{symbol}.{kind}", time, payload))
    recording = day_of(tmp_path, ITCH, messages, slices=2)

    def plain(before: int) -> list[dict[str, Any]]:
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        halts: dict[tuple[str, int], str] = {}
        for topic, time, payload in sorted((each for each in messages if each[1] < before), key=lambda each: each[1]):
            kind, locate = struct.unpack_from(">cH", payload)
            key = topic[:-2], locate
            if kind == b"H":
                halts[key] = states[payload[19:20].decode()]
            elif kind == b"R":
                old = rows.get(key, {"messages": 0, "ts_first": time})
                rows[key] = {
                    "symbol": key[0],
                    "instrument_id": locate,
                    "name": payload[11:19].decode().strip(),
                    "instrument_class": classes[payload[26:27].decode()],
                    "lot_size": int.from_bytes(payload[21:25], "big"),
                    "messages": old["messages"] + 1,
                    "ts_first": old["ts_first"],
                    "ts_last": time,
                }
        return [rows[key] | {"status": halts.get(key)} for key in sorted(rows)]

    for stop in (None, NINE + 20 * SECOND):
        found = recording.instruments.to_arrow(stop=stop, times="integer").to_pylist()
        expected = plain(stop or NINE * 2)
        assert len(expected) > 10
        assert [{name: row[name] for name in expected[0]} for row in found] == expected
        assert {(row["currency"], row["price_decimals"], row["tick_size"], row["source"]) for row in found} == {
            ("USD", 4, None, "itch50 R")
        }
    some_rows = recording.instruments.to_pandas(symbols=["S3", b"S4"], zone="America/New_York")
    assert set(some_rows["symbol"]) == {"S3", "S4"}
    assert str(some_rows["ts_last"].dtype) == "datetime64[ns, America/New_York]"
    assert recording.instruments.to_polars().drop("ts_first", "ts_last").rows() == [
        tuple(value for name, value in row.items() if name not in ("ts_first", "ts_last"))
        for row in recording.instruments.to_arrow(times="integer").to_pylist()
    ]


def test_an_iex_day_has_lots_and_statuses(tmp_path: Path) -> None:
    def security(symbol: str, time: int, lot: int) -> Message:
        return f"{symbol}.D", time, struct.pack("<cBq8sIqB", b"D", 0, time, symbol.ljust(8).encode(), lot, 10_000, 1)

    def status(symbol: str, time: int, state: bytes) -> Message:
        return f"{symbol}.H", time, struct.pack("<ccq8s4s", b"H", state, time, symbol.ljust(8).encode(), b"    ")

    messages = [
        security("ZIEXT", NINE, 100),
        security("BRK.A", NINE, 100),
        status("ZIEXT", NINE + 1, b"H"),
        status("BRK.A", NINE + 2, b"T"),
        status("NONE", NINE + 3, b"T"),
        security("BRK.A", NINE + 4, 1),
    ]
    rows = day_of(tmp_path, DEEP10, messages).instruments.to_arrow(times="integer").to_pylist()
    known = ("symbol", "venue", "name", "instrument_id", "lot_size", "status", "messages", "ts_first", "ts_last")
    assert [tuple(row[name] for name in known) for row in rows] == [
        ("BRK.A", "IEXG", "BRK.A", None, 1, "trading", 2, NINE, NINE + 4),
        ("ZIEXT", "IEXG", "ZIEXT", None, 100, "halted", 1, NINE, NINE),
    ]


def definition(instrument: int, symbol: str, time: int, **fields: Any) -> bytes:
    """Return a definition with Databento's own class; what is not given is absent."""
    given: dict[str, Any] = {
        "publisher_id": 1,
        "instrument_id": instrument,
        "ts_event": time,
        "ts_recv": time,
        "raw_symbol": symbol,
        "min_price_increment": 250_000_000,
        "display_factor": 10**9,
        "instrument_class": databento_dbn.InstrumentClass.FUTURE,
        "exchange": "XCME",
        "security_update_action": databento_dbn.SecurityUpdateAction.ADD,
        "currency": "USD",
        "asset": "ES",
        "security_type": "FUT",
    } | fields
    return bytes(databento_dbn.InstrumentDefMsg(**given))


def status(instrument: int, time: int, action: Any) -> bytes:
    return bytes(databento_dbn.StatusMsg(publisher_id=1, instrument_id=instrument, ts_event=time, ts_recv=time,
                                         action=action))  # fmt: skip


@pytest.fixture(scope="module")
def dbn_day(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A day of definitions and statuses; `ES.c.0` is mapped to 7 until that day, then to 8; 9 has no definition."""
    directory = tmp_path_factory.mktemp("dbn")
    days = date(2026, 1, 4), date(2026, 1, 5), date(2026, 1, 6)
    mappings = {
        "ES.c.0": [(days[0], days[1], "7"), (days[1], days[2], "8")],
        "NQH6": [(days[1], days[2], "9")],
        "ESH6 P5000": [(days[1], days[2], "10")],
        "GONE": [(days[1], days[2], "11")],
    }
    actions = databento_dbn.StatusAction
    expiry = NINE + 90 * 86_400 * SECOND
    records = [
        definition(8, "ESH6", NINE, expiration=expiry, unit_of_measure_qty=50 * 10**9, min_lot_size_round_lot=1),
        definition(10, "ESH6 P5000", NINE, instrument_class=databento_dbn.InstrumentClass.PUT, expiration=expiry,
                   strike_price=5_000 * 10**9, underlying="ESH6"),
        definition(11, "GONE", NINE + 1),
        status(8, NINE + 2, actions.TRADING),
        status(8, NINE + 3, actions.SSR_CHANGE),
        status(10, NINE + 3, actions.HALT),
        definition(8, "ESH6", NINE + 4, expiration=expiry + 1, min_price_increment=500_000_000),
        definition(11, "GONE", NINE + 5, security_update_action=databento_dbn.SecurityUpdateAction.DELETE),
    ]  # fmt: skip
    head = metadata_of(schema=None, start=NINE, mappings=mappings)
    (directory / "day.dbn").write_bytes(head + b"".join(records))
    feed = msgspec.structs.replace(Feed.local("futures", schema="dbn"), time_zone="UTC")
    (day,) = import_days(feed, directory, [Dbn(directory / "day.dbn")])
    return Recording.open(day.path)


def test_a_dbn_day_has_definitions_statuses_and_mappings(dbn_day: Recording) -> None:
    rows = dbn_day.instruments.to_arrow(prices="decimal", times="integer").to_pylist()
    midnight, day_ns = NINE - 14 * 3600 * SECOND, 86_400 * SECOND
    expiry = NINE + 90 * day_ns
    future: dict[str, Any] = {
        "symbol": "ES.c.0",
        "venue": "XCME",
        "publisher_id": 1,
        "instrument_id": 8,
        "name": "ESH6",
        "instrument_class": "future",
        "lot_size": None,
        "tick_size": Decimal("0.5"),
        "price_decimals": 9,
        "contract_size": None,
        "currency": "USD",
        "strike_price": None,
        "underlying": None,
        "activation": None,
        "expiration": expiry + 1,
        "status": "trading",
        "mapped_from": midnight,
        "mapped_until": midnight + day_ns,
        "messages": 2,
        "ts_first": NINE,
        "ts_last": NINE + 4,
        "source": "dbn definition",
    }
    put = {
        "symbol": "ESH6 P5000",
        "instrument_id": 10,
        "name": "ESH6 P5000",
        "instrument_class": "put",
        "tick_size": Decimal("0.25"),
        "strike_price": Decimal(5_000),
        "underlying": "ESH6",
        "expiration": expiry,
        "status": "halted",
        "messages": 1,
        "ts_last": NINE,
    }
    gone = {"symbol": "GONE", "instrument_id": 11, "name": "GONE", "expiration": None, "status": "deleted"}
    known = {"mapped_from": midnight, "mapped_until": midnight + day_ns, "ts_first": NINE, "ts_last": NINE}
    mapped: dict[str, Any] = {
        **dict.fromkeys(future),
        "symbol": "NQH6",
        "instrument_id": 9,
        "price_decimals": 9,
        "messages": 1,
        "source": "dbn metadata",
        **known,
    }
    assert rows[0] == future
    assert rows[1] == future | put
    assert rows[2] == future | gone | {"tick_size": Decimal("0.25"), "ts_first": NINE + 1, "ts_last": NINE + 5}
    assert rows[3:] == [mapped]
    early = dbn_day.instruments.to_polars(stop=NINE + 4, symbols=["ES.c.0"])
    assert early.select("tick_size", "contract_size", "lot_size", "messages").rows() == [(0.25, 50.0, 1, 1)]
    scaled = dbn_day.instruments.to_arrow(prices="integer", symbols=["ES.c.0"])
    assert scaled["tick_size"].to_pylist() == [500_000_000]
    assert scaled.schema.field("tick_size").metadata[b"decimals"] == b"9"


def trade(instrument: int, time: int, price: int) -> bytes:
    """Return a trade with Databento's own class, of as many contracts as the instrument's number."""
    action: Any = databento_dbn.Action.TRADE
    side: Any = databento_dbn.Side.BID
    return bytes(databento_dbn.TradeMsg(1, instrument, time, price * 10**9, instrument, action, side, 0, time))


@pytest.mark.parametrize("files", [1, 2])
def test_trades_join_the_definitions_of_the_same_dbn_day(tmp_path: Path, files: int) -> None:
    """In one file, or in a file of each, as Databento delivers them. `ES.c.0` is another future on the day before."""
    days = date(2026, 1, 4), date(2026, 1, 5), date(2026, 1, 6)
    ids = {"NQH6": 9, "ESH6 P5000": 10, "ES.c.0": 8}
    mappings = {name: [(days[1], days[2], str(number))] for name, number in ids.items()}
    mappings["ES.c.0"].insert(0, (days[0], days[1], "7"))
    put = {"instrument_class": databento_dbn.InstrumentClass.PUT, "strike_price": 5_000 * 10**9}
    definitions = {
        0: definition(8, "ESH6", NINE),
        1: definition(9, "NQH6", NINE + 1),
        4: definition(10, "ESH6 P5000", NINE + 4, **put),
        6: definition(8, "ESH6", NINE + 6, min_price_increment=500_000_000),
    }
    traded = {2: (8, 6_000), 3: (9, 20_000), 5: (10, 12), 7: (8, 6_001)}
    trades = {number: trade(instrument, NINE + number, price) for number, (instrument, price) in traded.items()}
    parts = [definitions | trades] if files == 1 else [definitions, trades]
    head = metadata_of(schema=None, start=NINE, mappings=mappings)
    sources = [Dbn(tmp_path / f"{number}.dbn") for number in range(files)]
    for source, part in zip(sources, parts, strict=True):
        source.path.write_bytes(head + b"".join(part[number] for number in sorted(part)))
    (imported,) = import_days(Feed.local("futures", 1, schema="dbn"), tmp_path, sources)
    day = Recording.open(imported.path)
    rows = day.instruments.to_arrow(times="integer").to_pylist()
    known = ("symbol", "instrument_id", "name", "instrument_class", "tick_size", "strike_price", "messages")
    assert [tuple(row[name] for name in known) for row in rows] == [
        ("ES.c.0", 8, "ESH6", "future", 0.5, None, 2),
        ("ESH6 P5000", 10, "ESH6 P5000", "put", 0.25, 5_000, 1),
        ("NQH6", 9, "NQH6", "future", 0.25, None, 1),
    ]
    names = {number: name for name, number in ids.items()}
    found = day.trades.to_polars(times="integer")
    plain = [(names[number], NINE + time, float(price), number) for time, (number, price) in traded.items()]
    assert found.select("symbol", "ts_event", "price", "size").rows() == plain
    joined = found.join(day.instruments.to_polars(), on="symbol", validate="m:1", maintain_order="left")
    assert joined["instrument_id"].to_list() == [number for number, _ in traded.values()]


def test_instruments_of_several_days_are_those_of_each_day(tmp_path: Path, dbn_day: Recording) -> None:
    """First futures, then stocks: one changes its lot and locate, one is new, one is gone. Two days have none."""
    day_ns = 86_400 * SECOND
    stocks = [
        [(f"{name}.R", NINE + day * day_ns, directory(name, locate, lot, "C")) for name, locate, lot in rows]
        for day, rows in enumerate(([("A", 1, 100), ("GONE", 2, 1)], [("A", 3, 10), ("NEW", 4, 1)]), start=1)
    ]
    other = [("A.H", NINE + 3 * day_ns, trading("A", 5, "T"))]
    none = Schema("mine", 1_043, {"T": numpy.dtype([("type", "S1")])})
    days = [
        dbn_day,
        *(day_of(tmp_path, ITCH, each, date=f"2026-01-0{6 + day}") for day, each in enumerate([*stocks, other])),
        day_of(tmp_path, none, [("A.T", NINE, b"T")], name="none"),
    ]
    several = Recordings(days)
    expected = [
        {"feed": day.feed.name, "date": day.date, **row}
        for day in days[:3]
        for row in day.instruments.to_arrow(prices="decimal", times="integer").to_pylist()
    ]
    assert several.instruments.to_arrow(prices="decimal", times="integer").to_pylist() == expected
    frame = several.instruments.to_polars(symbols=["A", "NEW"]).select("date", "symbol", "instrument_id", "lot_size")
    assert frame.rows() == [
        (date(2026, 1, 6), "A", 1, 100),
        (date(2026, 1, 7), "A", 3, 10),
        (date(2026, 1, 7), "NEW", 4, 1),
    ]
    assert len(several.instruments.to_pandas(stop=NINE + 2 * day_ns)) == 6  # the second day of stocks begins then
    known = several.instruments.to_arrow(zone="UTC").schema.field("ts_last").type
    assert str(known) == "timestamp[ns, tz=UTC]"
    with pytest.raises(JournalError, match=r"no instruments in the selection, expected messages of type .*'R'"):
        several.instruments.to_arrow(symbols=["B"])
    with pytest.raises(ConfigError, match="schema 'mine' declares no instruments"):
        Recordings(days[-1:]).instruments.to_arrow()


def test_a_mapping_is_known_from_its_metadata_on(dbn_day: Recording) -> None:
    assert dbn_day.instruments.to_arrow(stop=NINE + 1, symbols=["NQH6"])["instrument_id"].to_pylist() == [9]
    with pytest.raises(JournalError, match="no instruments in the selection"):
        dbn_day.instruments.to_arrow(stop=NINE, symbols=["NQH6"])


def test_live_mapping_records_name_ids(tmp_path: Path) -> None:
    def mapping(time: int, *span: int) -> Message:
        kinds: Any = databento_dbn.SType
        named = kinds.RAW_SYMBOL, "ESH6", kinds.INSTRUMENT_ID, "ESH6"
        record = databento_dbn.SymbolMappingMsg(1, 7, time, *named, *span)
        return "ESH6.symbol-mapping", time, bytes(record)

    messages = [mapping(NINE, NINE - 5, NINE + 5), mapping(NINE + 1, NINE - 4, NINE + 9)]
    (row,) = day_of(tmp_path, DBN, messages).instruments.to_arrow(times="integer").to_pylist()
    assert (row["symbol"], row["instrument_id"], row["name"]) == ("ESH6", 7, "ESH6")
    assert (row["mapped_from"], row["mapped_until"], row["messages"]) == (NINE - 5, NINE + 9, 2)
    assert row["source"] == "dbn symbol-mapping"


def test_a_recording_without_definitions_says_what_to_do(tmp_path: Path) -> None:
    none = day_of(tmp_path / "raw", Schema("mine", 1_043, {"T": numpy.dtype([("type", "S1")])}), [("A.T", NINE, b"T")])
    with pytest.raises(ConfigError, match=r"schema 'mine' declares no instruments, expected some in Schema"):
        none.instruments.to_arrow()
    halts = day_of(tmp_path / "itch", ITCH, [("A.H", NINE, trading("A", 1, "T"))])
    with pytest.raises(JournalError, match=r"no instruments in the selection, expected messages of type 'R': record"):
        halts.instruments.to_polars()
    with pytest.raises(TypeError, match="option was 'stopp', expected one of: .* .did you mean 'stop'"):
        halts.instruments.to_arrow(stopp=NINE)  # type: ignore[call-arg]
    ended = invoke("instruments", halts.path, "--json")
    assert (ended.status, ended.out) == (Status.ERROR, "")
    assert f"error: {halts.path} has no instruments" in ended.errors


def test_the_command_prints_the_table(dbn_day: Recording) -> None:
    ended = invoke("instruments", dbn_day.path, "--json")
    exact = dbn_day.instruments.to_arrow(prices="decimal", times="integer").to_pylist()
    assert json.loads(ended.out) == json.loads(msgspec.json.encode(exact))
    assert json.loads(ended.out)[1]["strike_price"] == "5000.000000000"
    ended = invoke("instruments", dbn_day.path, "--symbol", "ESH6 P5000")
    row = next(line for line in ended.out.splitlines() if "│ ESH6 P5000 │" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["ESH6 P5000", "XCME", "10", "put", "0.25", "USD", "5000", "2026-04-05", "halted"]


def test_a_damaged_day_ends_with_the_status_of_a_loss(tmp_path: Path) -> None:
    day = Day(tmp_path / "2026-01-05", feed_of(schema="itch50"), date="2026-01-05")
    rows = [Row(f"{name}.R".encode(), directory(name, 1, 100, "C"), NINE) for name in "AB"]
    day.put(0, *(Put((row,), sequence=number, schema=1) for number, row in enumerate(rows)))
    damage_body(day.segments[0], 1)
    ended = invoke("instruments", day.path)
    assert ended.status == Status.LOST
    assert "1 part damaged" in ended.errors
    assert "│ A " in ended.out
    assert "│ B " not in ended.out


def test_declarations_are_checked_and_recorded() -> None:
    kind = numpy.dtype([("type", "S1"), ("id", "<u4"), ("state", "S1")])
    fields = InstrumentFields("T", {"status": "state"}, part="status", meanings={"status": {"1": "open"}})
    schema = Schema("mine", 1_043, {"T": kind}, instruments=(fields,))
    assert SchemaDocument.of(schema).schema().instruments == (fields,)
    for known in (ITCH, DEEP10, DBN):
        assert SchemaDocument.of(known).schema().instruments == known.instruments != ()
    with pytest.raises(ConfigError, match="type 'T' had no field 'lot', expected: type, id, state"):
        Schema("mine", 1_043, {"T": kind}, instruments=(InstrumentFields("T", {"lot_size": "lot"}),))
    with pytest.raises(ConfigError, match="had column 'lots', expected one of: activation, "):
        InstrumentFields("T", {"lots": "id"})
    with pytest.raises(ConfigError, match="had texts for 'lot_size', expected one of: venue, "):
        InstrumentFields("T", {}, constants={"lot_size": "1"})
    for part, columns in ("status", {"instrument_id": "id"}), ("definition", {"status": "state"}):
        with pytest.raises(ConfigError, match=f"had part '{part}' .* expected the column 'status' in that part only"):
            InstrumentFields("T", columns, part=part)  # type: ignore[arg-type]


def test_every_column_has_a_place() -> None:
    assert {*instruments._OWN} - {"deleted"} <= {*instruments._ORDER}
