"""Bursts of blocks and the calls of callbacks: shared by workers and replays."""

from __future__ import annotations

import ctypes
import logging
import struct
import sys
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy

from blackbox.block.batch.batch import Batch, Message, SmallBatch
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.errors import CallbackError
from blackbox.receive.callbacks.callback_turns import (
    Part,
    Taker,
    call_entry,
    give_in_turn,
    give_message_by_message,
    list_turns,
)
from blackbox.receive.callbacks.callbacks import Callback, Kind, MisfitError, callback_error
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.deliver.worker_loop import FEW_WORDS, MOST_FEW
from blackbox.receive.deliver.worker_memory import BlockBurst, WorkerMemory
from blackbox.receive.deliver.worker_state import BatchEntry, WorkerAt
from blackbox.receive.state import SliceState, Stopping, WorkerCounters
from blackbox.receive.statistics import Counters

log = logging.getLogger("blackbox")

_BUSY_SINCE: Final = WorkerCounters.busy_since_ns.start
_DELIVERED: Final = WorkerCounters.delivered.start
_BATCHES: Final = WorkerCounters.batches.start
_CALLBACK: Final = BatchEntry.callback.start
_COUNT: Final = BatchEntry.count.start
_PLACE: Final = struct.Struct("<4q")
"""The fields of a `BlockPlace` that `ReceivedBlock` takes."""
_FEW: Final = [struct.Struct(f"<{FEW_WORDS * count}q") for count in range(MOST_FEW + 1)]
_TERMINATE: Final = int(Stopping.TERMINATE)
"""Checked once per batch; a look-up in the enum takes six times as long."""
_MESSAGES: Final[frozenset[Kind]] = frozenset(("message", "book"))


