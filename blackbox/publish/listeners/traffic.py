"""Limits on what a connection may send, and on how slowly it may take data. Decides only; `peer_guard` disconnects."""

from __future__ import annotations

import math
import time
from typing import Final

from blackbox.block.form.ack_format import MOST_BYTES
from blackbox.block.form.format import MOST_WANT_BYTES
from blackbox.publish.listeners.dropped_estimate import Certainty, DataAge, Drops, LineTotals
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.subscriptions import MOST_WANTS, Subscriptions
from blackbox.publish.send.sender_state import SenderState
from blackbox.transport.keep_alive import GIVEN_UP_S
from blackbox.transport.tcp_info import Connection

_ANSWER_BYTES: Final = 2 * (MOST_BYTES + 16)
"""Bytes that a recorder sends when asked for its position: a new subscription, and withdrawal of the old one."""
LOOK_S: Final = 0.25
"""Time between two looks."""
_FILTER_BYTES: Final = 24
"""Typical size of a subscription on the wire, rounded up."""
_LEAST_BURST_BYTES: Final = 1 << 20
_BURST_OF_WANTS_BYTES: Final = MOST_WANTS // 2 * (MOST_WANT_BYTES + 5)
"""Bytes that a relay may send at once to request everything that is wanted downstream."""
_CURVE_TIMES: Final = 3
"""An encrypted subscription takes 33 bytes more, so with a gate all byte limits are multiplied by this."""
_BYTES_PER_S: Final = 256 << 10
"""Rate at which a connection may send after its burst: some 12,000 subscriptions a second."""
_MOST_UNHEARD_BYTES: Final = 2 << 20
"""Bytes that a connection may send before the sender receives a whole message from it, on top of the size of all
filters in force: libzmq does not pass on filters that others have too. An unfinished message takes up to 32 times its
bytes in libzmq.
"""
_UNSETTLED_BYTES: Final = 16 << 20
"""Further allowance while the sender has not yet read everyone's subscriptions."""
_PING_BYTES_PER_S: Final = 16
"""Upper bound for ZMTP pings on the wire; a plain SUB socket may send them."""
_DEAF_S: Final = 5.0
"""A peer is deaf if data has waited for it this long while it took next to nothing."""
_MOST_DEAF: Final = 8
"""Deaf peers per slice that stay connected with `when_full="drop"`; beyond that the longest deaf are disconnected."""
_LEAST_TAKEN_BYTES: Final = 16 << 10
"""A peer that takes less than this between two looks counts as deaf."""
PATIENCE_S: Final = 10.0
"""Time that a closing publisher waits while no peer takes anything."""


class Traffic:
    """Bytes that one connection has sent and taken up to the last look, and when; what was dropped for it."""

    def __init__(self, burst: float, now: float) -> None:
        self.burst, self.moved_at, self.answered_at = burst, now, now
        """Bytes that it may send at once; when it last took enough; when its host last answered."""
        self.drops, self.age = Drops(), DataAge()
        self.age_s = 0.0
        self.was_behind = False
        self.doubted: tuple[int, int] | None = None
        """The sender's pass at which too much was unread, and the bytes received by then."""
        self.received = self.taken = self.heard = self.segments = 0
        self.unheard_from = 0.0
        """Bytes accounted for: those before the last whole message, and pings."""


