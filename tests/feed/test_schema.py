"""Schemas: record layouts by type, Arrow types, and the registry."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy
import pyarrow
import pytest

from blackbox.errors import ConfigError
from blackbox.feed.schema.schema import (
    RAW,
    BreakFields,
    QuoteFields,
    Schema,
    TradeFields,
    load_schema,
    optional,
    price,
    schema_of,
    utc_time,
)
from tests.feed.made import install

TRADE = numpy.dtype([
    ("kind", "S1"),
    ("size", ">u4"),
    ("price", price(">i8", 6)),
    ("time", utc_time("<i8", "ns")),
    ("rest", "V3"),
])  # fmt: skip
SCHEMA = Schema("demo", 900, {"T": TRADE, "Q": numpy.dtype([("kind", "S1")])}, type_offset=0)


def test_an_unknown_type_names_the_known_ones() -> None:
    assert SCHEMA.dtype("T") is TRADE
    with pytest.raises(ConfigError, match="schema 'demo': message type was 'X', expected one of: T Q"):
        SCHEMA.dtype("X")
    with pytest.raises(ConfigError, match="expected one of: none: its payloads are plain bytes"):
        RAW.dtype("X")
    with pytest.raises(ConfigError, match=r"schema was 'itch5', expected one of: .*raw.* \(did you mean 'itch50'\?\)"):
        load_schema("itch5")


def test_a_schema_is_frozen_hashable_and_can_be_pickled() -> None:
    with pytest.raises(AttributeError):
        SCHEMA.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        SCHEMA.records["X"] = TRADE  # type: ignore[index]
    copy = pickle.loads(pickle.dumps(SCHEMA))
    assert copy == SCHEMA
    assert hash(copy) == hash(SCHEMA)
    assert copy.dtype("T")["price"].metadata == {"decimals": 6}
    assert Schema("other", 900, {}) != SCHEMA


def test_a_type_may_have_a_name() -> None:
    schema = Schema("named", 901, {"\x01": TRADE}, type_offset=1, names={"trade": "\x01"})
    for copy in (schema, pickle.loads(pickle.dumps(schema))):
        assert copy.dtype("trade") == copy.dtype("\x01") == TRADE
        assert copy.character("trade") == copy.character("\x01") == "\x01"
        assert copy.arrow("trade").names == list(TRADE.names or ())
        assert repr(copy) == "<Schema named id=901 types=trade>"
        for ask in (copy.dtype, copy.character):
            with pytest.raises(ConfigError, match="message type was 'quote', expected one of: trade"):
                ask("quote")
    assert SCHEMA.character("T") == "T"


def test_arrow() -> None:
    arrow = SCHEMA.arrow("T")
    assert arrow.names == ["kind", "size", "price", "time", "rest"]
    assert arrow.types == [
        pyarrow.string(),
        pyarrow.uint32(),
        pyarrow.int64(),
        pyarrow.timestamp("ns", tz="UTC"),
        pyarrow.binary(3),
    ]
    assert arrow.field("price").metadata == {b"decimals": b"6"}
    assert not arrow.field("price").nullable


@pytest.mark.parametrize(
    ("name", "number", "types"),
    [("raw", 0, 0), ("itch50", 1, 23), ("iex_tops16", 2, 11), ("iex_deep10", 3, 13)],
)
def test_built_in_schemas_are_registered(name: str, number: int, types: int) -> None:
    schema = load_schema(name)
    assert (schema.name, schema.schema_id, len(schema.records)) == (name, number, types)
    for kind, dtype in schema.records.items():
        assert len(schema.arrow(kind)) == len(dtype.names or ())


def test_a_third_party_registers_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo_schemas.py").write_text(
        "from blackbox.feed.schema.schema import Schema\nMINE = Schema('mine', 1000, {})\nTEXT = 'mine'\n"
    )
    group = "[blackbox.schemas]\n"
    install(tmp_path, monkeypatch, f"{group}mine = demo_schemas:MINE\ntext = demo_schemas:TEXT\n")
    assert load_schema("mine").schema_id == 1000
    with pytest.raises(ConfigError, match="the entry point holds 'mine', expected a Schema"):
        load_schema("text")


def test_a_name_registered_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "[blackbox.schemas]\n"
    install(tmp_path, monkeypatch, f"{group}twice = one:A\nsame = one:A\n", "one")
    install(tmp_path, monkeypatch, f"{group}twice = two:B\nsame = blackbox.feed.schema.schema:RAW\n", "two")
    with pytest.raises(ConfigError, match=r"schema 'twice' is registered more than once: .*one:A"):
        load_schema("twice")


def test_two_packages_with_one_schema_id_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        text = f"from blackbox.feed.schema.schema import Schema\nMINE = Schema('{name}', 60001, {{}})\n"
        (tmp_path / f"schemas_of_{name}.py").write_text(text)
        install(tmp_path, monkeypatch, f"[blackbox.schemas]\n{name} = schemas_of_{name}:MINE\n", name)
    schema_of.cache_clear()
    with pytest.raises(ConfigError, match="schema id 60001 was that of several schemas") as raised:
        schema_of(60_001)
    assert "'one' of one (schemas_of_one:MINE)" in str(raised.value)
    assert "'two' of two (schemas_of_two:MINE)" in str(raised.value)


def test_a_broken_plug_in_is_named_and_others_still_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken_schemas.py").write_text("raise RuntimeError('no licence')\n")
    install(tmp_path, monkeypatch, "[blackbox.schemas]\nbroken = broken_schemas:MINE\n", "broken-package")
    what = r"schema 'broken' of broken-package \(broken_schemas:MINE\) cannot be loaded: RuntimeError\('no licence'\)"
    with pytest.raises(ConfigError, match=what):
        load_schema("broken")
    schema_of.cache_clear()
    assert schema_of(load_schema("itch50").schema_id).name == "itch50"
    assert "broken-package" in caplog.text


def test_trades_and_quotes_must_name_existing_fields() -> None:
    dtype = numpy.dtype([("message_type", "S1"), ("price", "<i8"), ("size", "<u4")])
    schema = Schema("x", 9, {"T": dtype}, trades=(TradeFields("T", "price", "size", only=("message_type", "T")),))
    assert pickle.loads(pickle.dumps(schema)).trades == schema.trades
    told = "schema 'x': type 'T' had no field 'shares', expected: message_type, price, size"
    with pytest.raises(ConfigError, match=told):
        Schema("x", 9, {"T": dtype}, trades=(TradeFields("T", "price", "shares"),))
    with pytest.raises(ConfigError, match="schema 'x': message type was 'Q', expected one of: T"):
        Schema("x", 9, {"T": dtype}, quotes=(QuoteFields("Q", "a", "b", "c", "d"),))
    with pytest.raises(ConfigError, match="no field 'number'"):
        Schema("x", 9, {"T": dtype}, breaks=(BreakFields("T", "number"),))


@pytest.mark.parametrize("absent", [-1, 256])
def test_an_absent_value_that_the_field_cannot_hold_is_rejected(absent: int) -> None:
    with pytest.raises(ConfigError, match=f"absent of {absent}"):
        Schema("ticks", 1_000, {"t": numpy.dtype([("type", "S1"), ("size", optional("u1", absent))])})
