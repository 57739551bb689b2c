"""The order in which replays of one or several feeds call callbacks, compared with a plain sort and loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from blackbox import Batch, Recording, Recordings, Schema, Subscriber
from blackbox.errors import SubscriberError
from blackbox.receive.callbacks.compiled_callback import little_endian, payload
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from blackbox.replay.replay import Replay
from blackbox.replay.tables import market_order
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of

PREFIXES = (b"", b"A", b"A.x", b"B", b"C.y", b"A.xx")
TOPICS = (b"A.x", b"A.xx", b"A.y", b"B.x", b"B.y", b"C.x", b"C.y")


class Recorded(NamedTuple):
    slice_id: int
    sequence: int
    topic: bytes
    payload: bytes
    ts_event: int
    ts_out: int
    place: tuple[int, int, int, int]
    """Order among equal times: slice, largest `ts_out` of the slice up to here, record, row."""
    time: int
    """`ts_event`, or the largest earlier `ts_event` of the slice. Before the first one: the next `ts_event`, or the
    largest `ts_out` of the slice up to here if that is smaller."""


class Wish(NamedTuple):
    kind: str
    prefix: bytes
    independent: bool = False


class Seen(NamedTuple):
    """A message that a Python callback received, and the sum of the messages seen by compiled callbacks until then."""

    callback: int
    feed: str
    slice_id: int
    topic: bytes
    value: int
    compiled: int


SHORT = Schema("short", 1_001, {"s": numpy.dtype([("type", "S1"), ("value", "<i4")])})
LONG = Schema("long", 1_002, {"l": numpy.dtype([("type", "S1"), ("value", "<i4"), ("rest", "S3")])})
SCHEMAS = (SHORT, LONG, SHORT)
KINDS = ("s", "l", "s")
NAMES = ("zulu", "alpha", "mike")


Blocks = list[tuple[int, int, list[tuple[bytes, int]]]]
"""For each block: slice, `ts_out`, and (topic, `ts_event`) of its messages."""


def number_of(number: int) -> bytes:
    """Return the payload of message `number`."""
    return number.to_bytes(4, "little")


def write_day(
    path: Path, blocks: Blocks, slices: int, payload_of: Callable[[int], bytes] = number_of, **settings: Any
) -> list[Recorded]:
    """Write a day and return its messages in recorded order."""
    day = Day(path, msgspec.structs.replace(feed_of(slices), **settings))
    found: list[Recorded] = []
    sequence, sent, time = [0] * slices, [0] * slices, [0] * slices
    first_times = [[time for of, _, rows in blocks if of == each for _, time in rows if time] for each in range(slices)]
    for record, (slice_id, ts_out, messages) in enumerate(blocks):
        rows = []
        sent[slice_id] = max(sent[slice_id], ts_out)
        first = sequence[slice_id]
        for row, (topic, ts_event) in enumerate(messages):
            time[slice_id] = max(time[slice_id], ts_event)
            own = ts_event or time[slice_id] or min([sent[slice_id], *first_times[slice_id][:1]])
            text = payload_of(len(found))
            rows.append(Row(topic, text, ts_event))
            place = slice_id, sent[slice_id], record, row
            found.append(Recorded(slice_id, first + row, topic, text, ts_event, ts_out, place, own))
        sequence[slice_id] += len(rows)
        day.put(slice_id, Put(tuple(rows), sequence=first, ts_out=ts_out, ts_recv=ts_out + 1))
    return found


def in_order(messages: list[Recorded]) -> list[Recorded]:
    """Sort the messages into market order."""
    return sorted(messages, key=lambda message: (message.time, message.place))


def payload_of(feed: int, number: int) -> bytes:
    return KINDS[feed].encode() + number.to_bytes(4, "little") + (b"abc" if KINDS[feed] == "l" else b"")


def value_of(message: Recorded) -> int:
    return int.from_bytes(message.payload[1:5], "little")


def write_feeds(path: Path, *feeds: tuple[int, Blocks]) -> list[list[Recorded]]:
    """Write a day of each feed and return the messages of each."""
    found = []
    for number, (slices, blocks) in enumerate(feeds):

        def text(each: int, number: int = number) -> bytes:
            return payload_of(number, 100 * each + number)

        form = {"name": NAMES[number], "schema": SCHEMAS[number]}
        found.append(write_day(path / NAMES[number], blocks, slices, text, **form))
    return found


def recordings_in(path: Path) -> list[Recording]:
    return [Recording.open(path / name) for name in NAMES if (path / name).exists()]


def expected(
    recorded: list[list[Recorded]], slices: list[int], wishes: list[Wish]
) -> tuple[list[Seen], list[dict[int, int]]]:
    """Return the messages that the callbacks see, and the sums of the compiled callbacks by slice."""
    seen = []
    sums: list[Counter[int]] = [Counter() for wish in wishes if wish.kind == "compiled"]
    everything = [(message, feed) for feed, messages in enumerate(recorded) for message in messages]
    for message, feed in sorted(everything, key=lambda each: (each[0].time, each[1], each[0].place)):
        slice_id = sum(slices[:feed]) + message.slice_id
        compiled = iter(sums)
        for number, wish in enumerate(wishes):
            mine = next(compiled) if wish.kind == "compiled" else None
            if not message.topic.startswith(wish.prefix):
                continue
            if mine is not None:
                mine[slice_id] += value_of(message)
            else:
                total = sum(each.total() for each in sums)
                seen.append(Seen(number, NAMES[feed], slice_id, message.topic, value_of(message), total))
    return seen, [{key: value for key, value in each.items() if value} for each in sums]


def add(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[0] += little_endian(payload(batch, row), 1, 4)


def replayed(recordings: Any, wishes: list[Wish], **how: Any) -> tuple[list[Seen], list[dict[int, int]], Any]:
    subscriber = Subscriber(feed_of())  # its feed accepts prefixes that no slice can contain
    seen: list[Seen] = []
    compiled: list[Any] = []

    def see(number: int, messages: Any) -> None:
        total = sum(int(each.total()[0]) for each in compiled)
        for message in messages:
            one = message.batch.feed, message.slice_id, message.topic, message.record.value, total
            seen.append(Seen(number, *one))

    def take(number: int, batch: Batch) -> None:
        kind = KINDS[NAMES.index(batch.feed)]
        values = batch.records(kind)["value"].tolist()
        assert batch.schema is not None
        assert set(batch.schema.records) == {kind}
        assert values == [int.from_bytes(each[1:5], "little") for each in batch.payload_list()]
        columns = batch.slice_ids.tolist(), batch.topics_per_message(), values
        assert [subscriber.topics(slice_id).index(topic) for slice_id, topic, _ in zip(*columns, strict=True)] == (
            batch.topic_numbers[batch.topic_index].tolist()
        )
        see(number, batch)

    for number, wish in enumerate(wishes):
        if wish.kind == "compiled":
            register = subscriber.on_compiled(
                wish.prefix, state=numpy.zeros(1, numpy.int64), independent=wish.independent
            )
            compiled.append(register(add))
        elif wish.kind == "batch":
            subscriber.on_batch(wish.prefix, independent=wish.independent)(
                lambda batch, number=number: take(number, batch)
            )
        else:
            subscriber.on(wish.prefix, independent=wish.independent)(
                lambda message, number=number: see(number, [message])
            )
    statistics = subscriber.replay(Replay(recordings, **how))
    sums = [{n: int(state[0]) for n, state in each.states.items() if state[0]} for each in compiled]
    return seen, sums, statistics


@st.composite
def days(draw: st.DrawFn) -> tuple[int, Blocks]:
    slices = draw(st.integers(1, 3))
    is_timed, untimed = draw(st.booleans()), draw(st.sampled_from([-10, 4]))
    earliest = draw(st.sampled_from([-15, -300]))  # with -300, many blocks overlap
    blocks: Blocks = []
    begun: set[int] = set()  # the order of messages without a time before the first one depends on segment ends
    sent = time = 1_000
    for _ in range(draw(st.integers(0, 14))):
        slice_id = draw(st.integers(0, slices - 1))
        sent += draw(st.integers(-3, 20))
        mine = [topic for topic in TOPICS if slices == 1 or topic[0] - ord("A") == slice_id]
        rows = st.tuples(st.sampled_from(mine), st.integers(earliest, 5))
        messages = []
        for topic, step in draw(st.lists(rows, min_size=1, max_size=9)):
            time = max(1, sent + step) if is_timed else max(time, sent + step)
            has_time = is_timed or step >= untimed or slice_id not in begun
            messages.append((topic, time if has_time else 0))
            begun.add(slice_id)
        blocks.append((slice_id, sent, messages))
    return slices, blocks


@pytest.fixture(params=[(512, 1 << 14), pytest.param((3, 8), marks=pytest.mark.long)], ids=["gathered", "as it lies"])
def run_lengths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with thresholds that gather the messages of small days, and with ones that play them in place."""
    monkeypatch.setattr(market_order, "_LONG_RUN", request.param[0])
    monkeypatch.setattr(market_order, "_ROWS", request.param[1])


