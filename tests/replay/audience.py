"""Helpers for replay tests: a subscriber with callbacks of each kind, and the messages that a replay should deliver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
from hypothesis import settings
from hypothesis import strategies as st

from blackbox import Batch, Feed, Message, Subscriber
from blackbox.receive.callbacks.compiled_callback import CompiledBatch, payload, sequence_of
from blackbox.replay.controls import Action, Controls, Grant
from blackbox.replay.schedule import NO_LIMIT
from tests.examples import examples
from tests.journals import Day, Put, Row, Told, feed_of
from tests.receive.subscribers import PATIENT

few = settings(max_examples=examples(60))
PREFIXES = st.sampled_from([b"", b"A", b"AX", b"AXYZ.", b"AY.trade.of", b"B", b"BXYZ", b"CY", b"Z"])
TIMES = st.none() | st.integers(-1, 8)
START = 1_700_000_000_000_000_000
SCRIPTS = st.lists(
    st.tuples(st.just("go"), st.integers(1, 5)) | st.tuples(st.just("seek"), st.integers(0, 8)), max_size=8
)


def fingerprint(batch: CompiledBatch, state: Any) -> None:
    """Compiled callback: hash the messages in order of delivery."""
    for row in batch.rows:
        text = payload(batch, row)
        state[0] += 1
        state[1] = state[1] * 31 + sequence_of(batch, row) * 7 + batch.ts_event[row] + len(text)
        for byte in text:
            state[1] = state[1] * 31 + byte


def fingerprint_of(messages: Iterable[Told]) -> list[int]:
    """Return the state that `fingerprint` computes from these messages."""
    count, value = 0, 0
    for m in messages:
        count += 1
        value = value * 31 + m.sequence * 7 + m.ts_event + len(m.payload)
        for byte in m.payload:
            value = value * 31 + byte
    value &= (1 << 64) - 1
    return [count, value - (1 << 64) if value >> 63 else value]


def told_of(batch: Batch) -> list[Told]:
    return [
        Told(m.slice_id, m.epoch, sequence, m.ts_out, m.ts_recv, m.topic, m.payload, m.ts_event)
        for m, sequence in zip(batch, batch.sequence.tolist(), strict=True)
    ]


class Audience:
    """A subscriber with a callback of each kind, or only a compiled one, and the messages that each received."""

    def __init__(self, feed: Feed, prefix: bytes = b"", *, only_compiled: bool = False) -> None:
        self.subscriber = Subscriber(feed, slow=PATIENT)
        self.by_message: list[Told] = []
        self.by_batch: list[Told] = []
        self.resets: list[int] = []
        """Messages received before each reset."""
        self._only_compiled = only_compiled
        if feed.slices_for(prefix):
            if not only_compiled:
                self.subscriber.on(prefix)(self._message)
                self.subscriber.on_batch(prefix)(self._batch)
            self.compiled = self.subscriber.on_compiled(prefix, state=numpy.zeros(2, numpy.int64))(fingerprint)
        self.subscriber.on_reset(lambda: self.resets.append(len(self.by_message)))

    def _message(self, m: Message) -> None:
        position = m.slice_id, m.epoch, m.sequence
        self.by_message.append(Told(*position, m.ts_out, m.ts_recv, m.topic, m.payload, m.ts_event))

    def _batch(self, batch: Batch) -> None:
        self.by_batch += told_of(batch)

    def assert_got(self, expected: list[Told]) -> None:
        """Assert that callbacks of all kinds received exactly these messages, the compiled one since the last reset."""
        if not self._only_compiled:
            assert self.by_message == expected
            assert by_slice(self.by_batch) == by_slice(expected)
        self.assert_compiled_got(expected)

    def assert_compiled_got(self, expected: list[Told]) -> None:
        """Assert that the compiled callback received exactly these messages since the last reset."""
        found = {slice_id: state.tolist() for slice_id, state in self.compiled.states.items() if state.any()}
        assert found == {slice_id: fingerprint_of(messages) for slice_id, messages in by_slice(expected).items()}


def by_slice(messages: Iterable[Told]) -> dict[int, list[Told]]:
    found = defaultdict(list)
    for message in messages:
        found[message.slice_id].append(message)
    return dict(found)


def chosen(
    messages: list[Told],
    prefix: bytes = b"",
    start: int | None = None,
    stop: int | None = None,
    slices: Sequence[int] | None = None,
    by: str = "ts_event",
    order: str | None = None,
) -> list[Told]:
    """Return the selected messages in the order of playback."""
    if (by, order) == ("ts_event", None):
        messages = sorted(messages, key=lambda m: (m.ts_event, m.slice_id))
    return [
        m
        for m in messages
        if m.topic.startswith(prefix)
        and (start is None or getattr(m, by) >= start)
        and (stop is None or getattr(m, by) < stop)
        and (slices is None or m.slice_id in slices)
    ]


def simple_day(path: Path, times: Sequence[int], rows: int = 1, **settings: Any) -> Day:
    """Write a day of one slice with messages at these times, `rows` to a block."""
    day = Day(path, feed_of())
    puts = [
        Put(
            tuple(Row(b"A.%d" % (i % 3), b"%d" % i, times[i]) for i in range(at, min(at + rows, len(times)))),
            sequence=at,
            ts_out=START + at,
            **settings,
        )
        for at in range(0, len(times), rows)
    ]
    day.put(0, *puts)
    return day


def two_slices(path: Path, blocks: int = 6, **settings: Any) -> Day:
    """Write two slices of three-message blocks, with times that rise in step."""
    day = Day(path, feed_of(2))
    for slice_id in range(2):
        puts = []
        for at in range(blocks):
            rows = tuple(Row(b"%c" % (65 + slice_id), b"%d" % (3 * at + row), START + at) for row in range(3))
            puts.append(Put(rows, sequence=3 * at, ts_out=START + at, **settings))
        day.put(slice_id, *puts)
    return day


class Scripted(Controls):
    """Grants each entry of the script in turn, a number of messages or a seek, then all other messages."""

    def __init__(self, script: Iterable[tuple[str, int]]) -> None:
        super().__init__()
        self._script = list(script)
        self._left = 0

    def wait(self, next_ns: int) -> Grant:
        if not self._left:
            kind, value = self._script.pop(0) if self._script else ("go", NO_LIMIT)
            if kind == "seek":
                return Grant(Action.SEEK, seek_to_ns=value)
            if kind == "until":
                return Grant(Action.PLAY, until_ns=max(next_ns, value))
            self._left = value
        return Grant(Action.PLAY, messages=self._left)

    def played(self, messages: int, last_ns: int) -> None:
        if self._left:
            self._left -= messages if self._left != NO_LIMIT else 0


def plainly(
    everything: list[Told], first: int, script: list[tuple[str, int]]
) -> tuple[list[Told], list[int], list[Told]]:
    """Return all messages delivered, their count before each reset, and those since the last reset."""
    left, expected, since = list(everything), list[Told](), list[Told]()
    resets = []
    for kind, value in script:
        if not left:
            break
        if kind == "go":
            expected += left[:value]
            since += left[:value]
            left = left[value:]
            continue
        if since and value <= max(m.ts_event for m in since):
            resets.append(len(expected))
            since = []
        left = list(everything) if value <= first else [m for m in everything if m.ts_event >= value]
    return expected + left, resets, since + left
