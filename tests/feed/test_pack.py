"""`Schema.pack` turns a record into a payload that reads back as the same values."""

from __future__ import annotations

import ctypes
import math
import random
import re
from dataclasses import make_dataclass
from datetime import UTC, datetime, time
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

import msgspec
import numpy
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Schema
from blackbox.block.columns.user_columns import columns_of
from blackbox.feed.schema.schema import DECIMALS, load_schema, optional, price, utc_time
from tests.absent import SCHEMA as ABSENT_VALUES
from tests.examples import examples
from tests.ticks import TICKS

INNER = numpy.dtype([("a", "<i2"), ("fee", price(">i4", 2, absent=0))])
ODD = numpy.dtype([("kind", "S1"), ("legs", INNER), ("sides", "<i4", (2, 3)), ("parts", INNER, (2,)), ("blob", "V3")])
SCHEMAS = [
    *map(load_schema, ("itch50", "iex_tops16", "iex_deep10", "dbn", "tape")),
    ABSENT_VALUES,
    TICKS,
    Schema("odd", 1_005, {"O": ODD}),
]
TYPES = [(schema, kind) for schema in SCHEMAS for kind in schema.records]

TRADE = numpy.dtype([
    ("type", "S1"),
    ("price", price("<i4", 4, absent=-1)),
    ("size", "<u2"),
    ("time", utc_time(">i8", "ns", absent=0)),
    ("day", utc_time("<u4", "s")),
    ("venue", "S3"),
])  # fmt: skip
TRADES = Schema("trades", 1_006, {"t": TRADE}, names={"trade": "t"})
VALUES = {"price": 189.98, "size": 3, "time": 1_700_000_000_123_456_789, "day": 1_700_000_000, "venue": "XNY"}


def plain(value: Any) -> Any:
    """Return a comparable value that can be packed again."""
    if isinstance(value, ctypes.Array):
        return [plain(each) for each in value]
    if hasattr(value, "_names_"):
        return {name: plain(getattr(value, name)) for name in value._names_}
    return value


def shown(values: dict[str, Any]) -> str:
    return repr(values)  # so that NaN equals NaN


def read(schema: Schema, kind: str, payload: bytes) -> Any:
    record_type = schema.record_type(kind)
    assert len(payload) == ctypes.sizeof(record_type)
    return record_type.from_buffer_copy(payload)


@given(
    st.sampled_from(TYPES), st.integers(0, 1 << 32), st.sampled_from([b"\0", b"\0\1\x7f\x80\xff", bytes(range(256))])
)
@settings(max_examples=examples(400), deadline=None)
def test_values_of_any_record_of_any_schema_are_read_back(of: tuple[Schema, str], seed: int, among: bytes) -> None:
    schema, kind = of
    dtype = schema.dtype(kind)
    octets = bytearray(random.Random(seed).choices(among, k=dtype.itemsize))
    octets[schema.type_offset] = ord(kind)
    record = read(schema, kind, bytes(octets))
    values = plain(record)
    packed = schema.pack(values, kind)
    assert shown(plain(read(schema, kind, packed))) == shown(values)
    assert schema.pack(read(schema, kind, packed), kind) == packed
    for form in ("float", "decimal"):
        money = dict(values)
        for name in dtype.names or ():
            metadata: Any = dtype[name].metadata or {}
            decimals = metadata.get(DECIMALS)
            units = values[name]
            if decimals is None or units is None or (form == "float" and abs(units) > 1 << 50):
                continue
            money[name] = units / 10**decimals if form == "float" else Decimal(units).scaleb(-decimals)
        assert schema.pack(money, kind) == packed


@given(
    st.one_of(
        st.floats(),
        st.floats(-1e4, 1e4),
        st.integers(-(2**33), 2**33).map(lambda units: units / 10_000),
        st.decimals(-300_000, 300_000, places=5, allow_nan=False),
        st.integers(-(2**33), 2**33),
        st.none(),
    )
)
@settings(max_examples=examples(400), deadline=None)
def test_a_record_and_a_table_have_one_rule_for_prices(value: Any) -> None:
    table = {"topic": ["A"], "ts_event": [0], **{name: [value] for name, value in VALUES.items()}, "price": [value]}
    try:
        by_record = TRADES.pack({**VALUES, "price": value})
    except ConfigError:
        with pytest.raises(ConfigError):
            columns_of(table, TRADES, "t")
        return
    assert columns_of(table, TRADES, "t").payloads.tobytes() == by_record


FIELDS: list[tuple[str, Any]] = [("price", float), ("size", int), ("time", int), ("day", int), ("venue", str)]
DATA_TRADE: Any = make_dataclass("Trade", FIELDS)