wishes_strategy = st.lists(
    st.builds(Wish, st.sampled_from(["message", "batch", "compiled"]), st.sampled_from(PREFIXES), st.just(False)),
    min_size=1,
    max_size=5,
)


@pytest.mark.usefixtures("run_lengths")
@settings(deadline=None, max_examples=examples(160), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(days(), min_size=1, max_size=3), wishes_strategy, st.sampled_from([None, 1000.0, 10.0]))
@example([(1, [(0, 1000, [(b"A.x", 0)]), (0, 999, [(b"A.x", 0)])])], [Wish("message", b"")], None)
@example(
    [(2, [(0, 1000, [(b"A.x", 0)]), (1, 1002, [(b"B.x", 0)]), (0, 1005, [(b"A.x", 0), (b"A.x", 1004)])])],
    [Wish("message", b"")],
    None,
)
def test_each_message_of_any_feed_reaches_all_callbacks_before_the_next(
    feeds: list[tuple[int, Blocks]], wishes: list[Wish], speed: float | None
) -> None:
    with TemporaryDirectory() as directory:
        recorded = write_feeds(Path(directory), *feeds)
        controls = Controls(speed, clock=ManualClock(automatic=True))
        seen, sums, statistics = replayed(recordings_in(Path(directory)), wishes, order="event", controls=controls)
    assert (seen, sums) == expected(recorded, [slices for slices, _ in feeds], wishes)
    assert statistics.messages == sum(map(len, recorded))
    assert statistics.misplaced == 0


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(days(), min_size=2, max_size=3))
def test_compiled_callbacks_and_sending_order_keep_feeds_apart(feeds: list[tuple[int, Blocks]]) -> None:
    with TemporaryDirectory() as directory:
        recorded = write_feeds(Path(directory), *feeds)
        recordings = Recordings(recordings_in(Path(directory)))
        wishes = [Wish("compiled", b""), Wish("compiled", b"A")]
        _, sums = expected(recorded, [slices for slices, _ in feeds], wishes)
        for order in ("event", "sent"):
            assert replayed(recordings, wishes, order=order)[1] == sums
        seen, _, _ = replayed(recordings, [Wish("batch", b"")], order="sent")
    assert Counter(each.value for each in seen) == Counter(value_of(m) for messages in recorded for m in messages)
    for each in seen:
        assert each.value % 100 == NAMES.index(each.feed)


