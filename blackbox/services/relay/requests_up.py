"""Decide what a relay requests from its source on one line. A state machine without sockets, threads or clocks.

::

    CONNECTING  -- connected ---------------------------------------------------->  UNCONFIRMED
    UNCONFIRMED -- `look`: filters exist, or a peer below waits; a nonce is sent -->  ASKING
    CONFIRMED   -- `look`: a peer below waits, the ends of keys may be older ------>  ASKING
    ASKING      -- the nonce comes back: accept it ------------------------------>  CONFIRMED
    ASKING      -- it comes back with refusals: withdraw these prefixes --------->  UNCONFIRMED
    ASKING      -- no answer in time: double that time, send another nonce ------>  ASKING
    CONFIRMED   -- a peer below wants more: only earlier requests stay confirmed ->  UNCONFIRMED
    CONFIRMED   -- `look`: withdrawals were sent, and a heartbeat time has passed ->  ASKING
    CONFIRMED   -- data of a withdrawn key comes: withdraw it again -------------->  CONFIRMED
    CONFIRMED   -- it still comes after some repeats: connect again -------------->  CONNECTING
    ASKING, CONFIRMED -- another epoch, end of an epoch, source's memory is gone ->  UNCONFIRMED
    any         -- connection lost, source silent or unreachable for too long --->  CONNECTING

Filters go up as `Interest` returns, and so do wanted topics. The nonce follows them, so its answer proves them active.
libzmq repeats filters in any order when it reconnects: a nonce is withdrawn with its connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from blackbox.block.form.format import (
    ACCEPT_KEY,
    CONFIRM_KEY,
    FLAG_LINE_B,
    HEARTBEAT_KEY,
    PATH_KEY,
    SHARED_KEY,
    WANT_KEY,
)
from blackbox.native.tables.prefix_trie import Trie, build_trie
from blackbox.publish.listeners.peers import Why
from blackbox.publish.listeners.subscriptions import SUBSCRIBE, UNSUBSCRIBE
from blackbox.receive.publishers.confirmation import MOST_PATIENT_S
from blackbox.services.relay.cover import Changes, Interest
from blackbox.services.relay.failover import DEAD_BEATS, Failover
from blackbox.services.relay.key_ranges import ExpectedKeys

log = logging.getLogger("blackbox")

_UNCONFIRMED: Final = -1
_MOST_SHOWN: Final = 5
"""Most refused prefixes named in the log."""
_MOST_IN_TRIE: Final = 4_096
"""Most filters that are compared with blocks in shared memory, at up to 8 KiB each; above that all blocks are read."""


class Confirmations:
    """Nonces sent to the source; one that comes back confirms all requests sent before it.

    Attributes: `nonce`, the awaited one, or empty; `version`, of the last confirmed request; `due_at`, when withdrawals
    alone need a confirmation; `ask_at`, the earliest time of the next nonce.
    """

    def __init__(self, out: list[bytes], new_nonce: Callable[[], bytes], heartbeat_s: float) -> None:
        self.nonce = b""
        self.version = _UNCONFIRMED
        self.due_at = self.ask_at = 0.0
        self._out, self._new_nonce = out, new_nonce
        self._dead_s = self._patience_s = DEAD_BEATS * heartbeat_s
        self._pace_s = heartbeat_s
        """Least time between confirmations for withdrawals alone."""
        self._asked, self._asked_at = _UNCONFIRMED, 0.0
        self._accepted = b""

    def ask(self, version: int, now: float) -> None:
        """Send a nonce after all requests up to `version`."""
        if self.nonce:  # its answer may be on the way: wait longer for the next one
            self._patience_s = min(2 * self._patience_s, max(self._dead_s, MOST_PATIENT_S))
            self.withdraw_nonce()
        self.nonce = self._new_nonce()
        self._out.append(SUBSCRIBE + CONFIRM_KEY + self.nonce)
        self._asked, self._asked_at, self.ask_at = version, now, now + self._patience_s
        self.postpone(now)

    def accept(self, now: float, line: bytes) -> None:
        """Note that the nonce has come back. `line`: epoch and line to accept; empty: this relay subscribes to none."""
        self._patience_s, self.ask_at = max(self._dead_s, 2 * (now - self._asked_at)), 0.0
        before, self._accepted = self._accepted, ACCEPT_KEY + self.nonce + line if line else b""
        if line:
            self._out.append(SUBSCRIBE + self._accepted)
        if before:
            self._out.append(UNSUBSCRIBE + before)
        self.version = self._asked
        self.withdraw_nonce()

    def postpone(self, now: float) -> None:
        """Confirm withdrawals one heartbeat time from now."""
        self.due_at = now + self._pace_s

    def slow_down(self) -> None:
        """Confirm withdrawals half as often: the source ignores them."""
        self._pace_s = min(2 * self._pace_s, max(self._dead_s, MOST_PATIENT_S))

    def void(self) -> None:
        """Treat all requests as unconfirmed."""
        self.ask_at, self._patience_s = 0.0, self._dead_s
        self.withdraw_nonce()
        self.withdraw_acceptance()

    def withdraw_nonce(self) -> None:
        """No longer wait for the nonce."""
        if self.nonce:
            self._out.append(UNSUBSCRIBE + CONFIRM_KEY + self.nonce)
            self.nonce = b""

    def withdraw_acceptance(self) -> None:
        """No longer count as a subscriber of the source."""
        self.version = _UNCONFIRMED
        if self._accepted:
            self._out.append(UNSUBSCRIBE + self._accepted)
            self._accepted = b""


class Upstream:
    """Requests on one line, and how many of them are confirmed. All times are seconds of one clock.

    Attributes: `source`, its addresses and connection; `expected`, the keys that the source may send on the socket;
    `confirmations`; `out`, messages to send, in order; `version`, incremented by each request and withdrawal;
    `requested`, version of the last request; `filters`, the requested prefixes of keys.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        hold_s: float,
        heartbeat_s: float,
        what: str,
        new_nonce: Callable[[], bytes],
    ) -> None:
        """`hold_s`: as in `Interest`. `what` names the slice in the log."""
        self.out = [SUBSCRIBE + HEARTBEAT_KEY, SUBSCRIBE + PATH_KEY]
        self.source = Failover(addresses, DEAD_BEATS * heartbeat_s, what)
        self.confirmations = Confirmations(self.out, new_nonce, heartbeat_s)
        self.expected = ExpectedKeys()
        self.version = self.requested = 0
        self.filters = set[bytes]()
        self._interest = Interest(hold_s)
        self._what = what
        self._keys, self._are_keys_new = build_trie([]), False
        self._in_memory = False
        """True if data is requested in shared memory, False on the socket."""
        self._covered = dict[bytes, None]()
        """Prefixes to withdraw once the prefixes that cover them, requested in `_covered_at`, are confirmed."""
        self._covered_at = 0

    @property
    def keys(self) -> Trie:
        """Filters requested in shared memory."""
        if self._are_keys_new and self._in_memory:
            filters = sorted(self.filters) if len(self.filters) <= _MOST_IN_TRIE else [b""]
            self._keys, self._are_keys_new = build_trie(filters), False
        return self._keys

    @property
    def refused(self) -> Mapping[bytes, Why]:
        """Prefixes wanted below that the source refuses, and why."""
        return self._interest.refused

    def is_confirmed(self, version: int) -> bool:
        """Return True if all requests up to `version` are confirmed above."""
        return self.confirmations.version >= version

    # The connection

    def connect(self, now: float) -> None:
        """Note a new connection. The source may be another one, so nothing is confirmed or refused."""
        self._change(self._interest.ask_again())
        self._begin(True, now)

    def lose(self, now: float) -> None:
        """Note that there is no connection."""
        self._begin(False, now)

    def switch(self, why: str, now: float) -> None:
        """Switch to the next address."""
        self.lose(now)
        self.source.switch(why)

    def _begin(self, is_connected: bool, now: float) -> None:
        self.source.change(is_connected, now)
        self.expected.reconnect(self.confirmations.version)
        self.confirmations.postpone(now)
        self.confirmations.void()

    # Interest

    def want(self, prefix: bytes, by: int, now: float) -> None:
        """Note that peers below want a filter, or a prefix of topics after WANT_KEY (`by` 1), or no longer do (-1)."""
        self._change(self._interest.want(prefix) if by > 0 else self._interest.leave(prefix, now))

    def read_in(self, in_memory: bool) -> None:
        """Request data in shared memory, or on the socket. Nothing stays confirmed."""
        if self._in_memory is not in_memory:
            self._in_memory = in_memory
            for prefix in sorted(self.filters):
                new, old = (SHARED_KEY, b"") if in_memory else (b"", SHARED_KEY)
                self.out += SUBSCRIBE + new + prefix, UNSUBSCRIBE + old + prefix
        self.confirmations.void()

    def _change(self, changes: Changes) -> None:
        """Request prefixes, then withdraw others."""
        subscribe, withdraw = self._uncovered(changes.subscribe), changes.withdraw
        # The source may refuse the covering prefixes: the others stay active until it has not.
        if subscribe and withdraw:
            self._covered |= dict.fromkeys(withdraw)
            self._covered_at = self.version + 1
            withdraw = []
        self._send(subscribe, withdraw)

    def _uncovered(self, prefixes: list[bytes]) -> list[bytes]:
        """Return the prefixes that are not active as `_covered`; the others stay active."""
        new = [prefix for prefix in prefixes if prefix not in self._covered]
        for prefix in prefixes:
            self._covered.pop(prefix, None)
        return new

    def _send(self, subscribe: list[bytes], withdraw: list[bytes]) -> None:
        for what, prefixes in ((SUBSCRIBE, subscribe), (UNSUBSCRIBE, withdraw)):
            for prefix in prefixes:
                is_in_memory = self._in_memory and not prefix.startswith(WANT_KEY)
                self.out.append(what + (SHARED_KEY if is_in_memory else b"") + prefix)
        self.version += bool(subscribe or withdraw)
        if subscribe:
            self.requested = self.version
        new = {prefix for prefix in subscribe if not prefix.startswith(WANT_KEY)}
        gone = self.filters.intersection(withdraw)
        self.filters |= new
        self.filters -= gone
        if not self.expected.withdraw(gone, self.version):
            self.requested = self.version  # the ranges are unknown until all withdrawals are confirmed
        self._are_keys_new |= bool(new or gone)
        if gone and not self.filters:  # no peer below: the source must not count this relay as a subscriber
            self.confirmations.withdraw_acceptance()

    # Confirmations

    def look(self, now: float, is_needed: bool) -> None:
        """Send due withdrawals, and request a confirmation if it is due. `is_needed`: a peer below waits for one."""
        self._change(self._interest.settle(now))
        confirmations = self.confirmations
        if confirmations.version == self.version:
            confirmations.postpone(now)
        has_new = confirmations.version < self.requested and bool(self.filters or self._covered)
        can_ask = self.source.is_connected and not self.source.has_ended and now >= confirmations.ask_at
        if can_ask and (is_needed or has_new or now >= confirmations.due_at):
            confirmations.ask(self.version, now)
        if self._in_memory or not self.is_confirmed(self.requested):
            self.expected.ranges = None
        else:
            self.expected.update(self.filters, confirmations.version, now)

    def note_unwanted(self, key: bytes) -> None:
        """Note data of an unexpected key. Withdraw again filters whose withdrawal the source has confirmed."""
        again = self.expected.withdrawn_again(key, self.filters, self.confirmations.version)
        if again and self.expected.is_ignored:
            self.source.ignores = True
            self.confirmations.slow_down()
            text = "%s: %s sends key %r, which was withdrawn %d times: reconnecting"
            log.warning(text, self._what, self.source.address, key, self.expected.repeats)
        elif again:
            for prefix in again:
                self.out += SUBSCRIBE + prefix, UNSUBSCRIBE + prefix
            self.version += 1
            self.expected.withdraw(again, self.version)

    def answer(self, now: float, epoch: int, flags: int) -> None:
        """Note that the nonce has come back, and accept it."""
        if not self.confirmations.nonce:
            return  # the connection was lost meanwhile
        line = epoch.to_bytes(8, "little") + bytes([flags & FLAG_LINE_B != 0])
        self.confirmations.accept(now, line if self.filters else b"")
        if self._covered and self.is_confirmed(self._covered_at):
            covered, self._covered = [*self._covered], {}
            self._send([], covered)

    def refuse(self, refused: Mapping[bytes, Why]) -> list[bytes]:
        """Note that the nonce has come back with refused prefixes: withdraw it, and ask again.

        One answer may hold only some of them. Return the newly refused prefixes wanted below.
        """
        if not self.confirmations.nonce:
            return []  # the connection was lost meanwhile
        known = frozenset(self.refused)
        refused = {prefix.removeprefix(SHARED_KEY): why for prefix, why in refused.items()}
        changes = self._interest.refuse(refused)
        if new := sorted(self.refused.keys() - known):
            names = sorted({prefix.removeprefix(WANT_KEY) for prefix in new})
            shown = ", ".join(map(repr, names[:_MOST_SHOWN])) + (", ..." if len(names) > _MOST_SHOWN else "")
            log.warning("%s: %s refused this relay the topics %s", self._what, self.source.address, shown)
        subscribe = self._uncovered(changes.subscribe)
        covered = [prefix for prefix in refused if prefix in self._covered]
        self._uncovered(covered)
        self._send(subscribe, changes.withdraw + covered)
        self.confirmations.withdraw_nonce()
        if changes.withdraw or covered:
            self.confirmations.ask_at = 0.0
        return new

    def begin_epoch(self) -> None:
        """Note a new epoch: confirmations were for the previous one."""
        self.confirmations.version = _UNCONFIRMED

    def note_ended(self, has_ended: bool) -> None:
        """Note if the last message ended an epoch: the publisher no longer answers."""
        if has_ended and not self.source.has_ended:
            self.confirmations.void()
        self.source.has_ended = has_ended