class Delivery:
    """Delivers the blocks of a burst: compiled code fills it and lists batches, this calls Python callbacks.

    Attributes: `memory` of the burst; `state` of the compiled loop; `quit`, True once an error has ended it.
    """

    def __init__(
        self,
        feeds: Sequence[BatchFeed],
        slice_state: SliceState,
        counters: Counters,
        number: int,
        on_error: Callable[[CallbackError], bool],
        in_turn: frozenset[Kind] = _MESSAGES,
        slices: int = 1,
    ) -> None:
        """Deliver to the callbacks of worker `number`, whose batches of a block are of `slices` slices.

        `feeds`: the feed, or that of each slice. `on_error` gets exceptions of callbacks and returns whether to
        continue. Callbacks of the kinds `in_turn` get each message of a block before any gets the next one, unless they
        are independent.
        """
        self.memory = WorkerMemory(slices)
        self.state = self.memory.state
        self.quit = False
        self._in_turn, self._feeds = in_turn, tuple(feeds)
        self._slice_state, self._all_counters, self._number = slice_state, counters, number
        self._counters = counters.workers[number]
        self._on_error = on_error

    def set_table(self, table: WorkerTable, dealer: int) -> WorkerAt:
        """Call the callbacks of a table. Return the addresses for compiled code."""
        self._callbacks = table.callbacks
        self._takes_messages = [callback.takes_messages for callback in table.callbacks]
        return self.memory.addresses(table, dealer, self._slice_state, self._all_counters, self._number)

    def report(self, failure: CallbackError) -> bool:
        """Report an exception of a callback. Return True to continue."""
        self.quit = not self._on_error(failure)
        return not self.quit

    def deliver(self) -> None:
        """Deliver the burst's batches to their callbacks."""
        burst = self.memory.burst
        unshared = sys.getrefcount(burst)  # the count depends on the interpreter
        try:
            self._run_callbacks(burst)
        finally:
            if sys.getrefcount(burst) > unshared:
                self.memory.leave(burst)

    def deliver_few(self) -> None:
        """Deliver FEW messages; compiled code has already marked the callback as busy."""
        memory = self.memory
        number = memory.entry_words[_CALLBACK]
        if not self._takes_messages[number]:
            self._counters.words[_BUSY_SINCE] = 0
            self.deliver()
            return
        burst = memory.burst
        unshared = sys.getrefcount(burst)
        try:
            self._give_few(burst, self._callbacks[number])
        finally:
            if sys.getrefcount(burst) > unshared:
                memory.leave(burst)

    def _give_few(self, burst: BlockBurst, callback: Callback) -> None:
        memory, words = self.memory, self._counters.words
        count = memory.entry_words[_COUNT]
        if callback.active:
            values = _FEW[count].unpack_from(memory.few_bytes)
            how = burst, *_PLACE.unpack_from(memory.place_bytes), self._feeds
            batch, function, delivered = SmallBatch(how, list(values[2::3]), True), callback.function, 0
            for row in range(count):
                payload = ctypes.string_at(values[3 * row], values[3 * row + 1])
                try:
                    function(Message(payload, batch, row))
                except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, even SystemExit
                    if not self._raised(callback, error, batch, row):
                        break
                else:
                    delivered += 1
            words[_DELIVERED] += delivered
            words[_BATCHES] += 1
        else:
            self._counters.unwanted += count
        words[_BUSY_SINCE] = 0

    def _run_callbacks(self, burst: BlockBurst) -> None:
        memory, state = self.memory, self.state
        entries = memory.entries[: state.entries].tolist()
        if not entries:  # a compiled callback has raised
            return
        places = memory.places[: state.blocks].tolist()
        if state.singles and all(self._takes_messages[callback] for _, callback, *_ in entries):
            self._give_singles(burst, entries, places)
            return
        if len(entries) == 1 and not self.is_over():  # one block for one callback: a short path that halves the time
            [(slot, callback_number, rows, count, _)] = entries
            envelope, body, body_bytes, origins, *_ = places[slot]
            received = ReceivedBlock(burst, envelope, body, body_bytes, origins, self._feeds)
            batch = Batch(received.block, memory.rows_of(burst, rows, count, received.block.count), received)
            part = self._part(0, self._callbacks[callback_number], batch)
            self._counters.busy_since_ns = time.monotonic_ns()
            self._give(part)
            self._counters.busy_since_ns = 0
            return
        last = {callback: number for number, (_, callback, *_) in enumerate(entries)}
        for slot, group in groupby(enumerate(entries), lambda each: each[1][0]):
            if self.is_over():
                return
            envelope, body, body_bytes, origins, *_ = places[slot]
            received = ReceivedBlock(burst, envelope, body, body_bytes, origins, self._feeds)
            self._counters.has_more = entries[-1][0] - slot
            parts = []
            for number, (_, callback_number, rows, count, _) in group:
                batch_rows = memory.rows_of(burst, rows, count, received.block.count)
                batch = Batch(received.block, batch_rows, received, last[callback_number] == number)
                parts.append((callback_number, self._part(number, self._callbacks[callback_number], batch)))
            self._deliver_block([part for _, part in sorted(parts, key=itemgetter(0))], received)

    def _give_singles(self, burst: BlockBurst, entries: list[Any], places: list[Any]) -> None:
        """Deliver blocks of one message each on a short path, without unpacking unused fields."""
        counters, callbacks, feeds = self._counters, self._callbacks, self._feeds
        busy_since, delivered, batches = counters.words, 0, 0
        entries.sort()  # by block, then by order of registration
        last = {callback: number for number, (_, callback, *_) in enumerate(entries)}
        counters.has_more = final = len(entries) - 1
        for number, (slot, chosen, *_) in enumerate(entries):
            if self.is_over():
                break
            if number == final:
                counters.has_more = 0
            callback = callbacks[chosen]
            if not callback.active:
                counters.unwanted += 1
                continue
            *block, payload, payload_bytes, ts_event = places[slot]
            batch = SmallBatch((burst, *block, feeds), [ts_event], last[chosen] == number)
            batches += 1
            busy_since[_BUSY_SINCE] = time.monotonic_ns()
            try:
                callback.function(Message(ctypes.string_at(payload, payload_bytes), batch, 0))
            except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, even SystemExit
                if not self._raised(callback, error, batch, 0):
                    break
            else:
                delivered += 1
        busy_since[_BUSY_SINCE] = 0
        counters.delivered += delivered
        counters.batches += batches

    def _part(self, number: int, callback: Callback, batch: Batch) -> Part:
        """Return a callback's part of a block: all messages of its prefix, or those of its types."""
        if callback.message_types is not None:
            chosen = batch.of_type(callback.message_types)
            assert chosen.rows is not None
            self._counters.unwanted += len(batch) - len(chosen)
            entries = self.memory.entries
            entries[number]["rows"], entries[number]["count"] = chosen.rows.ctypes.data, len(chosen)
            batch = chosen
        return Part(number, callback, batch)

    def _deliver_block(self, parts: list[Part], received: ReceivedBlock) -> None:
        """Call the callbacks, in order of registration, with their parts of a block."""
        active = []
        for part in parts:
            if not len(part.batch):
                continue
            if part.callback.active:
                active.append(part)
            else:
                self._counters.unwanted += len(part.batch)
        in_turn = [part for part in active if part.callback.kind in self._in_turn and not part.callback.independent]
        if len(in_turn) < 2:
            in_turn = []
        given = {part.entry for part in in_turn}
        self._counters.busy_since_ns = time.monotonic_ns()
        if in_turn:
            self._give_in_turn(in_turn, received)
        for part in active:
            if self.is_over():
                break
            if part.entry not in given:
                self._counters.busy_since_ns = time.monotonic_ns()
                self._give(part)
        self._counters.busy_since_ns = 0

    def _give(self, part: Part) -> None:
        if not part.callback.active or not len(part.batch):
            self._counters.unwanted += len(part.batch)
        elif part.callback.kind == "compiled":
            self._call_compiled(part.entry, 0, len(part.batch))
        else:
            self._counters.delivered += part.callback.give(part.batch, self._raised, self.is_over)
            self._counters.batches += 1

    def _give_in_turn(self, parts: list[Part], received: ReceivedBlock) -> None:
        many = sum(len(part.batch) for part in parts)
        turns, counts = numpy.empty(many, numpy.int64), numpy.empty(many, numpy.int64)
        chosen = numpy.array([part.entry for part in parts], numpy.int64)
        found = list_turns(self.memory.entries.ctypes.data, chosen, received.block.count, turns, counts)
        takers = [Taker(part, received, self._raised, self._call_compiled) for part in parts]
        kinds = {part.callback.kind for part in parts}
        if kinds == {"message"} or (kinds <= _MESSAGES and 2 * found > many):
            give_message_by_message(takers, numpy.repeat(turns[:found], counts[:found]), self.is_over)
        else:
            give_in_turn(takers, turns[:found].tolist(), counts[:found].tolist(), self.is_over)
        self._counters.delivered += sum(taker.taken for taker in takers)
        self._counters.unwanted += sum(taker.unwanted for taker in takers)
        is_python = numpy.array([part.callback.kind != "compiled" for part in parts])
        self._counters.batches += int(is_python[turns[:found]].sum())

    def _call_compiled(self, entry: int, start: int, count: int) -> None:
        call_entry(self.memory.kept.address, entry, start, count)
        if self.state.raised:
            self.compiled_raised()

    def is_over(self) -> bool:
        """Return True if the rest must not be delivered."""
        return self.quit or self._slice_state.stopping == _TERMINATE

    def _raised(self, callback: Callback, error: BaseException, batch: Batch, place: int) -> bool:
        self._counters.failed += len(batch) if place < 0 else 1
        if isinstance(error, MisfitError):
            self._skip(callback, error)
            return True
        self._counters.errors += 1
        first = Message(b"", batch, max(place, 0))
        which = f"slice {first.slice_id}, topic {first.topic!r}, sequence {first.sequence}"
        if place < 0 and len(batch) > 1:
            which = f"{which} and {len(batch) - 1} messages more"
        return self.report(callback_error(f"callback {callback.name} for {callback.prefix!r}", error, which))

    def _skip(self, callback: Callback, error: MisfitError) -> None:
        """Count a message that does not match its schema, and log the first one of a callback."""
        self._counters.misfits += 1
        if not callback.is_misfit_logged:
            callback.is_misfit_logged = True
            log.warning(
                "callback %s for %r: %s: skipped, like all further ones; statistics().delivery.misfits counts them",
                callback.name,
                callback.prefix,
                error,
            )

    def compiled_raised(self) -> None:
        """Report each compiled callback that raised in the burst, in order."""
        scratch = self.memory.of_callbacks
        raised = scratch.raised[: self.state.raised].tolist()
        self.state.raised = 0
        for number in raised:
            times = int(scratch.raises[number])
            scratch.raises[number] = 0
            callback = self._callbacks[number]
            if not self.quit:
                self.report(
                    CallbackError(
                        f"compiled callback {callback.name} for {callback.prefix!r} raised an exception"
                        f"{f' {times} times' if times > 1 else ''} "
                        "(compiled code does not report which; usually an index out of range)"
                    )
                )