def test_a_misplaced_message_hidden_by_the_index_is_counted(tmp_path: Path) -> None:
    blocks: Blocks = [(0, 1000, [(b"A.x", 1000), (b"A.x", 1005)]), (0, 1001, [(b"A.x", 0), (b"A.x", 999)])]
    write_feeds(tmp_path, (1, blocks))
    seen, _, statistics = replayed(recordings_in(tmp_path), [Wish("message", b"")])
    assert [each.value for each in seen] == [0, 300, 100, 200]
    assert (statistics.late, statistics.misplaced) == (1, 1)


def test_only_independent_callbacks_of_two_symbols_see_ahead(tmp_path: Path) -> None:
    """The failure that `independent` permits shows that this test would detect it."""
    blocks: Blocks = []
    for n in range(100):
        start = 1_000 + 100 * (n // 4)
        name = b"ABCD"[n % 4 : n % 4 + 1]
        blocks.append((n % 4, start + 200 + n % 4, [(name + b".x", start + 7 * k) for k in range(14)]))
    recorded = write_feeds(tmp_path, (4, blocks))
    kinds = [("message", b"A"), ("batch", b"B"), ("message", b"C"), ("compiled", b"D")]
    wanted, sums = expected(recorded, [4], [Wish(*each) for each in kinds])
    seen, *_ = replayed(recordings_in(tmp_path), [Wish(*each) for each in kinds], slices=range(4))
    assert seen == wanted
    seen, found, _ = replayed(recordings_in(tmp_path), [Wish(*each, independent=True) for each in kinds])
    assert seen != wanted
    assert (sorted(each[:5] for each in seen), found) == (sorted(each[:5] for each in wanted), sums)


def test_many_callbacks_over_several_slices_terminate(tmp_path: Path) -> None:
    blocks: Blocks = [(n % 4, 1_000 + n, [(b"ABCD"[n % 4 : n % 4 + 1] + b".x", 1_000 + n)]) for n in range(12)]
    write_feeds(tmp_path, (4, blocks))
    for kind in ("compiled", "message"):
        assert replayed(recordings_in(tmp_path), [Wish(kind, b"")] * 70)[2].messages == 12


def test_a_python_callback_cannot_be_added_later_to_compiled_ones(tmp_path: Path) -> None:
    blocks: Blocks = [(n % 2, 1_000 + n, [(b"AB"[n % 2 : n % 2 + 1] + b".x", 1_000 + n)]) for n in range(4)]
    write_feeds(tmp_path, (2, blocks))
    (recording,) = recordings_in(tmp_path)
    subscriber = Subscriber(recording.feed)
    subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(add)
    refused: list[str] = []

    class Adding(Controls):
        """Adds a callback after the first blocks."""

        def played(self, messages: int, last_ns: int) -> None:
            super().played(messages, last_ns)
            try:
                subscriber.on(b"")(lambda message: None)
            except SubscriberError as error:
                refused.append(str(error))

    subscriber.replay(Replay(recording, controls=Adding(1e9, clock=ManualClock(automatic=True))))
    assert refused
    assert "add it before the replay" in refused[0]


def test_batches_that_are_kept_keep_their_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_order, "_ROWS", 64)
    blocks: Blocks = [
        (number % 2, 1_000 + number, [(TOPICS[number % 3], 1 + number + 2 * row) for row in range(20)])
        for number in range(200)
    ]
    messages = in_order(write_day(tmp_path / "day", blocks, 2))
    subscriber = Subscriber(feed_of())
    kept: list[tuple[Batch, list[bytes]]] = []
    copied: list[bytes] = []

    @subscriber.on_batch(b"")
    def _(batch: Batch) -> None:
        copied.extend(map(bytes, batch.payload_list()))
        if not len(copied) % 3:
            kept.append((batch, copied[-len(batch) :]))

    subscriber.replay(Recording.open(tmp_path / "day"))
    assert copied == [message.payload for message in messages]
    assert len(kept) > 10
    for batch, before in kept:
        assert [bytes(each) for each in batch.payload_list()] == before
