"""Memory that only the compiled loop of a slice uses, and the addresses of everything that it uses."""

from __future__ import annotations

import numpy

from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.form.sampling import trace_mask
from blackbox.native.tables.name_table import HINT_WORDS
from blackbox.receive.callbacks.callbacks import IN_SLICE
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.clocks import ClockState
from blackbox.receive.deliver.conflation import NO_CONFLATION, Conflation
from blackbox.receive.deliver.slice_callbacks import SliceCallbacks
from blackbox.receive.slice_memory import (
    DOUBTED_AT,
    HELD_MESSAGE_BYTES,
    HELD_MESSAGES,
    KEY_AT,
    MESSAGES,
    SCRATCH_WORDS,
    SliceAt,
)
from blackbox.receive.slices.options import SliceSettings
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.receive.slow_subscriber import ACTIONS
from blackbox.transport.libzmq import close_messages, init_messages
from blackbox.transport.shared_memory.reader import ReaderAt
from blackbox.transport.udp.receiver import NO_LINES
from blackbox.transport.wakeup import Pipe


class LoopMemory:
    """Scratch messages, held blocks, clocks, and match sets of topics of one slice. Used by the slice thread."""

    def __init__(self, settings: SliceSettings, status: SliceStatus, bell: Pipe) -> None:
        """`bell` wakes the slice thread."""
        self._settings, self._status, self._bell = settings, status, bell
        max_topics = settings.feed.max_topics
        self._clock = ClockState()
        self._conflation = Conflation(max_topics) if settings.options.slow.action == "conflate" else None
        self._set_of_topic = numpy.zeros(max_topics, numpy.int32)
        self._hints = numpy.zeros(max_topics * HINT_WORDS, numpy.uint64)
        self._held = numpy.zeros(HELD_MESSAGES * HELD_MESSAGE_BYTES // 8, numpy.int64)
        self._scratch = numpy.zeros(SCRATCH_WORDS, numpy.int64)
        self._handler = settings.handler(status.slice_id)

    def open(
        self, sub: int, router: int, repair_socket: int, table: Table, callbacks: SliceCallbacks, shared: ReaderAt
    ) -> SliceAt:
        """Return the arguments of the compiled loop. `callbacks`: those of the slice thread, of `table`."""
        init_messages(self._scratch.ctypes.data + KEY_AT, MESSAGES)
        feed, options, status = self._settings.feed, self._settings.options, self._status
        return SliceAt(
            sub=sub,
            router=router,
            wake_fd=self._bell.reader,
            news_fd=self._settings.news.writer,
            state=status.state.address,
            scratch=self._scratch.ctypes.data,
            counters=status.counters.slice.address,
            worker_counters=status.counters.workers_address,
            workers=options.workers,
            topics=status.topics.at,
            set_of_topic=self._set_of_topic.ctypes.data,
            hints=self._hints.ctypes.data,
            order=status.order.at,
            clock=self._clock.address,
            held_messages=self._held.ctypes.data,
            slice_id=status.slice_id,
            key_rule=feed.key_rule,
            action=ACTIONS[options.slow.action],
            queue_blocks=options.queue_blocks,
            conflation=self._conflation.at if self._conflation else NO_CONFLATION,
            max_lag_ns=options.slow._limit_ns(feed),
            max_age_ns=options.slow._age_limit_ns,
            grace_ns=options.slow._grace_ns,
            handler=self._handler,
            own=callbacks.addresses(table),
            own_table=table.workers[IN_SLICE].at,
            ask=callbacks.ask,
            shared=shared,
            multicast=NO_LINES,
            repair_socket=repair_socket,
            stops_at_gaps=int(options.on_gap == "stop"),
            spin_ns=feed.slices[status.slice_id].spin_ns,
            relay_times=status.counters.traces.relays.address,
            trace_mask=trace_mask(feed.trace_every),
        )

    def close(self) -> None:
        """Close all messages."""
        close_messages(self._scratch.ctypes.data + KEY_AT, MESSAGES)
        for place in (*range(self._status.order.state.used + 1), DOUBTED_AT, DOUBTED_AT + 1):
            close_messages(self._held.ctypes.data + place * HELD_MESSAGE_BYTES + HEADER_BYTES, 1)
