"""What a relay asks of the one above it on a line, and what of that has been confirmed.

Filters go up as `Interest` says, and so does which topics are wanted. Behind them goes a nonce; what answers it proves
that they are in force. One is asked for at a time, and anew when more was asked for meanwhile. libzmq repeats filters
in an order of its own when it connects again, so a nonce is withdrawn when a connection goes, and asked for when one is
there.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from blackbox.block.format import (
    ACCEPT_KEY,
    CONFIRM_KEY,
    FLAG_LINE_B,
    HEARTBEAT_KEY,
    NONCE_BYTES,
    PATH_KEY,
    SHARED_KEY,
    WANT_KEY,
)
from blackbox.errors import EndpointError
from blackbox.life import Life
from blackbox.native.prefix_trie import Trie, build_trie
from blackbox.publish.peers import Why
from blackbox.publish.subscriptions import SUBSCRIBE, UNSUBSCRIBE
from blackbox.relay.cover import Changes, Interest, SmallestCover
from blackbox.relay.line_state import LineState
from blackbox.subscribe.subscription import MOST_PATIENT_S, open_sub
from blackbox.transport.connections import FAILURE_EVENTS, Connection, Failure, connection_to, failure_of
from blackbox.transport.context import allow_ipv6
from blackbox.transport.curve import ClientKeys, refusal_of, use_keys
from blackbox.transport.inproc import bound_number, is_bound_anew, is_inproc
from blackbox.transport.shared_memory_reader import SharedSource
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_DEAD_BEATS: Final = 3
"""Heartbeat times of silence after which a relay goes on with a spare, and asks for a confirmation again."""
_UNREACHED_S: Final = 3.0
"""Time after which a source that cannot be reached is given up for a spare; at least those heartbeat times."""
_ALONE_S: Final = 30.0
"""Where there is no spare, that time: libzmq itself connects again, unless it takes the peer for hostile. So long, too,
stays a silent one of which the kernel cannot tell whether its host answers."""
_RECONNECT_MS: Final = 20, 200
"""Pauses between attempts to connect, the first and the longest: those below a relay wait for it."""
_MOST_RECORDERS: Final = 1_024
"""Acknowledgements that stand at a time; those that were passed up first are withdrawn."""
_UNCONFIRMED: Final = -1
_MOST_SHOWN: Final = 5
"""Refused prefixes that the log names."""


class Source(NamedTuple):
    """How to connect to an address."""

    keys: ClientKeys | None
    memory: str
    """The name of the shared memory in which its blocks can be read on its host; empty: they come on the socket."""


class UpstreamLife(Life):
    """Where the way up is in its life."""

    NEW = "new", "connecting", "closed"
    """It has no socket. CONNECTING by `open`."""
    CONNECTING = "connecting", "connecting", "connected", "closed"
    """libzmq tries to reach an address. CONNECTED once it has, CONNECTING to another one; CLOSED by `close`."""
    CONNECTED = "connected", "connected", "connecting", "closed"
    """CONNECTING when the connection goes, or is given up for another address; CLOSED by `close`."""
    CLOSED = "closed"
    """Nothing follows."""


class Upstream:
    """The way towards the source on one line: an XSUB socket, its filters, and confirmations.

    Used by the thread of the slice, which owns the socket. With several addresses it is connected to one at a time: to
    the next one when that falls silent, or cannot be reached.

    Attributes: `version`, grows whenever more was asked for; `life`; `addresses`, the one in use first; `reconnects`,
    times that a connection was there anew; `memory`, that of the address in use.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        interest: Interest,
        hold_s: float,
        state: LineState,
        heartbeat_ns: int,
        what: str,
        bell: Pipe,
    ) -> None:
        """`sources`: addresses, and how to connect to each. `what` names the slice in the log.

        `bell` is rung by who writes to shared memory. `hold_s`: as in `Interest`, for what is wanted.
        """
        self.addresses = list(sources)
        self._sources, self._failures = sources, dict[str, set[Failure]]()
        self._bell = bell
        self.memory = SharedSource("", bell, what)
        self._in_force: set[bytes] = set()
        """The filters that are asked for."""
        self._keys, self._are_keys_new = build_trie([]), False
        self._asks_memory = False
        """Whether they are asked for in shared memory."""
        self._heartbeats = 0
        self._filters = interest
        # The smallest cover, whatever filters there are: else publishers would compute what nobody wants.
        self._wanted = Interest(SmallestCover(), hold_s)
        self.version = 0
        self.reconnects = -1
        self._is_gone = False
        """Whether the log tells so."""
        self._state, self._what = state, what
        self._dead_s = _DEAD_BEATS * heartbeat_ns / 1e9
        self._confirmed = self._asked = _UNCONFIRMED
        """Versions."""
        self._nonce = b""
        self._asked_at = self._changed_at = 0.0
        self._patience_s = self._dead_s
        """What an answer may take: it comes behind all that is queued on its way."""
        self._accepted = b""
        self._recorders: dict[bytes, None] = {}
        self._covered: dict[bytes, None] = {}
        """Filters to withdraw once the filters that cover them, requested in `_covered_at`, are in force."""
        self._covered_at = 0
        self.life = UpstreamLife.NEW
        self._connection: Connection | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]], hwm_blocks: int) -> None:
        """Open the socket and connect it. Raises EndpointError naming the address that it cannot connect to."""
        self.xsub = open_sub(context, hwm_blocks, zmq.XSUB)
        self.news: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._enter(UpstreamLife.CONNECTING)
        # Without a connection nothing queues up: libzmq keeps what is asked for, and sends it when there is one. No
        # high-water mark may drop it: those below are bounded already.
        self.xsub.immediate = True
        self.xsub.sndhwm = 0
        self.xsub.reconnect_ivl, self.xsub.reconnect_ivl_max = _RECONNECT_MS
        place = f"inproc://blackbox-upstream-{id(self.xsub)}"
        connected = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.xsub.monitor(place, connected | zmq.EVENT_DISCONNECTED | FAILURE_EVENTS)
        self.news.linger = 0
        self.news.connect(place)
        for key in (HEARTBEAT_KEY, PATH_KEY):
            self.xsub.send(SUBSCRIBE + key)
        self._connect()

    def close(self) -> None:
        """Close the sockets, if they are open."""
        is_open = self.life in (UpstreamLife.CONNECTING, UpstreamLife.CONNECTED)
        self._enter(UpstreamLife.CLOSED)
        if is_open:
            self.memory.close()
            with suppress(zmq.ZMQError):
                self.xsub.monitor(None, 0)
            self.news.close()
            self.xsub.close(linger=0)

    @property
    def keys(self) -> Trie:
        """The filters that are asked for in shared memory."""
        if self._are_keys_new and self.memory.is_asked:
            self._keys, self._are_keys_new = build_trie(sorted(self._in_force)), False
        return self._keys

    @property
    def filters(self) -> int:
        """How many are asked for."""
        return len(self._in_force)

    @property
    def handles(self) -> tuple[int, int]:
        """Of the socket, and of the one that brings news of its connections; 0 before it is open."""
        return (0, 0) if self.life is UpstreamLife.NEW else (self.xsub.underlying, self.news.underlying)

    @property
    def is_connected(self) -> bool:
        """Whether the address in use is reached."""
        return self.life is UpstreamLife.CONNECTED

    def _enter(self, life: UpstreamLife) -> None:
        """Go on to `life`. Raises RuntimeError when it may not follow."""
        self.life = self.life.enter(life, f"{self._what}: way to {self.address}")

    @property
    def address(self) -> str:
        """What it is, or shall be, connected to."""
        return self.addresses[0]

    def _connect(self) -> None:
        self._changed_at = time.monotonic()
        allow_ipv6(self.xsub, self.address)
        source = self._sources[self.address]
        use_keys(self.xsub, source.keys)
        self.memory.close()
        self.memory = SharedSource(source.memory, self._bell, self._what)
        if self.memory.is_asked:
            self.memory.attach()
        self._ask_where_it_is()
        self._bound_number = bound_number(self.address)
        try:
            self.xsub.connect(self.address)
        except zmq.ZMQError as error:
            text = f"{self._what}: cannot connect to {self.address}: {error.strerror}"
            raise EndpointError(error.errno, text) from error
        if is_inproc(self.address):
            self._note_connection(True)

    def _connect_to_next(self, why: str) -> None:
        before = self.address
        with suppress(zmq.ZMQError):
            self.xsub.disconnect(before)
        self.read_news()  # of the connection that was
        self._note_connection(False)
        self.addresses.append(self.addresses.pop(0))
        if self.address != before:
            log.warning("%s: %s %s: goes on with %s", self._what, before, why, self.address)
        self._connect()

    def read_news(self) -> None:
        """Take in that a connection is there, or gone."""
        while self.news.poll(0):
            event = parse_monitor_message(self.news.recv_multipart())
            if (failure := failure_of(event["event"], event["value"])) is not None:
                self._note_failure(failure)
            elif event["event"] == zmq.EVENT_CONNECTED:
                self._connection = connection_to(self.address, event["value"])
            else:
                self._note_connection(event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def _note_failure(self, failure: Failure) -> None:
        """Log, once for each address and reason, why a connection was refused."""
        failures = self._failures.setdefault(self.address, set())
        keys = self._sources[self.address].keys
        before = refusal_of(failures, keys)
        failures.add(failure)
        why = refusal_of(failures, keys)
        if why != before:
            log.warning("%s: no connection to %s: %s", self._what, self.address, why)

    def _note_connection(self, is_there: bool) -> None:
        if is_there and not self.is_connected:
            self.reconnects += 1
            if self._is_gone:
                log.warning("%s: the connection to %s is there again", self._what, self.address)
        elif not is_there and self.is_connected:
            log.warning("%s: the connection to %s is gone", self._what, self.address)
        self._is_gone = not is_there and (self._is_gone or self.is_connected)
        self._enter(UpstreamLife.CONNECTED if is_there else UpstreamLife.CONNECTING)
        if is_there:
            self._change(self._filters.ask_again())
            self._change(self._wanted.ask_again(), WANT_KEY)
        self._changed_at = time.monotonic()
        self._state.heard_ns = self._state.ended = 0
        self._void()

    def _void(self) -> None:
        """Take nothing for confirmed that is in force above."""
        self._confirmed = self._asked = _UNCONFIRMED
        self._patience_s = self._dead_s
        self._withdraw_nonce()
        self._withdraw_acceptance()

    # What is wanted

    def want(self, prefix: bytes) -> None:
        """Ask for what one more filter needs, or one more wanted prefix of topics, which stands behind WANT_KEY."""
        if prefix.startswith(WANT_KEY):
            self._change(self._wanted.want(prefix.removeprefix(WANT_KEY)), WANT_KEY)
        else:
            self._change(self._filters.want(prefix))

    def leave(self, prefix: bytes) -> None:
        """Withdraw what nobody needs once a filter, or a wanted prefix, has gone."""
        now = time.monotonic()
        if prefix.startswith(WANT_KEY):
            self._change(self._wanted.leave(prefix.removeprefix(WANT_KEY), now), WANT_KEY)
        else:
            self._change(self._filters.leave(prefix, now))

    def _change(self, changes: Changes, kind: bytes = b"") -> None:
        """Ask for prefixes of a kind, then withdraw others."""
        subscribe = self._uncovered([kind + each for each in changes.subscribe])
        withdraw = [kind + each for each in changes.withdraw]
        # Where the source may refuse what is to cover others, these stay until it has not.
        if subscribe and withdraw:
            self._covered |= dict.fromkeys(withdraw)
            self._covered_at = self.version + 1
            withdraw = []
        self._send(subscribe, withdraw)

    def _uncovered(self, keys: list[bytes]) -> list[bytes]:
        """Return those to ask for; the rest is in force still, as what was to cover it is not. It then stays."""
        new = [key for key in keys if key not in self._covered]
        for key in keys:
            self._covered.pop(key, None)
        return new

    def _send(self, subscribe: list[bytes], withdraw: list[bytes]) -> None:
        """Ask for filters and wanted prefixes, then withdraw others."""
        kind = SHARED_KEY if self._asks_memory else b""
        for what, keys in ((SUBSCRIBE, subscribe), (UNSUBSCRIBE, withdraw)):
            for key in keys:
                self.xsub.send(what + (key if key.startswith(WANT_KEY) else kind + key))
        self.version += bool(subscribe)
        new, gone = ([key for key in keys if not key.startswith(WANT_KEY)] for keys in (subscribe, withdraw))
        self._in_force.update(new)
        self._in_force.difference_update(gone)
        self._are_keys_new |= bool(new or gone)
        if gone and not self.filters:
            self._withdraw_acceptance()  # nobody is here any more, and nobody counts
            self._confirmed = _UNCONFIRMED

    def _ask_where_it_is(self) -> None:
        """Ask for data in shared memory if it is read there, else on the socket."""
        if self._asks_memory is not self.memory.is_asked:
            self._asks_memory = self.memory.is_asked
            kinds = (SHARED_KEY, b"") if self._asks_memory else (b"", SHARED_KEY)
            for prefix in self._in_force:
                self.xsub.send(SUBSCRIBE + kinds[0] + prefix)
                self.xsub.send(UNSUBSCRIBE + kinds[1] + prefix)

    def _look_at_memory(self) -> None:
        """Leave that of a source that has gone; decide anew once the next one is heard."""
        is_heard, self._heartbeats = self._state.heartbeats != self._heartbeats, self._state.heartbeats
        if self.memory.leave_gone():
            self._void()
        elif self.memory.is_open and is_heard and not self._state.ended:
            self._decide()

    def _decide(self) -> None:
        """Attach to the memory of the source just heard, or ask on the socket; nothing of before is confirmed."""
        self.memory.decide()
        self._ask_where_it_is()
        self._void()

    # Recorders

    def tell_recorded(self, said: bytes) -> None:
        """Pass on how far a recorder is."""
        if said not in self._recorders:
            self._recorders[said] = None
            self.xsub.send(SUBSCRIBE + said)
            if len(self._recorders) > _MOST_RECORDERS:
                self.withdraw_recorded(next(iter(self._recorders)))

    def withdraw_recorded(self, said: bytes) -> None:
        """Pass on that this was withdrawn."""
        if said in self._recorders:
            del self._recorders[said]
            self.xsub.send(UNSUBSCRIBE + said)

    # Confirmations

    def is_confirmed(self, version: int) -> bool:
        """Whether all is in force above that was asked for up to a version."""
        return self._confirmed >= version

    def look(self, is_needed: bool) -> None:
        """Ask for a confirmation where one is due; give up a connection that is silent. `is_needed`: somebody waits."""
        now = time.monotonic()
        self._look_at_memory()
        self._change(self._filters.settle(now))
        self._change(self._wanted.settle(now), WANT_KEY)
        silent_s = now - max(self._state.heard_ns / 1e9, self._changed_at)
        if silent_s >= self._dead_s:
            self._look_for_another(silent_s)
        if not self.is_connected or self._state.ended or self._confirmed >= self.version:
            return
        is_out = self._asked != _UNCONFIRMED and now - self._asked_at < self._patience_s
        if not is_out and (is_needed or self.filters):
            self._ask(now)

    def _look_for_another(self, silent_s: float) -> None:
        """Go on with the next address if this one has been silent for too long."""
        is_alone = len(self.addresses) == 1
        if not self.is_connected:
            if silent_s >= (_ALONE_S if is_alone else _UNREACHED_S):
                self._connect_to_next("cannot be reached")
            return
        may_speak = is_inproc(self.address) or not self._state.ended
        has_read = not int(self.xsub.get(zmq.EVENTS)) & zmq.POLLIN
        # A source that waits for a slow subscriber is silent too, and what it sends while we connect anew is lost.
        if may_speak and has_read and not (is_alone and self._stands(silent_s)):
            self._connect_to_next("fell silent")

    def _stands(self, silent_s: float) -> bool:
        """Whether the connection that has been silent for so long may still be there."""
        if is_inproc(self.address):
            return not is_bound_anew(self.address, self._bound_number)
        there = self._connection
        return silent_s < _ALONE_S if there is None else there.is_answered()

    def _ask(self, now: float) -> None:
        if self._asked != _UNCONFIRMED:
            # The answer to the last one may as well be on its way: give the next one time.
            self._patience_s = min(2 * self._patience_s, max(self._dead_s, MOST_PATIENT_S))
        self._withdraw_nonce()
        self.xsub.get(zmq.EVENTS)  # has it see the connection first, and repeat on it all that was asked for
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._state.nonce = int.from_bytes(self._nonce, "little", signed=True)
        self.xsub.send(SUBSCRIBE + CONFIRM_KEY + self._nonce)
        self._asked, self._asked_at = self.version, now

    def answered(self) -> None:
        """Note that the nonce has come back, and say so."""
        if self._asked == _UNCONFIRMED:
            return  # the connection has gone since
        if self.memory.is_open:
            self._decide()
            return
        self._patience_s = max(self._dead_s, 2 * (time.monotonic() - self._asked_at))
        line = bytes([1 if self._state.answer_flags & FLAG_LINE_B else 0])
        before, self._accepted = self._accepted, b""
        if self.filters:
            self._accepted = ACCEPT_KEY + self._nonce + self._state.epoch.to_bytes(8, "little") + line
            self.xsub.send(SUBSCRIBE + self._accepted)
        if before:
            self.xsub.send(UNSUBSCRIBE + before)
        self._confirmed, self._asked = self._asked, _UNCONFIRMED
        self._withdraw_nonce()
        if self._covered and self._confirmed >= self._covered_at:
            covered, self._covered = [*self._covered], {}
            self._send([], covered)

    def was_refused(self, refused: Mapping[bytes, Why]) -> list[bytes]:
        """Note that the nonce has come back with what the source does not put in force: withdraw that, and ask again.

        There may be more of it than one answer tells. Return which filters of those below it had not refused before.
        """
        if self._asked == _UNCONFIRMED:
            return []  # as above
        known = frozenset(self.refused)
        topics = {each.removeprefix(WANT_KEY): why for each, why in refused.items() if each.startswith(WANT_KEY)}
        wants = self._wanted.refuse(topics)
        keys = {each.removeprefix(SHARED_KEY): why for each, why in refused.items() if not each.startswith(WANT_KEY)}
        changes = self._filters.refuse(keys)
        if new := sorted(self.refused.keys() - known):
            names = sorted({each.removeprefix(WANT_KEY) for each in new})
            shown = ", ".join(map(repr, names[:_MOST_SHOWN])) + (", ..." if len(names) > _MOST_SHOWN else "")
            log.warning("%s: %s refused this relay the topics %s", self._what, self.address, shown)
        subscribe = self._uncovered([*changes.subscribe, *(WANT_KEY + each for each in wants.subscribe)])
        covered = [key for key in (*keys, *(WANT_KEY + each for each in topics)) if self._covered.pop(key, key) is None]
        withdraw = [*changes.withdraw, *(WANT_KEY + each for each in wants.withdraw), *covered]
        self._send(subscribe, withdraw)
        self._withdraw_nonce()
        if withdraw:
            self._asked = _UNCONFIRMED
        return new

    @property
    def refused(self) -> Mapping[bytes, Why]:
        """Filters, and wanted prefixes, of those below that the source does not put in force, and why."""
        wants = {WANT_KEY + prefix: why for prefix, why in self._wanted.refused.items()}
        return {**self._filters.refused, **wants}

    def began(self) -> None:
        """Note that another run has begun: confirmations held for the one before."""
        self._confirmed = _UNCONFIRMED

    def ended(self) -> None:
        """Note that the last block of a run has come: whoever sent it waits for nobody here any more."""
        self._void()

    def _withdraw_nonce(self) -> None:
        if self._nonce:
            self.xsub.send(UNSUBSCRIBE + CONFIRM_KEY + self._nonce)
            self._nonce, self._state.nonce = b"", 0

    def _withdraw_acceptance(self) -> None:
        if self._accepted:
            self.xsub.send(UNSUBSCRIBE + self._accepted)
            self._accepted = b""
