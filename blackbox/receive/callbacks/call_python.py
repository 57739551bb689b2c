"""Bursts of blocks and the calls of callbacks: shared by workers and replays."""

from __future__ import annotations

import ctypes
import logging
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.arguments import name_of
from blackbox.block.batch.batch import Batch, Message, SmallBatch
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.block.form.format import LEAST_ROW_BYTES, MAX_BODY_BYTES
from blackbox.block.gap import Gap
from blackbox.block.position import is_restart
from blackbox.errors import CallbackError
from blackbox.native.compile.kept_arguments import Kept
from blackbox.native.memory.arrays import foreign_array
from blackbox.receive.callbacks.callback_turns import (
    Part,
    Taker,
    call_entry,
    give_in_turn,
    give_message_by_message,
    list_turns,
)
from blackbox.receive.callbacks.callbacks import Callback, CompiledCallback, Kind, MisfitError, callback_error
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.callbacks.slice_hooks import SliceHookCaller
from blackbox.receive.callbacks.timers import Timers
from blackbox.receive.deliver import worker_loop as collect
from blackbox.receive.deliver.select_rows import SLOT_BYTES
from blackbox.receive.deliver.worker_state import (
    ALL_ROWS,
    GAP_NOTICE_BYTES,
    NEVER,
    BatchEntry,
    BlockPlace,
    CallbackCall,
    GapNotice,
    WorkerAt,
    WorkerState,
    WorkerWithTable,
)
from blackbox.receive.state import SliceCounters, SliceState, WorkerCounters
from blackbox.transport.libzmq import close_messages

log = logging.getLogger("blackbox")

_FIRST_ROWS = 1 << 16
_LEAST_ENTRIES = 256
_BUSY_SINCE: Final = WorkerCounters.busy_since_ns.start
_DELIVERED: Final = WorkerCounters.delivered.start
_BATCHES: Final = WorkerCounters.batches.start
_CALLBACK: Final = BatchEntry.callback.start
_COUNT: Final = BatchEntry.count.start
_PLACE: Final = struct.Struct("<4q")
"""The fields of a `BlockPlace` that `ReceivedBlock` takes."""
_FEW: Final = [struct.Struct(f"<{collect.FEW_WORDS * count}q") for count in range(collect.MOST_FEW + 1)]
_MESSAGES: Final[frozenset[Kind]] = frozenset(("message", "book"))

_identity: NDArray[numpy.int32] = numpy.empty(0, numpy.int32)
_identity_lock = threading.Lock()


