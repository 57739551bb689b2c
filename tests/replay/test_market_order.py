"""The order in which a replay calls callbacks, compared with a plain sort and a plain loop over all messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from blackbox import Batch, Message, Recording, Subscriber
from blackbox.errors import ConfigError, SubscriberError
from blackbox.replay import market_order
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from blackbox.replay.replay import Replay
from blackbox.subscribe.compiled_callback import little_endian, payload
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of

PREFIXES = (b"", b"A", b"A.x", b"B", b"C.y", b"A.xx")
TOPICS = (b"A.x", b"A.xx", b"A.y", b"B.x", b"B.y", b"C.x", b"C.y")
KINDS = ("message", "batch", "compiled")


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
    payload: bytes
    compiled: int


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


def expected(messages: list[Recorded], wishes: list[Wish]) -> list[Seen]:
    """Return the messages that the callbacks see: loop over the messages, and over the callbacks for each."""
    seen = []
    compiled = 0
    for message in in_order(messages):
        for number, wish in enumerate(wishes):
            if not message.topic.startswith(wish.prefix):
                continue
            if wish.kind == "compiled":
                compiled += int.from_bytes(message.payload, "little")
            else:
                seen.append(Seen(number, message.payload, compiled))
    return seen


def add(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[0] += little_endian(payload(batch, row), 0, 4)


def replayed(path: Path, wishes: list[Wish], **how: Any) -> tuple[list[Seen], Any]:
    """Replay a day; return the messages that the callbacks saw, and the statistics."""
    recording = Recording.open(path)
    subscriber = Subscriber(feed_of())  # its feed accepts prefixes that no slice can contain
    seen: list[Seen] = []
    compiled: list[Any] = []

    def total() -> int:
        return sum(int(each.total()[0]) for each in compiled)

    def register(number: int, wish: Wish) -> None:
        if wish.kind == "compiled":
            compiled.append(
                subscriber.on_compiled(wish.prefix, state=numpy.zeros(1, numpy.int64), independent=wish.independent)(
                    add
                )
            )
        elif wish.kind == "batch":

            @subscriber.on_batch(wish.prefix, independent=wish.independent)
            def _(batch: Batch) -> None:
                seen.extend(Seen(number, bytes(each), total()) for each in batch.payload_list())
        else:

            @subscriber.on(wish.prefix, independent=wish.independent)
            def _(message: Message) -> None:
                seen.append(Seen(number, bytes(message.payload), total()))

    for number, wish in enumerate(wishes):
        register(number, wish)
    return seen, subscriber.replay(Replay(recording, **how))


@st.composite
def days(draw: st.DrawFn) -> tuple[int, Blocks]:
    slices = draw(st.integers(1, 3))
    is_timed, untimed = draw(st.booleans()), draw(st.sampled_from([-10, 4]))
    blocks: Blocks = []
    begun: set[int] = set()  # the order of messages without a time before the first one depends on segment ends
    sent = time = 1_000
    for _ in range(draw(st.integers(0, 12))):
        slice_id = draw(st.integers(0, slices - 1))
        sent += draw(st.integers(-3, 20))
        mine = [topic for topic in TOPICS if slices == 1 or topic[0] - ord("A") == slice_id]
        rows = st.tuples(st.sampled_from(mine), st.integers(-15, 5))
        messages = []
        for topic, step in draw(st.lists(rows, min_size=1, max_size=9)):
            time = max(1, sent + step) if is_timed else max(time, sent + step)
            has_time = is_timed or step >= untimed or slice_id not in begun
            messages.append((topic, time if has_time else 0))
            begun.add(slice_id)
        blocks.append((slice_id, sent, messages))
    return slices, blocks


@pytest.fixture(params=[(512, 1 << 14), (3, 8)], ids=["gathered", "as it lies"])
def run_lengths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with thresholds that gather the messages of small days, and with ones that play them in place."""
    monkeypatch.setattr(market_order, "_LONG_RUN", request.param[0])
    monkeypatch.setattr(market_order, "_ROWS", request.param[1])


wishes_strategy = st.lists(
    st.builds(Wish, st.sampled_from(KINDS), st.sampled_from(PREFIXES), st.just(False)), min_size=1, max_size=5
)


@pytest.mark.usefixtures("run_lengths")
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(days(), wishes_strategy, st.sampled_from([None, 1000.0, 100.0, 10.0]))
@example((1, [(0, 1000, [(b"A.x", 0)]), (0, 999, [(b"A.x", 0)])]), [Wish("message", b"")], None)
@example(
    (2, [(0, 1000, [(b"A.x", 0)]), (1, 1002, [(b"B.x", 0)]), (0, 1005, [(b"A.x", 0), (b"A.x", 1004)])]),
    [Wish("message", b"")],
    None,
)
def test_each_message_reaches_all_callbacks_before_the_next(
    day: tuple[int, Blocks], wishes: list[Wish], speed: float | None
) -> None:
    slices, blocks = day
    with TemporaryDirectory() as directory:
        messages = write_day(Path(directory), blocks, slices)
        controls = Controls(speed, clock=ManualClock(automatic=True))
        seen, statistics = replayed(Path(directory), wishes, order="event", controls=controls)
    assert seen == expected(messages, wishes)
    assert statistics.messages == len(messages)
    assert statistics.misplaced == 0


