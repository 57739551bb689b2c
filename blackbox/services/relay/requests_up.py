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

import numpy
from numpy.typing import NDArray

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
from blackbox.receive.slices.subscription import MOST_PATIENT_S
from blackbox.services.relay.cover import Changes, Cover, CoverByKind, Interest
from blackbox.services.relay.key_ranges import ranges_of
from blackbox.transport.inproc import is_inproc

log = logging.getLogger("blackbox")

_DEAD_BEATS: Final = 3
"""Heartbeat times of silence before a relay switches to a spare, and the least wait for an answer to a nonce."""
_UNREACHED_S: Final = 3.0
"""Seconds before a relay with spares gives up an unreachable source; at least those heartbeat times."""
_ALONE_S: Final = 30.0
"""The same without spares: libzmq reconnects, except to a peer that it considers hostile. Also how long a silent
connection is kept if the kernel does not know whether the host answers."""
_MOST_RECORDERS: Final = 1_024
"""Most active acknowledgements; the oldest ones above that are withdrawn."""
_MOST_REPEATS: Final = 3
"""Repeated withdrawals on one connection before the relay reconnects."""
_MOST_WITHDRAWN: Final = 65_536
"""Most withdrawn prefixes remembered per connection; above that all are forgotten and not withdrawn again."""
_RANGES_S: Final = 50e-6
"""Least time per filter between two updates of `ranges`, which take about a hundredth of it."""
_UNCONFIRMED: Final = -1
_MOST_SHOWN: Final = 5
"""Most refused prefixes named in the log."""


