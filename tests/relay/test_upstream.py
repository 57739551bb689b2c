"""Random schedules of an `Upstream` in virtual time, against sources that are plain sets of prefixes."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from random import Random
from typing import Any, NamedTuple

from blackbox.block.form.ack_format import Acknowledgement
from blackbox.block.form.format import (
    ACCEPT_KEY,
    CONFIRM_KEY,
    HEARTBEAT_KEY,
    PATH_KEY,
    RECORDED_KEY,
    SHARED_KEY,
    WANT_KEY,
)
from blackbox.publish.listeners.peers import Why
from blackbox.publish.listeners.subscriptions import SUBSCRIBE, UNSUBSCRIBE
from blackbox.services.relay.requests_below import ForwardedAcks
from blackbox.services.relay.requests_up import Upstream
from tests.examples import examples

SCHEDULES = examples(1_200)
STEPS = 150
ACK = Acknowledgement(b"", 1, 0, 0, 0, 0, "recorder")
BEAT_S = 1.0
MOST_REFUSALS = 2
"""Refused prefixes per answer."""
PREFIXES = [kind + text for kind in (b"", WANT_KEY) for text in (b"", b"A", b"AA", b"AB", b"AAA", b"B", b"BA", b"\xff")]
KEYS = [b"", b"A", b"AAAA", b"AB", b"BB", b"\xff\xff", b"D"]
ALWAYS = {HEARTBEAT_KEY, PATH_KEY}


def is_covered(prefix: bytes, by: set[bytes]) -> bool:
    if prefix.startswith(WANT_KEY):
        return any(each.startswith(WANT_KEY) and prefix.startswith(each) for each in by)
    return any(each[:1] != b"\0" and prefix.startswith(each) for each in by)


def smallest(wanted: set[bytes]) -> set[bytes]:
    return {each for each in wanted if not is_covered(each, wanted - {each})}


def is_in(ranges: Any, key: bytes) -> bool:
    """Return True if a key is in ranges as returned by `ranges_of`."""
    word = int.from_bytes(key.ljust(8, b"\0"), "big") - (1 << 63)
    place = bisect_right(ranges[0], word)
    return place > 0 and word <= int(ranges[1][place - 1])


class Said(NamedTuple):
    """A message from a source. `is_unwanted`: data that passes only because the source ignored withdrawals."""

    what: str
    nonce: int
    refused: dict[bytes, Why]
    key: bytes = b""
    is_unwanted: bool = False


class Source:
    """A publisher, or a relay above. `ignores`: share of withdrawals without effect."""

    def __init__(self, random: Random) -> None:
        self.forbidden = set(random.sample(PREFIXES, random.choice([0, 0, 1, 5])))
        self.most = random.choice([3, 99, 99])
        self.random, self.ignores = random, random.choice([0.0, 0.0, 0.3, 1.0])
        self.is_up, self.is_frozen, self.has_ended, self.epoch = True, False, False, 1


class Connection:
    """One connection to a source.

    `in_force` and `refused`: expected at the source; `ignored`: withdrawn without effect.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.is_alive = source, True
        self.up, self.down = deque[bytes](), deque[Said]()
        self.ignored = set[bytes]()
        self.in_force, self.refused, self.ever_refused = set[bytes](), set[bytes](), set[bytes]()
        self.asked = b""

    @property
    def covering(self) -> set[bytes]:
        return {each.removeprefix(SHARED_KEY) for each in self.in_force}

    @property
    def requested(self) -> set[bytes]:
        return self.covering | {each.removeprefix(SHARED_KEY) for each in self.refused}

    def take(self, message: bytes) -> None:
        """Let the source read one message, and answer."""
        what, prefix = message[:1], message[1:]
        if prefix.startswith(CONFIRM_KEY):
            self.asked = prefix if what == SUBSCRIBE else b""
        elif what == UNSUBSCRIBE:
            if prefix in self.in_force and prefix[:1] != b"\0" and self.source.random.random() < self.source.ignores:
                self.ignored.add(prefix)
            self.in_force.discard(prefix)
            self.refused.discard(prefix)
        elif not prefix.startswith((ACCEPT_KEY, RECORDED_KEY)) and prefix not in ALWAYS and self.refuses(prefix):
            self.refused.add(prefix)
            self.ever_refused.add(prefix.removeprefix(SHARED_KEY))
        else:
            self.in_force.add(prefix)
            self.ignored.discard(prefix)
        self.answer()

    def refuses(self, prefix: bytes) -> bool:
        count = sum(each[:1] != b"\0" or each.startswith((WANT_KEY, SHARED_KEY)) for each in self.in_force)
        return prefix.removeprefix(SHARED_KEY) in self.source.forbidden or count >= self.source.most

    def answer(self) -> None:
        if self.asked and not self.source.has_ended:
            refused = dict.fromkeys(sorted(self.refused)[:MOST_REFUSALS], Why.NO_RIGHT)
            self.say("answer", refused)
            self.asked = b""

    def say(self, what: str, refused: dict[bytes, Why] | None = None) -> None:
        nonce = int.from_bytes(self.asked.removeprefix(CONFIRM_KEY), "little")
        self.down.append(Said(what, nonce, refused or {}))

    def publish(self, key: bytes) -> None:
        is_wanted = any(key.startswith(each) for each in self.in_force if each not in ALWAYS)
        if not self.source.has_ended and (is_wanted or any(map(key.startswith, self.ignored))):
            self.down.append(Said("data", 0, {}, key, not is_wanted))