def _identity_rows() -> NDArray[numpy.int32]:
    """0, 1, 2 … as rows of compiled callbacks that get a whole block. Shared and read-only."""
    global _identity  # noqa: PLW0603 - created once, for the first compiled callback: 22 MB
    with _identity_lock:
        if not len(_identity):
            _identity = numpy.arange(MAX_BODY_BYTES // LEAST_ROW_BYTES, dtype=numpy.int32)
            _identity.flags.writeable = False
    return _identity


class BlockBurst:
    """Blocks taken from the queue together; every view of one of them keeps the burst alive.

    With `blocks` 0 it can be refilled. A burst kept by a callback frees its blocks with the last view; `alive` keeps
    foreign memory of bodies.
    """

    __slots__ = ("_memory", "address", "alive", "blocks")

    def __init__(self) -> None:
        self._memory = numpy.zeros(collect.BURST_BLOCKS * SLOT_BYTES // 8, numpy.int64)
        self.address = self._memory.ctypes.data
        self.alive: object = None
        self.blocks = 0

    def __del__(self) -> None:
        if self.blocks and not sys.is_finalizing():  # an interpreter that is ending cannot call compiled code
            close_messages(self.address, 2 * self.blocks)


class Delivery:
    """Delivers the blocks of a burst: compiled code fills it and lists batches, this calls Python callbacks.

    `on_error` gets exceptions of callbacks and returns whether to continue; if not, `quit` becomes True. `is_over` is
    True then, and at the owner's end.
    """

    def __init__(
        self,
        feeds: Sequence[BatchFeed],
        counters: WorkerCounters,
        on_error: Callable[[CallbackError], bool],
        is_terminated: Callable[[], bool],
        in_turn: frozenset[Kind] = _MESSAGES,
        slices: int = 1,
    ) -> None:
        """Deliver to the callbacks of one worker, whose batches of a block are of `slices` slices.

        `feeds`: the feed, or that of each slice. Callbacks of the kinds `in_turn` get each message of a block before
        any gets the next one, unless they are independent.
        """
        self._in_turn, self._slices = in_turn, slices
        self.state = WorkerState()
        self.state.tick_ns = NEVER
        self.scratch = numpy.zeros(collect.SCRATCH_WORDS, numpy.int64)
        self.burst = BlockBurst()
        self.quit = False
        self._feeds = tuple(feeds)
        self._counters = counters
        self._on_error = on_error
        self._is_terminated = is_terminated
        self._call = CallbackCall()
        self._set_rows(_FIRST_ROWS)
        self._block_places = numpy.zeros(collect.BURST_BLOCKS, BlockPlace.dtype)
        self._place_bytes = self._block_places.view(numpy.uint8).data
        self._few = numpy.zeros(collect.FEW_WORDS * collect.MOST_FEW, numpy.int64)

    def grow(self) -> None:
        """Grow the scratch to the rows that the current block needs."""
        self._set_rows(2 * self.state.rows_needed)

    def _set_rows(self, rows: int) -> None:
        self._rows = numpy.zeros(rows, numpy.int32)
        self.state.rows, self.state.max_rows = self._rows.ctypes.data, rows

    def addresses(
        self,
        table: WorkerTable,
        dealer: int,
        slice_state: SliceState,
        slice_counters: SliceCounters,
        lags: NDArray[numpy.int64],
        ages: NDArray[numpy.int64],
    ) -> WorkerAt:
        """Return the addresses for compiled code, with scratch for a table's callbacks."""
        self._table = table
        self._takes_messages = [callback.takes_messages for callback in table.callbacks]
        callbacks = len(table.callbacks) + 1
        self._entries = numpy.zeros(max(_LEAST_ENTRIES, 2 * self._slices * table.at.total), BatchEntry.dtype)
        self._entry_words = self._entries.view(numpy.int64).data
        self._counts = numpy.zeros(callbacks, numpy.int64)
        self._places = numpy.zeros(callbacks, numpy.int64)
        self._touched = numpy.zeros(callbacks, numpy.int32)
        self._callbacks_raised = numpy.zeros(callbacks, numpy.int32)
        self._raises = numpy.zeros(callbacks, numpy.int64)
        self.state.burst = self.burst.address
        at = WorkerAt(
            dealer,
            slice_state.address,
            self._counters.address,
            lags.ctypes.data,
            ages.ctypes.data,
            self.state.address,
            self.scratch.ctypes.data,
            self._entries.ctypes.data,
            len(self._entries),
            _identity_rows().ctypes.data if any(each.kind == "compiled" for each in table.callbacks) else 0,
            self._counts.ctypes.data,
            self._places.ctypes.data,
            self._touched.ctypes.data,
            self._callbacks_raised.ctypes.data,
            self._raises.ctypes.data,
            self._call.address,
            self._few.ctypes.data,
            self._block_places.ctypes.data,
            slice_counters.address,
        )
        self.kept = Kept(WorkerWithTable(at, table.at))
        return at

    def close(self) -> None:
        """Free the rest of the burst. No compiled code may use it any more."""
        close_messages(self.burst.address, 2 * self.state.blocks)
        self.state.blocks = 0

    def enter_epoch(self, worker: int, slice_id: int, hook_caller: SliceHookCaller) -> None:
        """Continue with another epoch; `worker`'s callbacks are reset."""
        epoch = self.state.next_epoch
        try:
            hook_caller.enter(worker, epoch, self.is_over)
        except CallbackError as failure:
            self.quit = not self._on_error(failure)
        if before := int(self.state.epoch):
            for callback in self._table.gap_hooks.callbacks:
                callback.reset(slice_id)
                if is_restart(before, int(epoch)):
                    callback.restart(slice_id)
        self.state.epoch = epoch

    def take_notice(self, worker: int, slice_id: int, hook_caller: SliceHookCaller) -> None:
        """Call the hooks of a notice: a gap, or the switch to live."""
        notice = GapNotice(numpy.frombuffer(ctypes.string_at(self.state.notice, GAP_NOTICE_BYTES), GapNotice.dtype))
        if notice.count == 0:
            self._go_live(worker, notice.sequence, hook_caller)
        else:
            self._tell_of_gap(slice_id, notice)
        self._counters.busy_since_ns = 0
        self.state.notice = 0

    def _go_live(self, worker: int, turn: int, hook_caller: SliceHookCaller) -> None:
        try:
            hook_caller.go_live(worker, turn, self.is_over)
        except CallbackError as failure:
            self._counters.errors += 1
            self.quit = not self._on_error(failure)

    def _tell_of_gap(self, slice_id: int, notice: GapNotice) -> None:
        key = ctypes.string_at(self.state.notice + GAP_NOTICE_BYTES, notice.key_bytes)
        gap = Gap(slice_id, notice.epoch, key, notice.sequence, notice.count, notice.ts_out, bool(notice.is_bound))
        for function in self._table.gap_hooks.told(key):
            if self.is_over():
                break
            self._counters.busy_since_ns = time.monotonic_ns()
            try:
                function(gap)
            except BaseException as error:  # noqa: BLE001
                self._counters.errors += 1
                self.quit = not self._on_error(
                    callback_error(f"{name_of(function)}, called for a gap,", error, str(gap))
                )

    def begin_timers(self, timers: Timers) -> None:
        """Start timers."""
        timers.begin(time.time_ns())
        self.state.tick_ns, self.state.tick_within_ns = timers.next_ns, timers.least_ns

    def call_timers(self, timers: Timers) -> None:
        """Call due timers once each; of several missed times, only for the last."""
        now_ns = time.time_ns()
        timers.skip_to(now_ns)
        self._counters.busy_since_ns = time.monotonic_ns()
        self.quit = not timers.advance(now_ns)
        self._counters.busy_since_ns = 0
        self.state.tick_ns = timers.next_ns

    def deliver(self) -> None:
        """Deliver the burst's batches to their callbacks."""
        burst = self.burst
        unshared = sys.getrefcount(burst)  # the count depends on the interpreter
        try:
            self._run_callbacks(burst)
        finally:
            if sys.getrefcount(burst) > unshared:
                self._leave(burst)

    def deliver_few(self) -> None:
        """Deliver FEW messages; compiled code has already marked the callback as busy."""
        number = self._entry_words[_CALLBACK]
        if not self._takes_messages[number]:
            self._counters.words[_BUSY_SINCE] = 0
            self.deliver()
            return
        burst = self.burst
        unshared = sys.getrefcount(burst)
        try:
            self._give_few(burst, self._table.callbacks[number])
        finally:
            if sys.getrefcount(burst) > unshared:
                self._leave(burst)

    def _leave(self, burst: BlockBurst) -> None:
        """Leave a burst to the callback that keeps views of it, and continue with a new one."""
        burst.blocks = self.state.blocks
        self.state.blocks = 0
        self.burst = BlockBurst()
        self.burst.alive = burst.alive
        self.state.burst = self.burst.address

    def _give_few(self, burst: BlockBurst, callback: Callback) -> None:
        words, count = self._counters.words, self._entry_words[_COUNT]
        if callback.active:
            values = _FEW[count].unpack_from(self._few.data)
            how = burst, *_PLACE.unpack_from(self._place_bytes), self._feeds
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
        entries = self._entries[: self.state.entries].tolist()
        if not entries:  # a compiled callback has raised
            return
        places = self._block_places[: self.state.blocks].tolist()
        if self.state.singles and all(self._takes_messages[callback] for _, callback, *_ in entries):
            self._give_singles(burst, entries, places)
            return
        if len(entries) == 1 and not self.is_over():  # one block for one callback: a short path that halves the time
            [(slot, callback_number, rows, count, _)] = entries
            received = self._open(burst, *places[slot][:4])
            batch = Batch(received.block, self._rows_of(burst, rows, count, received.block.count), received)
            part = self._part(0, self._table.callbacks[callback_number], batch)
            self._counters.busy_since_ns = time.monotonic_ns()
            self._give(part)
            self._counters.busy_since_ns = 0
            return
        last = {callback: number for number, (_, callback, *_) in enumerate(entries)}
        for slot, group in groupby(enumerate(entries), lambda each: each[1][0]):
            if self.is_over():
                return
            received = self._open(burst, *places[slot][:4])
            self._counters.has_more = entries[-1][0] - slot
            parts = []
            for number, (_, callback_number, rows, count, _) in group:
                batch_rows = self._rows_of(burst, rows, count, received.block.count)
                batch = Batch(received.block, batch_rows, received, last[callback_number] == number)
                parts.append((callback_number, self._part(number, self._table.callbacks[callback_number], batch)))
            self._deliver_block([part for _, part in sorted(parts, key=itemgetter(0))], received)

    def _give_singles(self, burst: BlockBurst, entries: list[Any], places: list[Any]) -> None:
        """Deliver blocks of one message each on a short path, without unpacking unused fields."""
        counters, callbacks, feeds = self._counters, self._table.callbacks, self._feeds
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
            self._entries[number]["rows"], self._entries[number]["count"] = chosen.rows.ctypes.data, len(chosen)
            batch = chosen
        return Part(number, callback, batch)

    def _open(self, burst: BlockBurst, envelope: int, body: int, body_bytes: int, origins: int) -> ReceivedBlock:
        return ReceivedBlock(burst, envelope, body, body_bytes, origins, self._feeds)

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
        found = list_turns(self._entries.ctypes.data, chosen, received.block.count, turns, counts)
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
        call_entry(self.kept.address, entry, start, count)
        if self.state.raised:
            self.compiled_raised()

    def is_over(self) -> bool:
        """Return True if the rest must not be delivered."""
        return self.quit or self._is_terminated()

    def _rows_of(self, burst: BlockBurst, address: int, rows: int, count: int) -> NDArray[numpy.int32] | None:
        """Return a batch's rows: None for all; a view of the burst's memory, or a copy from this worker's scratch."""
        if address == ALL_ROWS:
            return None if rows == count else numpy.arange(count - rows, count, dtype=numpy.int32)
        view = foreign_array(burst, address, rows, "<i4")
        start = self._rows.ctypes.data
        return view.copy() if start <= address < start + self._rows.nbytes else view

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
        failure = callback_error(f"callback {callback.name} for {callback.prefix!r}", error, which)
        self.quit = not self._on_error(failure)
        return not self.quit

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
        raised = self._callbacks_raised[: self.state.raised].tolist()
        self.state.raised = 0
        for number in raised:
            times = int(self._raises[number])
            self._raises[number] = 0
            callback = self._table.callbacks[number]
            assert isinstance(callback, CompiledCallback)
            if not self.quit:
                self.quit = not self._on_error(
                    CallbackError(
                        f"compiled callback {callback.name} for {callback.prefix!r} raised an exception"
                        f"{f' {times} times' if times > 1 else ''} "
                        "(compiled code does not report which; usually an index out of range)"
                    )
                )