class Upstream:
    """Requests on one line, and how many of them are confirmed. All times are seconds of one clock.

    Attributes: `out`, messages to send, in order; `nonce`, of the awaited confirmation, or empty; `version`,
    incremented by each request and withdrawal; `requested`, version of the last request; `filters`, the requested
    prefixes of keys; `ranges`, the keys that the source may send on the socket, see `ranges_of`, or None if unknown;
    `addresses`, the current one first; `reconnects`, number of reconnects; `has_ended`, True after the last block of an
    epoch.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        cover: Cover,
        hold_s: float,
        heartbeat_s: float,
        what: str,
        new_nonce: Callable[[], bytes],
    ) -> None:
        """`cover`, `hold_s`: as in `Interest`. `what` names the slice in the log."""
        self.addresses = list(addresses)
        self.out = [SUBSCRIBE + HEARTBEAT_KEY, SUBSCRIBE + PATH_KEY]
        self.nonce = b""
        self.version = self.requested = 0
        self.filters = set[bytes]()
        self.ranges: NDArray[numpy.int64] | None = None
        self.reconnects = -1
        self.is_connected = self.has_ended = False
        self._interest = Interest(CoverByKind(cover), hold_s)
        self._dead_s = self._patience_s = _DEAD_BEATS * heartbeat_s
        self._pace_s, self._due_at = heartbeat_s, 0.0
        """Least time between confirmations for withdrawals alone, and when the next one is due."""
        self._what, self._new_nonce = what, new_nonce
        self._keys, self._are_keys_new = build_trie([]), False
        self._in_memory = False
        """True if data is requested in shared memory, False on the socket."""
        self._confirmed = self._asked = _UNCONFIRMED
        """Versions."""
        self._asked_at = self._ask_at = self._changed_at = 0.0
        self._accepted = b""
        self._recorders = dict[bytes, None]()
        self._covered = dict[bytes, None]()
        """Prefixes to withdraw once the prefixes that cover them, requested in `_covered_at`, are confirmed."""
        self._covered_at = 0
        self._withdrawn = dict[bytes, int]()
        """Version in which each filter was withdrawn on this connection."""
        self._repeats, self._is_ignored = 0, False
        self._ranges_version, self._ranges_at = _UNCONFIRMED, 0.0
        """Confirmed version of `ranges`, and the earliest time of its next update."""

    @property
    def address(self) -> str:
        """Address in use."""
        return self.addresses[0]

    @property
    def keys(self) -> Trie:
        """Filters requested in shared memory."""
        if self._are_keys_new and self._in_memory:
            self._keys, self._are_keys_new = build_trie(sorted(self.filters)), False
        return self._keys

    @property
    def refused(self) -> Mapping[bytes, Why]:
        """Prefixes wanted below that the source refuses, and why."""
        return self._interest.refused

    def is_confirmed(self, version: int) -> bool:
        """Return True if all requests up to `version` are confirmed above."""
        return self._confirmed >= version

    # The connection

    def connect(self, now: float) -> None:
        """Note a new connection. The source may be another one, so nothing is confirmed or refused."""
        if not self.is_connected:
            self.reconnects += 1
            if self.reconnects:
                log.warning("%s: the connection to %s is restored", self._what, self.address)
        self.is_connected = True
        self._change(self._interest.ask_again())
        self._begin(now)

    def lose(self, now: float) -> None:
        """Note that there is no connection."""
        if self.is_connected:
            log.warning("%s: the connection to %s is gone", self._what, self.address)
        self.is_connected = False
        self._begin(now)

    def switch(self, why: str, now: float) -> None:
        """Switch to the next address."""
        self.lose(now)
        before = self.address
        self.addresses.append(self.addresses.pop(0))
        if self.address != before:
            log.warning("%s: %s %s: switches to %s", self._what, before, why, self.address)

    def _begin(self, now: float) -> None:
        self._changed_at, self.has_ended, self._due_at = now, False, now + self._pace_s
        self._repeats, self._is_ignored = 0, False
        # Unconfirmed withdrawals may apply to a new connection that was not yet reported here.
        self._withdrawn = {prefix: at for prefix, at in self._withdrawn.items() if at > self._confirmed}
        self.void()

    def void(self) -> None:
        """Treat all requests as unconfirmed."""
        self._confirmed, self._ask_at, self._patience_s = _UNCONFIRMED, 0.0, self._dead_s
        self._withdraw_nonce()
        self._withdraw_acceptance()

    def is_suspect(self, silent_since: float, now: float) -> bool:
        """Return True if the source was silent for too long or sent unwanted data; then call `why_switch`."""
        return self._is_ignored or now - max(silent_since, self._changed_at) >= self._dead_s

    def why_switch(self, silent_since: float, now: float, has_unread: bool, is_answered: bool | None) -> str:
        """Return why to `switch` from a suspect source; empty: keep the connection.

        `has_unread`: messages wait in the socket. `is_answered`: the source's host answers; None: unknown.
        """
        silent_s, is_alone = now - max(silent_since, self._changed_at), len(self.addresses) == 1
        if self._is_ignored:
            return "sends withdrawn keys"
        if not self.is_connected:
            return "cannot be reached" if silent_s >= (_ALONE_S if is_alone else _UNREACHED_S) else ""
        may_speak = is_inproc(self.address) or not self.has_ended
        is_there = silent_s < _ALONE_S if is_answered is None else is_answered
        # A source that waits for a slow subscriber is silent too, and a reconnect would lose what it sends meanwhile.
        return "is silent" if may_speak and not has_unread and not (is_alone and is_there) else ""

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
        self.void()

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
        self._withdrawn |= dict.fromkeys(gone, self.version)
        if len(self._withdrawn) > _MOST_WITHDRAWN:
            self._withdrawn.clear()
            self.requested = self.version  # `ranges` is unknown until all withdrawals are confirmed
        self._are_keys_new |= bool(new or gone)
        if gone and not self.filters:  # no peer below: the source must not count this relay as a subscriber
            self._withdraw_acceptance()
            self._confirmed = _UNCONFIRMED

    # Confirmations

    def look(self, now: float, is_needed: bool) -> None:
        """Send due withdrawals, and request a confirmation if it is due. `is_needed`: a peer below waits for one."""
        self._change(self._interest.settle(now))
        is_needed |= self._confirmed < self.requested and bool(self.filters or self._covered)
        if self._confirmed == self.version:
            self._due_at = now + self._pace_s
        is_needed |= now >= self._due_at
        if is_needed and self.is_connected and not self.has_ended and now >= self._ask_at:
            if self.nonce:  # its answer may be on the way: wait longer for the next one
                self._patience_s = min(2 * self._patience_s, max(self._dead_s, MOST_PATIENT_S))
                self._withdraw_nonce()
            self.nonce = self._new_nonce()
            self.out.append(SUBSCRIBE + CONFIRM_KEY + self.nonce)
            self._asked, self._asked_at, self._ask_at = self.version, now, now + self._patience_s
            self._due_at = now + self._pace_s
        self._update_ranges(now)

    def _update_ranges(self, now: float) -> None:
        if self._in_memory or not self.is_confirmed(self.requested):
            self.ranges = None
        elif (self.ranges is None or self._ranges_version < self._confirmed) and now >= self._ranges_at:
            unconfirmed = (prefix for prefix, version in self._withdrawn.items() if version > self._confirmed)
            self.ranges = ranges_of(self.filters.union(unconfirmed))
            self._ranges_version, self._ranges_at = self._confirmed, now + _RANGES_S * len(self.filters)

    def note_unwanted(self, key: bytes) -> None:
        """Note data of a key in none of `ranges`. Withdraw again filters whose withdrawal the source has confirmed."""
        covering = {key[:size] for size in range(len(key) + 1)} & self._withdrawn.keys() - self.filters
        if again := sorted(prefix for prefix in covering if self._withdrawn[prefix] <= self._confirmed):
            self._repeats += 1
            self._is_ignored = self._repeats > _MOST_REPEATS
            if self._is_ignored:
                self._pace_s = min(2 * self._pace_s, max(self._dead_s, MOST_PATIENT_S))
                text = "%s: %s sends key %r, which was withdrawn %d times: reconnecting"
                log.warning(text, self._what, self.address, key, self._repeats)
                return
            for prefix in again:
                self.out += SUBSCRIBE + prefix, UNSUBSCRIBE + prefix
            self.version += 1
            self._withdrawn |= dict.fromkeys(again, self.version)

    def answer(self, now: float, epoch: int, flags: int) -> None:
        """Note that the nonce has come back, and accept it."""
        if not self.nonce:
            return  # the connection was lost meanwhile
        self._patience_s, self._ask_at = max(self._dead_s, 2 * (now - self._asked_at)), 0.0
        before, self._accepted = self._accepted, b""
        if self.filters:
            line = bytes([flags & FLAG_LINE_B != 0])
            self._accepted = ACCEPT_KEY + self.nonce + epoch.to_bytes(8, "little") + line
            self.out.append(SUBSCRIBE + self._accepted)
        if before:
            self.out.append(UNSUBSCRIBE + before)
        self._confirmed = self._asked
        self._withdraw_nonce()
        if self._covered and self._confirmed >= self._covered_at:
            covered, self._covered = [*self._covered], {}
            self._send([], covered)

    def refuse(self, refused: Mapping[bytes, Why]) -> list[bytes]:
        """Note that the nonce has come back with refused prefixes: withdraw it, and ask again.

        One answer may hold only some of them. Return the newly refused prefixes wanted below.
        """
        if not self.nonce:
            return []  # the connection was lost meanwhile
        known = frozenset(self.refused)
        refused = {prefix.removeprefix(SHARED_KEY): why for prefix, why in refused.items()}
        changes = self._interest.refuse(refused)
        if new := sorted(self.refused.keys() - known):
            names = sorted({prefix.removeprefix(WANT_KEY) for prefix in new})
            shown = ", ".join(map(repr, names[:_MOST_SHOWN])) + (", ..." if len(names) > _MOST_SHOWN else "")
            log.warning("%s: %s refused this relay the topics %s", self._what, self.address, shown)
        subscribe = self._uncovered(changes.subscribe)
        covered = [prefix for prefix in refused if prefix in self._covered]
        self._uncovered(covered)
        self._send(subscribe, changes.withdraw + covered)
        self._withdraw_nonce()
        if changes.withdraw or covered:
            self._ask_at = 0.0
        return new

    def begin_epoch(self) -> None:
        """Note a new epoch: confirmations were for the previous one."""
        self._confirmed = _UNCONFIRMED

    def note_ended(self, has_ended: bool) -> None:
        """Note if the last message ended an epoch: the publisher no longer answers."""
        if has_ended and not self.has_ended:
            self.void()
        self.has_ended = has_ended

    def _withdraw_nonce(self) -> None:
        if self.nonce:
            self.out.append(UNSUBSCRIBE + CONFIRM_KEY + self.nonce)
            self.nonce = b""

    def _withdraw_acceptance(self) -> None:
        if self._accepted:
            self.out.append(UNSUBSCRIBE + self._accepted)
            self._accepted = b""

    # Recorders

    def note_recorded(self, said: bytes) -> None:
        """Forward a recorder's acknowledgement."""
        if said not in self._recorders:
            self._recorders[said] = None
            self.out.append(SUBSCRIBE + said)
            if len(self._recorders) > _MOST_RECORDERS:
                self.withdraw_recorded(next(iter(self._recorders)))

    def withdraw_recorded(self, said: bytes) -> None:
        """Withdraw a recorder's acknowledgement."""
        if said in self._recorders:
            del self._recorders[said]
            self.out.append(UNSUBSCRIBE + said)
