"""Filters of one slice at its publishers, and the control blocks that answer them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from ctypes import string_at
from itertools import chain

import zmq

from blackbox.block.form.block import Block
from blackbox.block.form.format import (
    CONFIRM_KEY,
    FLAG_END,
    FLAG_LINE_B,
    FLAG_REFUSED,
    HEADER_BYTES,
    HEARTBEAT_KEY,
    LOST_BYTES,
    LOST_KEY,
    SHARED_KEY,
    WANT_KEY,
    Header,
    read_header,
)
from blackbox.native.tables.prefix_trie import build_trie
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.deliver.arbitration import begin_epoch, drop_doubted, enter_epoch, look_at_end, take_ends
from blackbox.receive.order.epochs import EpochVerdict
from blackbox.receive.order.order import change_filters, confirm
from blackbox.receive.publishers.confirmation import Confirmation
from blackbox.receive.publishers.lines import Lines
from blackbox.receive.publishers.refusal import Refusal
from blackbox.receive.slice_memory import BODY_AT, HEAD_AT, KEY_AT, SliceAt
from blackbox.receive.slices.options import SliceSettings
from blackbox.receive.slices.receive_loop import count_doubted, hand_control
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.transport.libzmq import descriptor_of, message_bytes
from blackbox.transport.security.curve import ClientKeys
from blackbox.transport.shared_memory.attached import SharedSource
from blackbox.transport.shared_memory.reader import ReaderAt
from blackbox.transport.udp.receiver import LinesAt
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")


class Subscription:
    """Requests of a slice to its publishers, and their answers on each line. Used by the slice thread."""

    def __init__(self, settings: SliceSettings, status: SliceStatus, bell: Pipe) -> None:
        """`bell` is rung by writers of shared memory."""
        self._settings, self._status, self._state = settings, status, status.state
        self._confirmed_keys = build_trie([])
        """Keys of the last confirmed filters, or of those that began at a position."""
        self._filters: frozenset[bytes] = frozenset()
        self._wanted: frozenset[bytes] = frozenset()
        self._covered: set[bytes] = set()
        """Wanted prefixes to withdraw once the prefixes that cover them are confirmed: these may be refused."""
        self._said = b""
        """Last acknowledgement."""
        self._lost = b""
        """Last report of lost messages."""
        self._was_confirmed = False
        self.refusals: deque[Refusal] = deque()
        """Refusals that the supervisor has not yet taken."""
        memory = status.feed.slices[status.slice_id].shared_memory
        self._memory = SharedSource(memory, bell, f"slice {status.slice_id}")
        self._lines = Lines(status)

    def connect(self, sub: zmq.Socket[bytes], keys: Sequence[ClientKeys | None]) -> None:
        """Connect to every line with its keys. Raises EndpointError naming a line that cannot be connected."""
        self._sub = sub
        self._confirmation = Confirmation(sub, self._status)
        self._lines.connect(sub, keys)
        if self._memory.is_asked and self._memory.attach():
            self._state.is_shared = 1

    @property
    def shared(self) -> ReaderAt:
        """Reader of shared memory."""
        return self._memory.at

    @property
    def multicast(self) -> LinesAt:
        """The multicast lines."""
        return self._lines.multicast.at

    def _decide(self) -> None:
        """Attach to the shared memory of the publisher just heard; with no tries left, subscribe on sockets."""
        if self._memory.decide():
            self._state.is_shared = 1
        if not self._memory.is_asked:
            self._state.is_shared = 0
            for prefix in self._filters:
                self._sub.subscribe(prefix)
                self._sub.unsubscribe(SHARED_KEY + prefix)
        self._ask_to_confirm()

    def look_again(self) -> None:
        """Detach from a publisher that has ended once all its blocks are taken; reconnect silent lines if it is time.

        With the next publisher it is decided again whether to use shared memory.
        """
        if self._memory.leave_gone():
            self._ask_to_confirm()
        if time.monotonic_ns() > self._state.look_again_at_ns:
            self._lines.reconnect_silent()

    def close(self) -> None:
        """Detach from shared memory, and leave multicast groups."""
        self._memory.close()
        self._lines.multicast.close()

    def ask(self, table: Table) -> None:
        """Subscribe to what a table needs, and to no more; then request a confirmation."""
        # Data that comes another way is not sent on the socket too.
        kind = SHARED_KEY if self._memory.is_asked or self.multicast.lines else b""
        self._lines.multicast.need(table.upstream)
        for prefix in table.wanted - self._wanted - self._covered:
            self._sub.subscribe(WANT_KEY + prefix)
        unwanted = (self._covered | self._wanted) - table.wanted
        self._covered = {prefix for prefix in unwanted if prefix.startswith(tuple(table.wanted))}
        self._withdraw_wanted(unwanted - self._covered)
        self._wanted = table.wanted
        if table.upstream != self._filters:
            order = self._status.order
            change_filters(order.at, table.keys, int(self._status.is_full(table.upstream)))
            if order.state.is_strict:
                self._confirmed_keys = table.keys
        for prefix in table.upstream - self._filters:
            self._sub.subscribe(kind + prefix)
        for prefix in self._filters - table.upstream:
            self._sub.unsubscribe(kind + prefix)
        self._filters = table.upstream
        self._table = table
        self._state.subscriptions = len(table.upstream)
        self._ask_to_confirm()

    def _withdraw_wanted(self, prefixes: set[bytes]) -> None:
        for prefix in prefixes:
            self._sub.unsubscribe(WANT_KEY + prefix)

    def _ask_to_confirm(self) -> None:
        self._confirmation.ask(self._table.version)

    def acknowledge(self, said: bytes) -> None:
        """Report to the publishers how far their messages are recorded, replacing the previous report."""
        self._sub.subscribe(said)
        if self._said:
            self._sub.unsubscribe(self._said)
        self._said = said

    def report_lost(self, count: int) -> None:
        """Report to the publishers how many messages were lost, replacing the previous report."""
        lost = LOST_KEY + count.to_bytes(LOST_BYTES, "little")
        self._sub.subscribe(lost)
        if self._lost:
            self._sub.unsubscribe(self._lost)
        self._lost = lost

    def read_control(self, at: SliceAt) -> int:
        """Process a confirmation, or a heartbeat that changes something; return why to end, or 0."""
        key = string_at(*message_bytes(at.scratch + KEY_AT))
        is_ours = key == self._confirmation.key
        if key != HEARTBEAT_KEY and not is_ours:
            return 0
        header = read_header(at.scratch + HEAD_AT)
        if self._lines.is_multicast(self._line_of(header.flags)):
            return 0 if header.flags & FLAG_REFUSED else self._take_control(at, header, False)
        return 0 if self._note_refusal(at, header.flags) else self._take_control(at, header, is_ours)

    def _line_of(self, flags: int) -> int:
        return 1 if flags & FLAG_LINE_B and len(self._status.lines) > 1 else 0

    def _take_control(self, at: SliceAt, header: Header, is_ours: bool) -> int:
        """Process a confirmation or heartbeat without refusals; return the same as `read_control`."""
        confirmation = self._confirmation
        if self._memory.is_open and not header.flags & FLAG_END:
            self._decide()
            is_ours = False
        line, epoch = self._line_of(header.flags), header.epoch
        # The descriptor is not taken from the body, which may be an aligned copy.
        self._lines.note_heard(line, int(descriptor_of(at.scratch + KEY_AT)))
        if not self._lines.has_data(line) and self._status.order.epochs.epoch not in (0, epoch):
            return 0  # the lines with data enter an epoch: what they still bring of the present one must not be stale
        entered = enter_epoch(at, epoch, line, int(is_ours), time.monotonic_ns())
        if entered in (EpochVerdict.DOUBTED, EpochVerdict.REFUTED, EpochVerdict.STALE):
            drop_doubted(at, line)
        if entered in (EpochVerdict.DOUBTED, EpochVerdict.STALE):
            return 0
        if entered == EpochVerdict.NEW:
            log.info("slice %d: publisher epoch %d began", self._status.slice_id, epoch)
            result = int(begin_epoch(at, self._table.at, self._table.topics))
            if result:
                return result
        is_anew = is_ours and (self._lines.is_anew(line, epoch) or confirmation.has(line))
        # The epoch began, or came back, with a block or heartbeat, not with our answer: it is unconfirmed.
        began = self._state.confirmed_lines != confirmation.lines or (entered == EpochVerdict.NEW and not is_ours)
        is_unconfirmed = bool(confirmation.lines) and began
        is_fresh = self._lines.enter(line, epoch)
        # All that a multicast line has to confirm is that it is heard.
        is_answer = is_ours or (self._lines.is_multicast(line) and not confirmation.has(line))
        result = self._take_ends(at, header, line, is_answer and not is_anew, not is_unconfirmed)
        if is_anew or is_unconfirmed:
            # libzmq sends filters again in any order, the nonce first: this answer proves nothing.
            self._ask_to_confirm()
        elif is_answer:
            self._note_confirmed(epoch, line)
        elif confirmation.note_heartbeat(line):
            self._ask_to_confirm()
        self._note_end(epoch, line, header.flags & FLAG_END != 0, is_ours, is_fresh)
        return result

    def _note_confirmed(self, epoch: int, line: int) -> None:
        """Note that a line's publisher has confirmed the filters."""
        has_data = self._lines.has_data(line)
        if has_data and not self._was_confirmed:
            self._state.acts_from_ns = time.monotonic_ns() + self._settings.options.slow._start_grace_ns
            self._status.note_first_position()  # before a starting subscriber is notified
        self._was_confirmed |= has_data
        self._confirmation.accept(epoch, line, is_counted=not self._lines.is_multicast(line))
        self._withdraw_wanted(self._covered)
        self._covered.clear()
        self._state.confirmed_lines = self._confirmation.lines
        self._settings.news.poke()

    def _take_ends(self, at: SliceAt, header: Header, line: int, is_answer: bool, is_sure: bool) -> int:
        """Store the ends in a control block; return the same as `read_control`.

        `is_answer`: it confirms the filters, unless it may answer an earlier request (not `is_sure`).
        """
        now_ns, tick_ns = time.time_ns(), time.monotonic_ns()
        has_data = self._lines.has_data(line)
        in_force = int(is_answer or self._confirmation.has(line))
        doubted = count_doubted(at)
        if not take_ends(at, self._table.keys, line, int(in_force and has_data), tick_ns):
            return 0
        if is_answer and is_sure and has_data:
            confirm(self._status.order.at, self._confirmed_keys, header.sequence)
            self._confirmed_keys = self._table.keys
        hand_control(at, now_ns, int(is_answer), doubted)
        return int(look_at_end(at, self._table.at, self._table.topics, tick_ns)) if in_force else 0

    def _note_end(self, epoch: int, line: int, has_ended: bool, is_ours: bool, is_fresh: bool) -> None:
        """Note whether a line has ended. A late answer may follow an end; a heartbeat disproves it."""
        goes_on = not has_ended and not is_ours
        if goes_on and self._state.finished_lines >> line & 1:
            self._ask_to_confirm()  # the end was false, and has withdrawn our acceptance
        if is_fresh or goes_on:
            self._state.finished_lines &= ~(1 << line)
        if has_ended:
            self._state.finished_lines |= 1 << line
            self._state.finished_ns = time.monotonic_ns()
            self._confirmation.withdraw(epoch, line)
            self._settings.news.poke()

    def _note_refusal(self, at: SliceAt, flags: int) -> bool:
        """Note refused filters in an answer, if any; return True if there are: then the answer confirms nothing.

        Raises RightsError if callbacks cannot end alone, or none needs a refused filter.
        """
        if not flags & FLAG_REFUSED:
            return False
        header, body = string_at(at.scratch + HEAD_AT, HEADER_BYTES), string_at(*message_bytes(at.scratch + BODY_AT))
        refused = Block.decode(CONFIRM_KEY, header, body).ends()
        feed, settings = self._status.feed, self._settings
        refusal = Refusal(
            f"feed {feed.name!r} slice {self._status.slice_id}: {self._lines.addresses[self._line_of(flags)]}",
            {prefix: end.sequence for prefix, end in refused.items()},
        )
        callbacks = self._table.workers[0].callbacks
        error = refusal.error(feed, chain.from_iterable(each.starts for each in callbacks))
        if not (settings.refuses_alone and (self._was_confirmed or settings.has_started)):
            raise error
        if not any(self._asks_for(each) for each in refused):
            if self._covered:  # perhaps these were: without them the next answer confirms
                self._withdraw_wanted(self._covered)
                self._covered.clear()
                self._ask_to_confirm()
            return True  # heartbeats let it ask again
        if all(refusal.error_of(feed, each.starts) is None for each in callbacks):
            raise error  # too many prefixes: the filter is for all topics
        self.refusals.append(refusal)
        settings.news.poke()
        return True

    def _asks_for(self, key: bytes) -> bool:
        if key.startswith(WANT_KEY):
            return key.removeprefix(WANT_KEY) in self._wanted
        return key.removeprefix(SHARED_KEY) in self._filters
