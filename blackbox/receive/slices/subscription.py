"""Filters of one slice at its publishers: requested, confirmed by each line, and requested again if necessary.

A publisher confirms by answering a nonce that is subscribed to after the filters: see the wire format.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import string_at
from itertools import chain

import zmq

from blackbox.block.form.block import Block
from blackbox.block.form.format import (
    ACCEPT_KEY,
    CONFIRM_KEY,
    FLAG_END,
    FLAG_LINE_B,
    FLAG_REFUSED,
    HEADER_BYTES,
    HEARTBEAT_KEY,
    MAX_BODY_BYTES,
    NONCE_BYTES,
    SHARED_KEY,
    WANT_KEY,
    Header,
    read_header,
)
from blackbox.errors import EndpointError
from blackbox.feed.feed import Feed
from blackbox.native.tables.prefix_trie import build_trie
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.deliver.arbitration import begin_epoch, drop_doubted, enter_epoch, look_at_end, take_ends
from blackbox.receive.order.epochs import DOUBTED, NEW, REFUTED, STALE
from blackbox.receive.order.order import change_filters, confirm
from blackbox.receive.order.state import Order
from blackbox.receive.slice_memory import BODY_AT, HEAD_AT, KEY_AT, SliceAt
from blackbox.receive.slices.receive_loop import count_doubted, hand_control
from blackbox.receive.slices.refusal import Refusal
from blackbox.receive.state import SliceState
from blackbox.transport.context import MAX_SUBSCRIPTIONS, allow_ipv6
from blackbox.transport.inproc import bound_number, is_bound_anew, is_inproc
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.libzmq import descriptor_of, message_bytes
from blackbox.transport.security.curve import ClientKeys, use_keys
from blackbox.transport.shared_memory.reader import ReaderAt
from blackbox.transport.shared_memory.source import SharedSource
from blackbox.transport.tcp_info import Connection, connection_to
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_PATIENT_BEATS = 3
"""Least number of heartbeats before an unanswered confirmation is requested again."""
MOST_PATIENT_S = 60.0
"""Longest time before it is, unless those heartbeats take longer."""
_UNHEARD_NS = 30_000_000_000
"""Time after which a line without any message is reconnected."""


def open_sub(
    context: zmq.Context[zmq.Socket[bytes]], hwm_blocks: int, kind: zmq.SocketType = zmq.SUB
) -> zmq.Socket[bytes]:
    """Return a SUB socket, or an XSUB socket, not yet connected."""
    sub = context.socket(kind)
    sub.rcvhwm = hwm_blocks
    sub.sndhwm = MAX_SUBSCRIPTIONS
    sub.maxmsgsize = MAX_BODY_BYTES
    sub.linger = 0
    sub.reconnect_ivl = 50
    sub.reconnect_ivl_max = 1000
    keep_alive(sub)
    return sub


def address_from(interface: str, endpoint: str) -> str:
    """Return the address to connect to through an interface; empty: the system chooses it."""
    host = f"[{interface}]" if ":" in interface else interface
    return endpoint.replace("tcp://", f"tcp://{host}:0;") if interface else endpoint


class Subscription:
    """Requests of a slice to its publishers, and their answers on each line.

    Used by the slice thread, which owns the SUB socket. `news` is poked when a line is confirmed or has ended.
    """

    def __init__(
        self,
        feed: Feed,
        slice_id: int,
        state: SliceState,
        order: Order,
        news: Pipe,
        bell: Pipe,
        start_grace_ns: int,
    ) -> None:
        """`bell` is rung by writers of shared memory. `start_grace_ns`: of the slow-subscriber policy."""
        self._start_grace_ns = start_grace_ns
        self._feed, self._slice_id = feed, slice_id
        self._feed_slice = feed.slices[slice_id]
        self._state, self._order, self._news = state, order, news
        self._confirmed_keys = build_trie([])
        """Keys of the last confirmed filters, or of those that began at a position."""
        self._filters: frozenset[bytes] = frozenset()
        self._wanted: frozenset[bytes] = frozenset()
        self._covered: set[bytes] = set()
        """Wanted prefixes to withdraw once the prefixes that cover them are confirmed: these may be refused."""
        self._nonce = b""
        self._accepted: list[bytes] = []
        self._said = b""
        self._confirmed = 0
        """A bit for each line."""
        self._was_confirmed = False
        self.note_first: Callable[[], None] = lambda: None
        """Called at the first confirmation by a publisher."""
        self.refuses_alone = False
        """True if refused filters, once some were confirmed, end only the callbacks that need them."""
        self.began_late = False
        """True if no earlier confirmation is needed: the subscriber had already started."""
        self.refusals: deque[Refusal] = deque()
        """Refusals that the supervisor has not yet taken."""
        self._epoch_of_line: dict[int, int] = {}
        self._heard_on: dict[int, Connection | None] = {}
        """For each line, the connection of its last message."""
        self._silent: set[int] = set()
        self._beats_without_answer = 0
        self._patient_beats = _PATIENT_BEATS
        """Heartbeats that may be queued ahead of an answer."""
        self._memory = SharedSource(self._feed_slice.shared_memory, bell, f"slice {slice_id}")
        self._reconnected: set[int] = set()
        """Reconnected lines that have not answered since."""
        self._connected_ns = [time.monotonic_ns()] * len(self._feed_slice.lines)
        """Time when each line was last connected."""
        self._bound_number: dict[int, int] = {}
        """For each inproc line, the number of the bind that it is connected to."""

    def connect(self, sub: zmq.Socket[bytes], keys: Sequence[ClientKeys | None]) -> None:
        """Connect to every line with its keys, and subscribe to heartbeats.

        Raises EndpointError naming a line that cannot be connected.
        """
        self._sub, self._keys = sub, keys
        for line, endpoint in enumerate(self._feed_slice.lines):
            address = self._address(endpoint)
            allow_ipv6(sub, address)
            use_keys(sub, keys[line])
            self._bound_number[line] = bound_number(address)
            try:
                sub.connect(address)
            except zmq.ZMQError as error:
                raise EndpointError(
                    error.errno,
                    f"feed {self._feed.name!r} slice {self._slice_id}: cannot connect to {address}: {error.strerror}",
                ) from error
        sub.subscribe(HEARTBEAT_KEY)
        if self._memory.is_asked and self._memory.attach():
            self._state.is_shared = 1

    @property
    def shared(self) -> ReaderAt:
        """Reader of shared memory."""
        return self._memory.at

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

    def look_at_shared(self) -> None:
        """Detach from a publisher that has ended once all its blocks are taken; decide again with the next one."""
        if self._memory.leave_gone():
            self._ask_to_confirm()

    def close(self) -> None:
        """Detach from shared memory."""
        self._memory.close()

    def _address(self, endpoint: str) -> str:
        return address_from(self._feed_slice.interface, endpoint)

    def ask(self, table: Table) -> None:
        """Subscribe to what a table needs, and to no more; then request a confirmation."""
        kind = SHARED_KEY if self._memory.is_asked else b""
        for prefix in table.wanted - self._wanted - self._covered:
            self._sub.subscribe(WANT_KEY + prefix)
        unwanted = (self._covered | self._wanted) - table.wanted
        self._covered = {prefix for prefix in unwanted if prefix.startswith(tuple(table.wanted))}
        self._withdraw_wanted(unwanted - self._covered)
        self._wanted = table.wanted
        if table.upstream != self._filters:
            change_filters(self._order.at, table.keys, int(not self._feed.key_rule or b"" in table.upstream))
            if self._order.state.is_strict:
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

    def reconnect_silent_lines(self) -> None:
        """Reconnect lines that are silent for some heartbeats, have nothing queued, and have lost their connection.

        libzmq reconnects, except after what it considers an attack, such as a frame above `maxmsgsize`. An open
        connection to a host that answers is kept: a publisher that waits for a slow subscriber is silent, and a
        reconnect would lose what it sends meanwhile.
        """
        now_ns = time.monotonic_ns()
        self._state.look_again_at_ns = now_ns + self._order.at.line_dead_ns
        if int(self._sub.get(zmq.EVENTS)) & zmq.POLLIN:
            return
        for line in range(len(self._feed_slice.lines)):
            if line not in self._epoch_of_line:
                # Never heard: it may not run yet. libzmq may have given up, so reconnect, but rarely.
                if now_ns - self._connected_ns[line] >= _UNHEARD_NS:
                    self._connected_ns[line] = now_ns
                    self._connect_again(line)
                continue
            if not self._order.is_dead(line, now_ns):
                self._silent.discard(line)
                continue
            address = self._address(self._feed_slice.lines[line])
            finished = bool(self._state.finished_lines >> line & 1)
            if not finished and line not in self._silent:
                log.warning("slice %d: the publisher at %s is silent but has not closed", self._slice_id, address)
                self._silent.add(line)
            if is_inproc(address):
                is_gone = is_bound_anew(address, self._bound_number[line])
            else:
                is_gone = not (finished or self._is_connected(line))
            if is_gone:
                self._connect_again(line)

    def _is_connected(self, line: int) -> bool:
        """Return True if the connection of the line's last message is open and its host answers."""
        connection = self._heard_on.get(line)
        return connection is not None and connection.is_answered()

    def _connect_again(self, line: int) -> None:
        address = self._address(self._feed_slice.lines[line])
        with suppress(zmq.ZMQError):
            self._sub.disconnect(address)
        use_keys(self._sub, self._keys[line])
        self._bound_number[line] = bound_number(address)
        self._sub.connect(address)
        self._reconnected.add(line)
        self._state.confirmed_lines &= ~(
            1 << line
        )  # a publisher that continues in the same epoch may have lost our filters

    def _ask_to_confirm(self) -> None:
        """Subscribe to a new nonce: a publisher that answers it has applied all earlier filters."""
        if self._nonce:
            self._sub.unsubscribe(CONFIRM_KEY + self._nonce)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._beats_without_answer = 0
        self._confirmed = 0
        self._state.confirmed_lines = 0
        self._state.confirmed_version = self._table.version
        self._sub.subscribe(CONFIRM_KEY + self._nonce)

    def acknowledge(self, said: bytes) -> None:
        """Report to the publishers how far their messages are recorded, replacing the previous report."""
        self._sub.subscribe(said)
        if self._said:
            self._sub.unsubscribe(self._said)
        self._said = said

    def _accept(self, epoch: int, line: int) -> None:
        """Accept a publisher's answer: from now on it counts this subscriber, and waits for it when it closes."""
        accepted = ACCEPT_KEY + self._nonce + _of_line(epoch, line)
        self._sub.subscribe(accepted)
        self._accepted.append(accepted)
        self._withdraw(bytes([line]), accepted)  # also for a publisher that was killed

    def _withdraw(self, of_line: bytes, but: bytes = b"") -> None:
        for accepted in [a for a in self._accepted if a.endswith(of_line) and a != but]:
            self._accepted.remove(accepted)
            self._sub.unsubscribe(accepted)

    def read_control(self, at: SliceAt) -> int:
        """Process a confirmation, or a heartbeat that changes something; return why to end, or 0."""
        scratch = at.scratch
        key = string_at(*message_bytes(scratch + KEY_AT))
        ours = key == CONFIRM_KEY + self._nonce
        if key != HEARTBEAT_KEY and not ours:
            return 0
        header = read_header(scratch + HEAD_AT)
        return 0 if self._note_refusal(at, header.flags) else self._take_control(at, header, ours)

    def _take_control(self, at: SliceAt, header: Header, ours: bool) -> int:
        """Process a confirmation or heartbeat without refusals; return the same as `read_control`."""
        scratch = at.scratch
        if self._memory.is_open and not header.flags & FLAG_END:
            self._decide()
            ours = False
        line = 1 if header.flags & FLAG_LINE_B and len(self._feed_slice.lines) > 1 else 0
        fd = int(descriptor_of(scratch + KEY_AT))  # not of the body, which may be an aligned copy
        self._heard_on[line] = connection_to(self._feed_slice.lines[line], fd)
        epoch = header.epoch
        tick_ns = time.monotonic_ns()
        entered = enter_epoch(at, epoch, line, int(ours), tick_ns)
        if entered in (DOUBTED, REFUTED, STALE):
            drop_doubted(at, line)
        if entered in (DOUBTED, STALE):
            return 0
        if entered == NEW:
            log.info("slice %d: publisher epoch %d began", self._slice_id, header.epoch)
            result = int(begin_epoch(at, self._table.at, self._table.topics))
            if result:
                return result
        reconnected = ours and self._is_anew(line, epoch)
        # The epoch began, or came back, with a block or heartbeat, not with our answer: it is unconfirmed.
        began = self._state.confirmed_lines != self._confirmed or (entered == NEW and not ours)
        unconfirmed = bool(self._confirmed) and began
        fresh = self._epoch_of_line.get(line) != epoch
        self._epoch_of_line[line] = epoch
        result = self._take_ends(at, header, line, ours and not reconnected, not unconfirmed)
        if reconnected or unconfirmed:
            # libzmq sends filters again in any order, the nonce first: this answer proves nothing.
            self._ask_to_confirm()
        elif ours:
            self._patient_beats = max(_PATIENT_BEATS, 2 * self._beats_without_answer)
            self._confirmed |= 1 << line
            if not self._was_confirmed:
                self._state.acts_from_ns = time.monotonic_ns() + self._start_grace_ns
                self.note_first()  # before a starting subscriber is notified
            self._was_confirmed = True
            self._accept(epoch, line)
            self._withdraw_wanted(self._covered)
            self._covered.clear()
            self._state.confirmed_lines = self._confirmed
            self._news.poke()
        elif not self._confirmed >> line & 1:
            # If its queue was full, the publisher's libzmq has silently dropped the answer.
            self._beats_without_answer += 1
            if self._beats_without_answer >= self._patient_beats:
                # It may also be queued: wait longer for the next one.
                most = max(_PATIENT_BEATS, int(MOST_PATIENT_S * 1e9) // self._feed.heartbeat_ns)
                self._patient_beats = min(2 * self._patient_beats, most)
                self._ask_to_confirm()
        self._note_end(epoch, line, header.flags & FLAG_END != 0, ours, fresh)
        return result

    def _take_ends(self, at: SliceAt, header: Header, line: int, is_answer: bool, is_sure: bool) -> int:
        """Store the ends in a control block; return the same as `read_control`.

        `is_answer`: it confirms the filters, unless it may answer an earlier request (not `is_sure`).
        """
        now_ns, tick_ns = time.time_ns(), time.monotonic_ns()
        in_force = int(is_answer or self._confirmed >> line & 1)
        doubted = count_doubted(at)
        if not take_ends(at, self._table.keys, line, in_force, tick_ns):
            return 0
        if is_answer and is_sure:
            confirm(self._order.at, self._confirmed_keys, header.sequence)
            self._confirmed_keys = self._table.keys
        hand_control(at, now_ns, int(is_answer), doubted)
        if not in_force:
            return 0
        return int(look_at_end(at, self._table.at, self._table.topics, tick_ns))

    def _note_refusal(self, at: SliceAt, flags: int) -> bool:
        """Note refused filters in an answer, if any; return True if some are still wanted.

        Raises RightsError if callbacks cannot end alone, or none needs a refused filter.
        """
        if not flags & FLAG_REFUSED:
            return False
        header, body = string_at(at.scratch + HEAD_AT, HEADER_BYTES), string_at(*message_bytes(at.scratch + BODY_AT))
        refused = Block.decode(CONFIRM_KEY, header, body).ends()
        address = self._address(self._feed_slice.lines[1 if flags & FLAG_LINE_B else 0])
        refusal = Refusal(
            f"feed {self._feed.name!r} slice {self._slice_id}: {address}",
            {prefix: end.sequence for prefix, end in refused.items()},
        )
        callbacks = self._table.workers[0].callbacks
        error = refusal.error(self._feed, chain.from_iterable(each.starts for each in callbacks))
        if not (self.refuses_alone and (self._was_confirmed or self.began_late)):
            raise error
        if not any(self._asks_for(each) for each in refused):
            return False
        if all(refusal.error_of(self._feed, each.starts) is None for each in callbacks):
            raise error  # too many prefixes: the filter is for all topics
        self.refusals.append(refusal)
        self._news.poke()
        return True

    def _asks_for(self, key: bytes) -> bool:
        if key.startswith(WANT_KEY):
            return key.removeprefix(WANT_KEY) in self._wanted
        return key.removeprefix(SHARED_KEY) in self._filters

    def _is_anew(self, line: int, epoch: int) -> bool:
        """Return True if an answer came on a new connection, where libzmq repeats filters in any order."""
        is_anew = line in self._reconnected
        self._reconnected.discard(line)
        return is_anew or bool(self._confirmed >> line & 1) or self._epoch_of_line.get(line, epoch) != epoch

    def _note_end(self, epoch: int, line: int, ended: bool, ours: bool, fresh: bool) -> None:
        """Note whether a line has ended. A late answer may follow an end; a heartbeat disproves it."""
        goes_on = not ended and not ours
        if goes_on and self._state.finished_lines >> line & 1:
            self._ask_to_confirm()  # the end was false, and has withdrawn our acceptance
        if fresh or goes_on:
            self._state.finished_lines &= ~(1 << line)
        if ended:
            self._state.finished_lines |= 1 << line
            self._state.finished_ns = time.monotonic_ns()
            self._withdraw(_of_line(epoch, line))
            self._news.poke()


def _of_line(epoch: int, line: int) -> bytes:
    return epoch.to_bytes(8, "little", signed=True) + bytes([line])
