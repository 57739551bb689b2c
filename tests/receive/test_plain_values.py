"""`on(prefix, fields=...)`, compared with a plain loop that reads each message; records that match no schema."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from blackbox import CallbackError, ConfigError, Feed, Message, Publisher, Recording, Recordings, Schema, Subscriber
from blackbox.receive.callbacks.plain_values import OWN
from tests.book.sessions import ITCH, gone, order
from tests.examples import examples
from tests.journals import Day, Put, Row
from tests.receive.subscribers import PATIENT, deliver, one_slice, publishing

NESTED = numpy.dtype([("a", "<i2"), ("b", "<i2")])
TRADE = numpy.dtype(
    [("kind", "S1"), ("price", ">i8"), ("size", "<u2"), ("venue", "S3"), ("clock", "u1", (6,)), ("sequence", "<i4")]
)
QUOTE = numpy.dtype([("kind", "S1"), ("price", "<i4"), ("rate", "<f8"), ("good", "?")])
ODD = numpy.dtype([("kind", "S1"), ("price", "<i4"), ("legs", NESTED), ("sides", "<i4", (2,)), ("blob", "V3")])
MADE = Schema("made", 1_002, {"T": TRADE, "Q": QUOTE, "O": ODD}, names={"trade": "T", "quote": "Q"})
OTHER = Schema("other", 1_003, {"T": numpy.dtype([("kind", "S1"), ("price", "<i2"), ("far", "<i2")])})
FIELDS = ("price", "size", "venue", "clock", "record.sequence", "rate", "good", "legs", "sides", "blob", "kind", *OWN)
TOPICS = (b"A.x", b"A.y", b"B.x", b"C.C.z")


def payloads(schema: Schema) -> st.SearchStrategy[bytes | None]:
    """Mostly records, also of the wrong length, of no type, empty, or without a value."""
    records = [
        st.binary(min_size=dtype.itemsize - 1, max_size=dtype.itemsize - 1).map(kind.encode().__add__)
        for kind, dtype in schema.records.items()
    ]
    return st.one_of(*records * 4, st.binary(max_size=3), st.sampled_from([b"T", b"Zzz", None]))


def blocks(schema: Schema) -> st.SearchStrategy[list[list[tuple[bytes, bytes | None]]]]:
    row = st.tuples(st.sampled_from(TOPICS), payloads(schema))
    plain = st.tuples(st.sampled_from(TOPICS), st.binary(min_size=24, max_size=24).map(lambda rest: b"T" + rest[1:]))
    return st.lists(st.lists(row, min_size=1, max_size=6) | st.lists(plain, min_size=1, max_size=30), max_size=4)


def write_day(path: Path, name: str, schema: Schema, of: list[list[tuple[bytes, bytes | None]]]) -> Recording:
    feed = Feed.local(name, slices=1, schema=schema)
    day = Day(path / name / "2026-11-20", feed, date="2026-11-20")
    number = 0
    for block in of:
        rows = tuple(
            Row(topic, payload, 1_000 + 7 * (number + place) % 50) for place, (topic, payload) in enumerate(block)
        )
        day.put(0, Put(rows, sequence=number, ts_out=5_000 + number))
        number += len(block)
    return Recording.open(day.path)


def comparable(value: Any) -> object:
    return bytes(value) if hasattr(value, "_length_") else value  # ctypes arrays are equal only to themselves


def values_of(message: Message, fields: tuple[str, ...]) -> tuple[object, ...]:
    """Return the values, read one by one."""
    values: list[object] = []
    for name in fields:
        if name in OWN:
            values.append(getattr(message, name))
        elif message.payload is None:
            values.append(None)
        else:
            field = name.removeprefix("record.")
            values.append(getattr(message.record, field) if field in message.record._names_ else None)
    return tuple(map(comparable, values))


Wish = tuple[bytes, tuple[str, ...], Any]
wishes_strategy = st.lists(
    st.tuples(
        st.sampled_from([b"", b"A", b"A.x", b"C"]),
        st.lists(st.sampled_from(FIELDS), min_size=1, max_size=4).map(tuple),
        st.sampled_from([None, None, "T", ("trade", "T"), ("T", "Q"), ("quote", "O")]),
    ),
    min_size=1,
    max_size=3,
)


def is_wanted(message: Message, types: Any) -> bool:
    if types is None:
        return True
    wanted = {"T": "T", ("trade", "T"): "T", ("T", "Q"): "TQ", ("quote", "O"): "QO"}[types]
    if message.batch.schema == OTHER:  # it has no names
        return (message.payload or b"")[:1] == b"T" and "T" in types
    return bool(message.payload) and chr(message.payload[0]) in wanted


def replayed(recordings: Any, feed: Feed, wishes: list[Wish], plain: bool) -> tuple[list[Any], tuple[int, int]]:
    subscriber = Subscriber(feed, on_error="log")
    seen: list[Any] = []
    unwanted = 0
    for number, (prefix, fields, types) in enumerate(wishes):
        if plain:

            def read(message: Message, number: int = number, wish: Wish = (prefix, fields, types)) -> None:
                nonlocal unwanted
                if is_wanted(message, wish[2]):
                    seen.append((number, *values_of(message, wish[1])))
                else:
                    unwanted += 1

            subscriber.on(prefix)(read)
        else:

            def take(*values: object, number: int = number) -> None:
                seen.append((number, *map(comparable, values)))

            subscriber.on(prefix, fields=fields, message_type=types)(take)
    subscriber.replay(recordings)
    delivery = subscriber.statistics().delivery
    assert delivery.due == delivery.delivered + delivery.failed
    return seen, (delivery.delivered - unwanted, delivery.failed)


@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(blocks(MADE), blocks(OTHER), wishes_strategy, st.booleans())
@example(
    [[(topic, b"T" + bytes([number]) * 23) for number, topic in enumerate(TOPICS[::-1])]],  # columns are read in place
    [],
    [(b"", ("price", "venue"), None), (b"A", ("record.sequence", "size"), None)],
    False,
)
def test_values_and_errors_equal_those_of_single_messages(
    of: list[Any], others: list[Any], wishes: list[Wish], several: bool
) -> None:
    with TemporaryDirectory() as directory:
        recording = write_day(Path(directory), "made", MADE, of)
        recordings: Any = recording
        if several:
            recordings = Recordings([recording, write_day(Path(directory), "other", OTHER, others)])
        found = replayed(recordings, recording.feed, wishes, plain=False)
        assert found == replayed(recordings, recording.feed, wishes, plain=True)


def test_live_values_have_their_types() -> None:
    subscriber = Subscriber(feed := one_slice(schema=MADE), workers=2)
    seen: list[Any] = []

    @subscriber.on(
        b"A", fields=("symbol", "price", "rate", "record.sequence", "sequence"), message_type=["T", "Q"], group="one"
    )
    def take(*values: object) -> None:
        seen.append(values)

    @subscriber.on(b"A.x", fields=("topic",), group="one")
    def topic(name: bytes) -> None:
        seen.append(name)

    trade, quote = numpy.zeros(1, TRADE), numpy.zeros(1, QUOTE)
    trade["kind"], trade["price"], trade["sequence"] = b"T", -5, 9
    quote["kind"], quote["price"], quote["rate"] = b"Q", 7, 0.5
    with publishing(feed, subscriber) as publisher:
        odd = b"O" + bytes(ODD.itemsize - 1)
        publisher.send(publisher.encode([(b"A.x", trade.tobytes()), (b"A.y", quote.tobytes()), (b"A.x", odd)]))
        publisher.send(publisher.encode([(b"A.y", odd)]))
    assert seen == [(b"A", -5, None, 9, 0), b"A.x", (b"A", 7, 0.5, None, 1), b"A.x"]
    delivery = subscriber.statistics().delivery
    assert (delivery.due, delivery.delivered) == (4, 4)


def test_an_error_in_a_callback_names_its_message() -> None:
    subscriber, seen = Subscriber(feed := one_slice(), slow=PATIENT), list[int]()

    @subscriber.on(b"", fields=("sequence",))
    def picky(sequence: int) -> None:
        if sequence == 2:
            raise KeyError("no")
        seen.append(sequence)

    with pytest.raises(CallbackError, match="picky for b'' raised KeyError: 'no' .*sequence 2"):
        deliver(subscriber, feed, [(b"T", b"")] * 4)
    assert seen == [0, 1]


@pytest.mark.parametrize(
    ("schema", "wish", "error"),
    [
        (MADE, {"fields": ("prize",)}, r"field was 'prize', expected .* \(did you mean 'price'\?\)"),
        (None, {"fields": ("price",)}, "field was 'price', expected .*, but this feed has no records"),
        (MADE, {"message_type": ("trade", "bar")}, "message_type was 'bar', expected one of: quote trade"),
    ],
)
def test_an_unknown_name_is_rejected(tmp_path: Path, schema: Schema | None, wish: dict[str, Any], error: str) -> None:
    feed = one_slice(schema=schema or "raw")
    day = Day(tmp_path, feed)
    day.put(0, Put((Row(b"A", b"T"),)))
    running = Subscriber(feed, slow=PATIENT)
    running.on(b"")(print)
    with Publisher(feed), running:
        with pytest.raises(ConfigError, match=error):
            running.on(b"", **wish)(print)
        for act, arguments in (("start", ()), ("replay", (Recording.open(day.path),))):
            subscriber = Subscriber(feed, slow=PATIENT)
            subscriber.on(b"", **wish)(print)
            with pytest.raises(ConfigError, match=f"callback print for b'': {error}"):
                getattr(subscriber, act)(*arguments)


BAD = b"A" + bytes(5)
ROWS = [order(1, b"B", 5), BAD, order(2, b"B", 6), b"z", b"", gone(1), order(3, b"S", 7)]
GOOD = [5, 6, None, 7]


@pytest.mark.parametrize(
    ("source", "on_error"), [("one block", "stop"), ("many blocks", "stop"), ("many blocks", "log"), ("live", "stop")]
)
def test_it_is_skipped_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, on_error: Literal["stop", "log"]
) -> None:
    subscriber = Subscriber(feed := one_slice(schema="itch50"), on_error=on_error)
    prices: list[Any] = []
    others: list[bytes] = []
    subscriber.on(b"", fields=("price",))(prices.append)
    subscriber.on(b"")(lambda message: others.append(message.payload))
    with caplog.at_level(logging.WARNING, "blackbox"):
        if source == "live":
            with publishing(feed, subscriber) as publisher:
                for payload in ROWS:
                    publisher.send(publisher.encode([(b"A.A", payload)]))
        else:
            day, step = Day(tmp_path, feed), len(ROWS) if source == "one block" else 1
            for first in range(0, len(ROWS), step):
                rows = tuple(Row(b"A.A", each, 1 + first) for each in ROWS[first : first + step])
                day.put(0, Put(rows, sequence=first, schema=ITCH))
            subscriber.replay(Recording.open(tmp_path))
    assert (prices, others) == (GOOD, ROWS)
    delivery = subscriber.statistics().delivery
    assert (delivery.misfits, delivery.failed, delivery.callback_errors) == (3, 3, 0)
    (told,) = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert "expected 36" in told