def test_a_misplaced_message_hidden_by_the_index_is_counted(tmp_path: Path) -> None:
    blocks: Blocks = [(0, 1000, [(b"A.x", 1000), (b"A.x", 1005)]), (0, 1001, [(b"A.x", 0), (b"A.x", 999)])]
    write_day(tmp_path, blocks, 1)
    seen, statistics = replayed(tmp_path, [Wish("message", b"")])
    assert [int.from_bytes(each.payload, "little") for each in seen] == [0, 3, 1, 2]
    assert (statistics.late, statistics.misplaced) == (1, 1)


@pytest.mark.parametrize("slices", [1, 4])
def test_callbacks_of_two_symbols_cannot_see_ahead(tmp_path: Path, slices: int) -> None:
    blocks: Blocks = []
    for n in range(400):
        name = b"ABCD"[n % 4 : n % 4 + 1]
        start = 1_000 + 100 * (n // 4)
        blocks.append(
            (n % 4 if slices > 1 else 0, start + 200 + n % 4, [(name + b".x", start + 7 * k) for k in range(14)])
        )
    messages = write_day(tmp_path, blocks, slices)
    wishes = [Wish("message", b"A"), Wish("batch", b"B"), Wish("message", b"C"), Wish("compiled", b"D")]
    for how in ({}, {"slices": range(slices)}):
        seen, statistics = replayed(tmp_path, wishes, **how)
        assert seen == expected(messages, wishes)
        assert statistics.misplaced == 0


def test_a_topic_first_seen_in_a_gathered_block_is_not_lost_afterwards(tmp_path: Path) -> None:
    blocks: Blocks = [(n % 2, 1_000 + n, [(b"AB"[n % 2 : n % 2 + 1] + b".x", 1_000 + n)]) for n in range(6)]
    blocks.append((0, 2_000, [(b"A.x", 1_100 + n) for n in range(600)]))
    blocks.append((1, 3_000, [(b"B.x", 2_900)]))
    messages = write_day(tmp_path, blocks, 2)
    seen, _ = replayed(tmp_path, [Wish("message", b"")])
    assert seen == expected(messages, [Wish("message", b"")])


@pytest.mark.parametrize("kind", ["compiled", "message"])
def test_many_callbacks_over_several_slices_terminate(tmp_path: Path, kind: str) -> None:
    blocks: Blocks = [(n % 4, 1_000 + n, [(b"ABCD"[n % 4 : n % 4 + 1] + b".x", 1_000 + n)]) for n in range(12)]
    write_day(tmp_path, blocks, 4)
    _, statistics = replayed(tmp_path, [Wish(kind, b"")] * 70)
    assert statistics.messages == 12


def test_a_compiled_callback_removed_during_its_run_is_not_called_again(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000 + n) for n in range(9)])], 1)
    recording = Recording.open(tmp_path)
    subscriber = Subscriber(recording.feed)
    came: list[bytes] = []
    compiled = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(add)

    @subscriber.on(b"")
    def remove(message: Message) -> None:
        came.append(message.payload)
        if len(came) == 2:
            subscriber.remove(compiled)

    subscriber.replay(recording)
    assert len(came) == 9
    assert compiled.total()[0] == 0 + 1
    assert subscriber.statistics().delivery.delivered == 9 + 2


def test_keep_gaps_requires_the_order_of_sending(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000)])], 1)
    with pytest.raises(ConfigError, match="keep_gaps was set with order 'event', expected 'sent'"):
        Replay(Recording.open(tmp_path), keep_gaps=True, order="event")


def test_a_python_callback_cannot_be_added_later_to_compiled_ones(tmp_path: Path) -> None:
    blocks: Blocks = [(n % 2, 1_000 + n, [(b"AB"[n % 2 : n % 2 + 1] + b".x", 1_000 + n)]) for n in range(4)]
    write_day(tmp_path, blocks, 2)
    recording = Recording.open(tmp_path)
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
    assert "expected a compiled callback" in refused[0]


def test_a_slice_without_times_does_not_wait(tmp_path: Path) -> None:
    blocks: Blocks = [
        (n % 2, 1_000 + n, [(b"AB"[n % 2 : n % 2 + 1] + b".x", 0 if n % 2 else 990 + n)]) for n in range(40)
    ]
    messages = write_day(tmp_path, blocks, 2)
    seen, statistics = replayed(tmp_path, [Wish("message", b"")])
    assert seen == expected(messages, [Wish("message", b"")])
    assert statistics.misplaced == 0


@pytest.mark.parametrize("keep_every", [1, 3])
def test_batches_that_are_kept_keep_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_every: int
) -> None:
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
        if not len(copied) % keep_every:
            kept.append((batch, copied[-len(batch) :]))

    subscriber.replay(Recording.open(tmp_path / "day"))
    assert copied == [message.payload for message in messages]
    assert len(kept) > 10
    for batch, before in kept:
        assert [bytes(each) for each in batch.payload_list()] == before