class Peer:
    """A subscriber below."""

    def __init__(self) -> None:
        self.wants, self.covered_by_ask, self.confirmed = set[bytes](), set[bytes](), set[bytes]()
        self.after: int | None = None
        """Version that it waits to be confirmed, or None."""


class World:
    """A relay with its socket, sources and peers."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.sources = {f"tcp://{number}": Source(random) for number in range(random.choice([1, 1, 2, 3]))}
        self.hold_s, self.nonces = random.choice([0.0, 4.0]), 0
        self.now = self.changed_at = 1_000.0
        self.heard_at = 0.0
        self.upstream = Upstream(self.sources, self.hold_s, BEAT_S, "relay", self.new_nonce)
        self.acks = ForwardedAcks([self.upstream])
        self.upstream.lose(self.now)
        self.peers = [Peer() for _ in range(3)]
        self.recorders = set[bytes]()
        self.asked = set[bytes]()
        """Requests that libzmq repeats on a new connection."""
        self.connection = self.known = None if random.random() < 0.5 else self.connect()
        """The actual connection, and the one that the relay knows of."""
        self.old = deque[Connection]()
        self.news = deque[Connection | None]([self.connection] if self.connection else [])
        self.has_ended = self.in_memory = False
        self.flush()

    def new_nonce(self) -> bytes:
        self.nonces += 1
        return self.nonces.to_bytes(8, "little")

    @property
    def source(self) -> Source:
        return self.sources[self.upstream.source.address]

    @property
    def wanted(self) -> set[bytes]:
        return set[bytes]().union(*(peer.wants for peer in self.peers))

    # The socket

    def connect(self) -> Connection:
        connection = Connection(self.source)
        again = sorted(self.asked)
        connection.up.extend(SUBSCRIBE + each for each in self.random.sample(again, len(again)))
        return connection

    def break_(self) -> None:
        """Lose all messages to the source, and the last ones from it."""
        if (connection := self.connection) is not None:
            connection.up.clear()
            for _ in range(self.random.randrange(len(connection.down) + 1)):
                connection.down.pop()
            self.old.append(connection)
            self.connection = None
            self.news.append(None)

    def reconnect(self) -> None:
        if self.connection is None and self.source.is_up:
            self.connection = self.connect()
            self.news.append(self.connection)

    def flush(self) -> None:
        for message in self.upstream.out:
            what, prefix = message[:1], message[1:]
            assert (prefix in self.asked) is (what == UNSUBSCRIBE), f"{message!r} changes nothing"
            self.asked ^= {prefix}
            if self.connection is not None:
                self.connection.up.append(message)
        self.upstream.out.clear()
        self.awaited = int.from_bytes(self.upstream.confirmations.nonce, "little")

    def climb(self, count: int) -> None:
        """Let the source read up to `count` messages."""
        connection = self.connection
        if connection is None or connection.source.is_frozen:
            return
        while connection.up and count:
            count -= 1
            connection.take(connection.up.popleft())
            if connection is not self.known:
                continue
            for peer in self.peers:
                settled = peer.confirmed - self.upstream.refused.keys()
                lost = {each for each in settled - connection.ever_refused if not is_covered(each, connection.covering)}
                assert not lost, f"{lost} were confirmed, but withdrawn while a peer wants them"

    # The relay's thread

    def turn(self, count: int = 99) -> None:
        """Receive some blocks, pass them to the upstream, and do what it decides."""
        answers = list[Said]()
        ranges = self.upstream.expected.ranges
        for connection in (*self.old, self.connection):
            while connection is not None and connection.down and count:
                count -= 1
                self.heard_at = self.now
                said = connection.down.popleft()
                if said.what != "data":
                    if said.what != "answer" or said.nonce == self.awaited != 0:
                        answers.append(said)
                elif ranges is not None and not is_in(ranges, said.key):
                    assert said.is_unwanted or connection is not self.known, f"{said.key!r} is wanted"
                    self.upstream.note_unwanted(said.key)
        while self.news:
            self.known = self.news.popleft()
            (self.upstream.lose if self.known is None else self.upstream.connect)(self.now)
            self.changed_at, self.heard_at, self.has_ended = self.now, 0.0, False
            for peer in self.peers:
                peer.confirmed.clear()
        for what, _, refused, *_ in answers:
            self.has_ended = what == "end" or (self.has_ended and what == "answer")
            if what == "begin":
                self.upstream.begin_epoch()
                assert not self.upstream.is_confirmed(0), "confirmed by an earlier epoch"
            elif what == "answer":
                self.take_answer(refused)
            self.upstream.note_ended(self.has_ended)
        self.switch_if_silent()
        waits = any(peer.after is not None and not self.upstream.is_confirmed(peer.after) for peer in self.peers)
        self.upstream.look(self.now, waits)
        self.flush()
        self.answer_below()

    def take_answer(self, refused: dict[bytes, Why]) -> None:
        if not refused:
            self.upstream.answer(self.now, 1, 0)
            return
        for prefix in self.upstream.refuse(refused):
            for peer in self.peers:
                peer.confirmed.discard(prefix)

    def switch_if_silent(self) -> None:
        if not self.upstream.source.is_suspect(self.heard_at, self.now):
            return
        before = self.source
        is_answered = self.random.choice([None, True]) if before.is_up else False
        if why := self.upstream.source.why_switch(self.heard_at, self.now, False, is_answered):
            if why == "sends withdrawn keys":
                assert before.ignores, "dropped although it ignored no withdrawals"
            else:
                assert why == ("is silent" if self.upstream.source.is_connected else "cannot be reached")
                assert self.now - max(self.heard_at, self.changed_at) >= 3 * BEAT_S, "no time to connect"
            self.break_()
            self.news.clear()
            self.changed_at = self.now
            self.known = None
            self.upstream.switch(why, self.now)
            assert len(self.sources) == 1 or self.source is not before

    def answer_below(self) -> None:
        assert not self.has_ended or not (self.upstream.confirmations.nonce or self.upstream.is_confirmed(0)), (
            "a nonce without a source"
        )
        for peer in self.peers:
            if peer.after is None or not self.upstream.is_confirmed(peer.after):
                continue
            assert self.known is not None, "confirmed without a connection"
            assert self.upstream.refused.keys() <= self.known.ever_refused, "refused by no source"
            peer.after = None
            if not peer.wants & self.upstream.refused.keys():
                uncovered = {each for each in peer.covered_by_ask if not is_covered(each, self.known.covering)}
                assert not uncovered, f"{uncovered} were confirmed below before above"
                peer.confirmed |= peer.covered_by_ask

    # Steps

    def want(self) -> None:
        peer, prefix = self.random.choice(self.peers), self.random.choice(PREFIXES)
        if prefix not in self.wanted:
            self.upstream.want(prefix, 1, self.now)
        peer.wants.add(prefix)

    def ask(self) -> None:
        peer = self.random.choice(self.peers)
        peer.after, peer.covered_by_ask = self.upstream.requested, set(peer.wants)

    def leave(self, peer: Peer, prefix: bytes) -> None:
        for prefixes in (peer.wants, peer.covered_by_ask, peer.confirmed):
            prefixes.discard(prefix)
        if prefix not in self.wanted:
            self.upstream.want(prefix, -1, self.now)

    def leave_one(self) -> None:
        peer = self.random.choice(self.peers)
        if peer.wants:
            self.leave(peer, self.random.choice(sorted(peer.wants)))

    def crash(self) -> None:
        peer = self.random.choice(self.peers)
        peer.after = None
        for prefix in sorted(peer.wants):
            self.leave(peer, prefix)

    def record(self) -> None:
        said = RECORDED_KEY + bytes([self.random.randrange(4)])
        if said in self.recorders:
            self.acks.withdraw(0, said)
        else:
            self.acks.note(0, said, ACK)
        self.recorders ^= {said}

    def move_data(self) -> None:
        self.in_memory = not self.in_memory
        self.upstream.read_in(self.in_memory)
        for peer in self.peers:
            peer.confirmed.clear()

    def beat(self) -> None:
        if self.connection is not None and not self.source.is_frozen:
            self.connection.say("beat")

    def publish(self) -> None:
        """Send data of some key."""
        if self.connection is not None and not self.source.is_frozen:
            self.connection.publish(self.random.choice(KEYS))

    def end_epoch(self) -> None:
        had_ended, self.source.has_ended = self.source.has_ended, True
        if not had_ended and self.connection is not None:
            self.connection.say("end")

    def begin_epoch(self) -> None:
        self.source.has_ended = False
        if self.connection is not None:
            self.connection.say("begin")
            self.connection.answer()

    def freeze(self) -> None:
        self.source.is_frozen = not self.source.is_frozen

    def die(self) -> None:
        """End or restart a source. The kernel may or may not report the lost connection."""
        source = self.source
        source.is_up = not source.is_up
        if not source.is_up and self.random.random() < 0.5:
            self.break_()

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 5.0, 40.0])

    def run(self) -> None:
        """Run a schedule, then let everything settle."""
        likely = [self.want, self.leave_one, self.ask, self.turn, self.beat, self.publish, self.reconnect, self.wait]
        rare = [self.crash, self.record, self.move_data, self.end_epoch, self.begin_epoch, self.freeze, self.die]
        for _ in range(STEPS):
            self.random.choice([*likely * 3, *rare, self.break_])()
            if self.random.random() < 0.7:
                self.climb(self.random.randrange(5))
            if self.random.random() < 0.5:
                self.turn(self.random.randrange(4))
        self.settle()

    def settle(self) -> None:
        for source in self.sources.values():
            source.is_up, source.is_frozen = True, False
        for _ in range(400):
            self.now += BEAT_S
            self.reconnect()
            if self.source.has_ended:
                self.begin_epoch()
            self.beat()
            if self.source.ignores and self.connection is not None:
                for key in KEYS:
                    self.connection.publish(key)
            self.climb(9_999)
            self.turn(9_999)
        self.check()

    def check(self) -> None:
        upstream, known = self.upstream, self.known
        assert known is not None
        assert known is self.connection
        assert all(peer.after is None for peer in self.peers), "a peer waits for ever"
        assert upstream.is_confirmed(upstream.version), "requests are not confirmed"
        refused = set(upstream.refused)
        assert refused <= known.ever_refused & self.wanted, "refused by no source, or not wanted"
        requested = smallest(self.wanted - refused)
        found = known.requested - ALWAYS - self.others()
        assert found == requested, f"{found} is active, {requested} wanted, {refused} refused"
        assert not known.refused or not upstream.filters, "a refusal was not reported"
        unwanted = {key for key in KEYS if is_covered(key, known.ignored) and not is_covered(key, requested)}
        assert self.in_memory or not unwanted, f"{unwanted} were withdrawn, but still arrive"
        assert all(each.startswith(SHARED_KEY) is self.in_memory for each in known.in_force & self.data())
        assert {each for each in self.asked if each.startswith(RECORDED_KEY)} == self.recorders
        accepted = [each for each in known.in_force if each.startswith(ACCEPT_KEY)]
        assert len(accepted) == bool(upstream.filters), "the source does not count this relay, or counts it twice"
        assert upstream.confirmations.nonce == b""

    def others(self) -> set[bytes]:
        return {each for each in self.asked if each.startswith((ACCEPT_KEY, RECORDED_KEY))}

    def data(self) -> set[bytes]:
        return {each for each in self.asked if each[:1] != b"\0" or each.startswith(SHARED_KEY)}


def finding_of(seed: int) -> str:
    try:
        World(seed).run()
    except AssertionError as error:
        return f"seed {seed}: {error}"
    return ""


def test_requests_below_are_active_above_before_they_are_confirmed() -> None:
    assert [finding for finding in map(finding_of, range(SCHEDULES)) if finding] == []