def test_every_kind_of_record_has_the_same_payload() -> None:
    row = (b"t", 1_899_800, *list(VALUES.values())[1:-1], b"XNY")
    expected = numpy.array([row], TRADE)
    payload = expected.tobytes()
    records: list[Any] = [VALUES, expected[0], expected.reshape(()), read(TRADES, "t", payload)]
    kinds: list[Any] = [DATA_TRADE, msgspec.defstruct("Trade", FIELDS), NamedTuple("Trade", FIELDS)]  # type: ignore[misc]
    records += [kind(**VALUES) for kind in kinds]
    records.append(pandas.DataFrame([VALUES]).to_dict("records")[0])
    for record in records:
        for message_type in (None, "t", "trade"):
            assert TRADES.pack(record, message_type) == payload, record


NOON = datetime(2025, 12, 1, 12, 0, 0, 5, tzinfo=UTC)
NOON_NS = 1_764_590_400_000_005_000


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("price", 1.0, 10_000),
        ("price", 189.98, 1_899_800),
        ("price", 0.1 + 0.2, 3_000),
        ("price", "-1.5", -15_000),
        ("price", Decimal("1.23450000"), 12_345),
        ("price", Decimal("0E+99999999"), 0),
        ("price", None, -1),
        ("price", math.nan, -1),
        ("time", NOON, NOON_NS),
        ("time", "2025-12-01T12:00:00.000005Z", NOON_NS),
        ("time", "2025-12-01T12:00:00.000005", NOON_NS),
        ("time", "2025-12-01T13:00:00.000005001+01:00", NOON_NS + 1),
        ("time", pandas.Timestamp(NOON_NS + 7, tz="America/New_York"), NOON_NS + 7),
        ("time", numpy.datetime64(NOON_NS + 7, "ns"), NOON_NS + 7),
        ("time", numpy.datetime64("2025-12-01"), 1_764_547_200 * 10**9),
        ("time", None, 0),
        ("time", pandas.NaT, 0),
        ("day", "2025-12-01", 1_764_547_200),
        ("day", NOON.replace(microsecond=0), 1_764_590_400),
        ("venue", "A", b"A"),
        ("venue", "\xe9", b"\xe9"),
    ],
)
def test_a_value_is_stored_as(field: str, given: Any, stored: Any) -> None:
    payload = TRADES.pack({**VALUES, field: given})
    (record,) = numpy.frombuffer(payload, TRADE)
    assert record[field] == stored


MISFITS: list[tuple[str, Any, str]] = [
    ("price", 1.00001, "was 1.00001, expected a price with at most 4 decimals, or the venue's integer"),
    ("price", Decimal("1.0000000000000000000000000000000001"), "a price with at most 4 decimals"),
    ("price", Decimal("1E+99999999"), "a price with at most 4 decimals"),
    ("price", Decimal("1E-99999999"), "a price with at most 4 decimals"),
    ("price", "much", "was 'much', expected a price"),
    ("price", math.inf, "was inf, expected a price"),
    ("price", True, "was True, expected a price"),
    ("price", 1e6, "was 1000000.0, expected an integer from -2147483648 to 2147483647; it was 10000000000"),
    ("price", -0.0001, "was -0.0001, expected None for no value: -1 means that in the schema"),
    ("size", -1, "was -1, expected an integer from 0 to 65535"),
    ("size", 1.0, "was 1.0, expected an integer"),
    ("size", "1", "was '1', expected an integer"),
    ("size", None, "was None, expected a value: the schema has no 'absent' value for this field"),
    ("time", 1.5, "was 1.5, expected the venue's integer (ns since 1970), a datetime, or a text such as"),
    ("time", "12:00", "was '12:00', expected the venue's integer (ns since 1970)"),
    ("time", "soon", "was 'soon', expected the venue's integer (ns since 1970)"),
    ("time", NOON.replace(tzinfo=None), "expected a datetime with a time zone"),
    ("time", numpy.datetime64("9999-12-31"), "expected a time that fits nanoseconds"),
    ("time", "1970-01-01", "expected None for no value: 0 means that in the schema"),
    ("day", NOON, "expected a time in whole seconds"),
    ("day", "2200-01-01", "expected an integer from 0 to 4294967295"),
    ("venue", "ABCD", "was 'ABCD', expected a text of at most 3 bytes"),
    ("venue", "\u20ac", "expected a text of Latin-1"),
    ("venue", 5, "was 5, expected a text of at most 3 bytes"),
    ("type", "q", "was 'q', expected 't', or the field left out"),
]


@pytest.mark.parametrize(("field", "given", "text"), MISFITS)
def test_an_invalid_value_is_named(field: str, given: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)) as caught:
        TRADES.pack({**VALUES, field: given}, "trade")
    assert str(caught.value).startswith(f"record of type 'trade' (trades): field {field!r}")