class TrafficLimits:
    """Decide which connections must end, from their counters at each look.

    `now`: time of the last look. `moved_at`: when a peer with data waiting last took some of it. `closing_since`: when
    the publisher began to close; from then on deaf peers are disconnected. `is_encrypted`: see `_CURVE_TIMES`.
    """

    def __init__(self, subscriptions: Subscriptions, sent: SenderState, policy: QueuePolicy) -> None:
        self.now = self.moved_at = self._judged_taken_at = time.monotonic()
        self.closing_since = math.inf
        self.is_encrypted = False
        self._subscriptions, self._sent, self._policy = subscriptions, sent, policy
        self._burst = max(_LEAST_BURST_BYTES, _FILTER_BYTES * subscriptions.most_filters) + _BURST_OF_WANTS_BYTES
        self._times_asked = self._answer_bytes = 0
        self._seconds = 0.0
        self._judges_taken = False

    def begin_look(self) -> None:
        """Begin a look at all connections."""
        before, self.now = self.now, time.monotonic()
        self._seconds = self.now - before
        times_asked = self._subscriptions.times_asked
        self._answer_bytes = _ANSWER_BYTES * (times_asked - self._times_asked)
        self._times_asked = times_asked
        self._judges_taken = self.now - self._judged_taken_at >= LOOK_S
        if self._judges_taken:
            self._judged_taken_at = self.now

    def new_traffic(self) -> Traffic:
        """Return the state of a new connection."""
        return Traffic(self._burst, self.now)

    def judge(self, connection: Connection, traffic: Traffic) -> str:
        """Update the state of a connection. Return why it must end; empty: it may stay."""
        why = self._judge_sent(connection, traffic)
        if self._judges_taken:
            self._note_taken(connection, traffic)
            why = why or self._judge_answered(connection, traffic) or self._judge_age(connection, traffic)
        return why

    def note_dropped(self, connection: Connection, traffic: Traffic, sent: LineTotals | None) -> None:
        """Estimate what was dropped for a connection. `sent`: on its line; None: it does not receive all of that."""
        if not self._judges_taken:
            return
        if self._policy.waits:
            traffic.drops.certainty = Certainty.SETTLED
        elif sent is None:
            traffic.drops = Drops()
        else:
            traffic.drops.look(sent, connection.handed, connection.unsent, self._policy.hwm_blocks)

    def _judge_sent(self, connection: Connection, traffic: Traffic) -> str:
        sent = (connection.received - traffic.received) / self._times
        traffic.burst = min(self._burst, traffic.burst + _BYTES_PER_S * self._seconds + self._answer_bytes) - sent
        heard = self._subscriptions.heard.get(connection.fd, 0)
        if heard != traffic.heard:
            traffic.heard, traffic.unheard_from = heard, traffic.received
        traffic.received = connection.received
        # Pings are not counted as messages: within days they would add up to too much.
        traffic.unheard_from = min(traffic.received, traffic.unheard_from + _PING_BYTES_PER_S * self._seconds)
        if traffic.burst < 0:
            return f"it sent subscriptions too fast ({connection.received} bytes in all)"
        return self._judge_unheard(traffic)

    def _judge_unheard(self, traffic: Traffic) -> str:
        """Find a connection that sends no whole subscription.

        Filters that others have too count as whole once they are read.
        """
        most = self._times * (_MOST_UNHEARD_BYTES + _FILTER_BYTES * self._subscriptions.filter_count())
        if traffic.received - traffic.unheard_from <= most:
            traffic.doubted = None
            return ""
        passes, received = traffic.doubted = traffic.doubted or (self._sent.passes, traffic.received)
        # The pass after the current one has read everything received so far.
        is_settled = self._sent.passes > passes + 1 and not self._subscriptions.is_behind
        sent = received if is_settled else traffic.received - _UNSETTLED_BYTES
        if is_settled:
            traffic.doubted = None
        if sent - traffic.unheard_from > most:
            return f"it sent {traffic.received - traffic.unheard_from:.0f} bytes without a whole subscription"
        return ""

    @property
    def _times(self) -> int:
        return _CURVE_TIMES if self.is_encrypted else 1

    def _judge_answered(self, connection: Connection, traffic: Traffic) -> str:
        """Find a connection whose host stopped answering: TCP alone would retry for a quarter of an hour."""
        if connection.segments != traffic.segments or not connection.unanswered:
            traffic.segments, traffic.answered_at = connection.segments, self.now
        elif self.now - traffic.answered_at >= GIVEN_UP_S:
            return f"its host has not answered for {self.now - traffic.answered_at:.1f} s"
        return ""

    def _judge_age(self, connection: Connection, traffic: Traffic) -> str:
        traffic.age_s = traffic.age.look(self.now, connection.handed, connection.taken)
        limit = self._policy.max_peer_age_s
        if limit is None or traffic.age_s <= limit:
            return ""
        return f"its oldest data has waited for {traffic.age_s:.1f} s, expected at most {limit:g} s (max_peer_age)"

    def _note_taken(self, connection: Connection, traffic: Traffic) -> None:
        taken = connection.taken - traffic.taken
        traffic.taken = connection.taken
        if taken and traffic.was_behind:
            self.moved_at = self.now
        traffic.was_behind = connection.unsent > 0
        if not connection.unsent or taken >= _LEAST_TAKEN_BYTES:
            traffic.moved_at = self.now

    def deaf(self, all_traffic: dict[Connection, Traffic]) -> list[Connection]:
        """Return the deaf connections that must end."""
        is_closing = self.closing_since < self.now
        patience, since = (PATIENCE_S, self.closing_since) if is_closing else (_DEAF_S, 0.0)
        deaf = [each for each, traffic in all_traffic.items() if self.now - max(traffic.moved_at, since) >= patience]
        deaf.sort(key=lambda connection: all_traffic[connection].moved_at)
        more = len(deaf) if is_closing else 0 if self._policy.waits else max(0, len(deaf) - _MOST_DEAF)
        return deaf[:more]

    def is_quiet(self) -> bool:
        """Return True if a closing publisher has waited long enough for peers that take nothing."""
        return time.monotonic() - max(self.moved_at, self.closing_since) >= PATIENCE_S + 4 * LOOK_S
