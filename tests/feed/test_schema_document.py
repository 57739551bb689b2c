"""Schemas as plain data: an exact round trip, or one clear error."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import ConfigError, Schema
from blackbox.feed.schema.document import SchemaDocument
from blackbox.feed.schema.schema import RAW, BreakFields, QuoteFields, TradeFields, load_schema, price, utc_time

LEG = numpy.dtype([("price", price("<i8", 4)), ("size", "<u4")])
EVERY = numpy.dtype({
    "names": ["kind", "level", "sizes", "legs", "flag", "rate", "time", "note"],
    "formats": ["S1", "f8", (">u2", (3, 2)), (LEG, (2,)), "?", ">f4", utc_time("<u4", "s", absent=9), "V3"],
    "offsets": [2, 8, 16, 28, 52, 53, 57, 61],
    "itemsize": 70,
})  # fmt: skip
NAMES = ("raw", "itch50", "iex_tops16", "iex_deep10", "dbn", "dbn_ts_out", "tape", "binance")


def again(schema: Schema) -> Schema:
    """Return the schema after a round trip through JSON."""
    text = msgspec.json.encode(SchemaDocument.of(schema))
    return msgspec.json.decode(text, type=SchemaDocument).schema()


def all_of(schema: Schema) -> tuple[Any, ...]:
    """Return everything that equal schemas share."""
    meanings = {
        kind: [(name, dtype.fields[name][1], dtype[name].metadata) for name in dtype.names]
        for kind, dtype in schema.records.items()
        if dtype.names and dtype.fields
    }
    return (*schema.__reduce__()[1], meanings)


@pytest.mark.parametrize("name", NAMES)
def test_registered_schemas_survive_a_round_trip(name: str) -> None:
    schema = load_schema(name)
    assert all_of(again(schema)) == all_of(schema)
    assert again(RAW) is RAW


def test_arrays_nested_records_and_padding_survive_a_round_trip() -> None:
    schema = Schema(
        "every",
        1_000,
        {"E": EVERY},
        type_offset=2,
        names={"every": "E"},
        trades=(TradeFields("every", "level", "rate", only=("flag", 1)),),
        quotes=(QuoteFields("E", "level", "rate", "level", "rate", one_sided=True),),
        breaks=(BreakFields("E", "time", size="rate"),),
    )
    made = again(schema)
    assert all_of(made) == all_of(schema)
    assert again(schema) is made  # one object for all days
    assert made.dtype("every")["legs"].base["price"].metadata == {"decimals": 4}


FORMATS = ["<i1", ">i2", "<i4", ">i8", "<u8", "<f4", ">f8", "?", "S1", "S7", "V3"]
FIELDS = st.lists(st.tuples(st.sampled_from(FORMATS), st.sampled_from([(), (1,), (2, 3)])), min_size=1, max_size=6)


@given(FIELDS, st.booleans())
def test_any_record_of_numbers_and_texts_survives_a_round_trip(
    fields: list[tuple[str, tuple[int, ...]]], align: bool
) -> None:
    dtype = numpy.dtype([("kind", "S1"), *((f"f{i}", *each) for i, each in enumerate(fields))], align=align)
    schema = Schema("any", 1_001, {"A": dtype})
    assert all_of(again(schema)) == all_of(schema)


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ({"A": numpy.dtype([("kind", "S1"), ("o", object)])}, "type 'A' had field 'o' of object, expected an integer"),
        ({"A": numpy.dtype([("leg", [("when", "<M8[ns]")])])}, "type 'A' had field 'when' of datetime64[ns], expected"),
        ({"A": numpy.dtype([("name", "U4")])}, "type 'A' had field 'name' of <U4, expected an integer, a float"),
        ({"A": numpy.dtype([("half", "f2")])}, "type 'A' had field 'half' of float16, expected an integer, a float of"),
        ({"A": numpy.dtype("<i4")}, "type 'A' was dtype('int32'), expected a numpy dtype with fields"),
        ({"A": [("kind", "S1")]}, "type 'A' was [('kind', 'S1')], expected a numpy dtype with fields"),
        ({"trade": LEG}, "a type was 'trade', expected one character, a byte of payloads"),
        ({"\u20ac": LEG}, "a type was '\u20ac', expected one character"),
        ({"A": numpy.dtype([("p", price("<f8", 2))])}, "type 'A' had field 'p' of float64 with {'decimals': 2}"),
        ({"A": numpy.dtype([("p", price("<i8", 19))])}, "expected an integer with decimals of 0 to 18"),
        ({"A": numpy.dtype([("t", utc_time("<i8", "ms"))])}, "with {'utc': 'ms'}, expected an integer"),
    ],
)
def test_an_impossible_payload_type_is_refused_by_the_schema(records: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"schema 'x': {text}") if text[0] in "ta" else re.escape(text)):
        Schema("x", 9, records)


FIELD = {"name": "a", "format": "<i4", "offset": 0}


def field(**changed: Any) -> dict[str, Any]:
    """Return the types of a schema with one field."""
    return {"types": {"A": {"bytes": 8, "fields": [{**FIELD, **changed}]}}}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (field(format="|O"), "field 'a' had the format '|O', expected one such as '<u4'"),
        (field(format="i4,i4"), "field 'a' had the format 'i4,i4', expected"),
        (field(format="|V8", items="|O8"), "field 'a' had the format '|O8', expected"),
        (field(format="|V99999999"), "field 'a'|offset|itemsize"),
        (field(format="|S0"), "had field 'a' of"),
        (field(offset=-4), "field 'a' was at byte -4, expected 0 or more"),
        (field(offset=1 << 70), "int"),
        (field(format="|V4", items="<i4", shape=[1 << 40, 1 << 40]), "type 'A'"),
        (field(format="|V8", items="<i4", shape=[-2]), "type 'A'"),
        (field(format="|V8", items="<i4", shape=[3]), r"field 'a' had 12 bytes, expected the 8 of '\|V8'"),
        (field(format="|V8", fields=[{**FIELD, "offset": 6}]), "type 'A'"),
        (field(name=""), "had a field named '', expected a printable name"),
        (field(name="__class__"), "had a field named '__class__', expected"),
        (field(name="a\x1b[31m"), "expected a printable name"),
        (field(format="|V8", fields=[{**FIELD, "name": "_pack_", "format": "<i8"}]), "had a field named '_pack_'"),
        (field(decimals=19), "expected an integer with decimals of 0 to 18"),
        (field(decimals=10**30), "int|expected an integer"),
        (field(utc="ms"), "Invalid enum value 'ms'"),
        (field(pointer=1), "unknown field `pointer`"),
        ({"types": {"A": {"bytes": 0, "fields": [FIELD]}}}, "its bytes were 0, expected 1 to"),
        ({"types": {"A": {"bytes": 8, "fields": []}}}, "type 'A' was dtype"),
        ({"types": {"A": {"bytes": 8, "fields": [FIELD, FIELD]}}}, "type 'A': "),
        ({"types": {"AB": {"bytes": 8, "fields": [FIELD]}}}, "a type was 'AB', expected one character"),
        ({"types": {"A": {"bytes": 8, "fields": [FIELD]}}, "type_offset": 8}, "type_offset was 8, expected one within"),
        ({"name": "x\n"}, "a name was 'x.n', expected printable text"),
        ({"types": {"A": {"name": "q\0", "bytes": 8, "fields": [FIELD]}}}, "a name was 'q.x00', expected"),
        ({"id": 65_536}, "schema_id was 65536, expected 0 to 65535"),
        ({"id": "1"}, "Expected `int`"),
        ({"trades": [{"message_type": "A", "price": "a", "size": "a"}]}, "message type was 'A', expected one of"),
        ({"code": "import os"}, "unknown field `code`"),
    ],
)
def test_a_hostile_schema_is_refused(changed: dict[str, Any], text: str) -> None:
    document = msgspec.json.encode({"name": "x", "id": 9, **changed})
    with pytest.raises((ConfigError, msgspec.ValidationError), match=text.replace("|O", r"\|O")):
        msgspec.json.decode(document, type=SchemaDocument).schema()