def test_a_decimal_is_exact_in_any_context() -> None:
    with localcontext() as context:
        context.prec = 3
        payload = TRADES.pack({**VALUES, "price": Decimal("12345.6789")})
    assert read(TRADES, "t", payload).price == 123_456_789


def test_missing_and_unknown_fields_are_one_error_that_names_the_nearest() -> None:
    wrong = {name: value for name, value in VALUES.items() if name not in ("price", "day")} | {"prise": 1, "zzz": 2}
    text = (
        "record of type 'trade' (trades) had unknown fields 'prise' (did you mean 'price'?), 'zzz' and lacked 'price', "
        "'day', expected the fields type, price, size, time, day, venue"
    )
    with pytest.raises(ConfigError, match=re.escape(text)):
        TRADES.pack(wrong)


def test_the_type_defaults_to_that_of_the_record_or_the_only_one() -> None:
    two = Schema("two", 1_007, {"t": TRADE, "u": TRADE}, names={"trade": "t"})
    assert two.pack({**VALUES, "type": "u"})[:1] == two.pack(VALUES, "u")[:1] == b"u"
    assert two.pack({**VALUES, "type": b"t"})[:1] == two.pack(VALUES, "trade")[:1] == b"t"
    with pytest.raises(ConfigError, match="schema 'two': message_type was not given, expected one of: trade"):
        two.pack(VALUES)
    with pytest.raises(ConfigError, match="message type was 'quote', expected one of: trade"):
        two.pack(VALUES, "quote")
    with pytest.raises(ConfigError, match="expected a schema with records: payloads of this one are plain bytes"):
        load_schema("raw").pack(VALUES)


@pytest.mark.parametrize("record", [5, b"t", [1, 2], None, DATA_TRADE, "text", numpy.zeros(2, TRADE), (1, 2)])
def test_non_records_are_refused(record: Any) -> None:
    with pytest.raises(TypeError, match="expected a dict, a dataclass, a msgspec Struct or a numpy record"):
        TRADES.pack(record, "trade")


def test_a_time_of_day_counts_from_midnight_in_the_market() -> None:
    itch = load_schema("itch50")
    dtype = itch.dtype("S")
    record = {name: 0 for name in dtype.names or () if name != "message_type"} | {"event_code": "O"}
    half_past_nine = (9 * 3_600 + 30 * 60) * 10**9
    for moment in (half_past_nine, time(9, 30), datetime(2025, 12, 1, 14, 30, tzinfo=UTC)):
        payload = itch.pack({**record, "timestamp": moment}, "S")
        assert read(itch, "S", payload).timestamp == half_past_nine.to_bytes(6, "big")
    with pytest.raises(ConfigError, match="expected ns since midnight, a time without a zone, or a datetime with one"):
        itch.pack({**record, "timestamp": "09:30"}, "S")
    with pytest.raises(ConfigError, match="expected an integer from 0 to 281474976710655"):
        itch.pack({**record, "timestamp": 1 << 48}, "S")


def test_records_within_records_and_arrays() -> None:
    odd = SCHEMAS[-1]
    leg = {"a": 1, "fee": 0.25}
    values: dict[str, Any] = {"legs": leg, "sides": [[1, 2, 3], (4, 5, 6)], "parts": [(2, 0.5), leg], "blob": b"xyz"}
    record = read(odd, "O", odd.pack(values))
    assert plain(record) == {
        "kind": b"O",
        "legs": {"a": 1, "fee": 25},
        "sides": [[1, 2, 3], [4, 5, 6]],
        "parts": [{"a": 2, "fee": 50}, {"a": 1, "fee": 25}],
        "blob": b"xyz",
    }
    assert (record.legs.fee_float, record.parts[0].fee_float) == (0.25, 0.5)
    for name, wrong, text in (
        ("sides", [1, 2], "field 'sides' was [1, 2], expected a sequence of 3"),
        ("sides", [[1, 2, 3]], "expected a sequence of 2"),
        ("blob", b"xy", "field 'blob' was b'xy', expected 3 bytes"),
        ("legs", {"a": 1}, "record of type 'O' (odd): legs lacked 'fee', expected the fields a, fee"),
    ):
        with pytest.raises(ConfigError, match=re.escape(text)):
            odd.pack({**values, name: wrong})


def test_a_field_with_the_name_of_a_price_as_a_float_keeps_it() -> None:
    dtype = numpy.dtype([("type", "S1"), ("price", price("<i4", 2)), ("price_float", "<i4"), ("n", optional("<i2", 0))])
    schema = Schema("clash", 1_008, {"t": dtype})
    record = read(schema, "t", schema.pack({"price": 1.5, "price_float": 7, "n": None}))
    assert (record.price, record.price_float, record.n) == (150, 7, None)
