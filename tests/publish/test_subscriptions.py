"""Wanted keys after any changes of filters and keys, and limits on filters."""

from __future__ import annotations

import itertools
import threading
from random import Random
from typing import Any

import msgspec
import numpy
import pytest
from numba import njit

from blackbox import Feed
from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY, HEARTBEAT_KEY, PATH_KEY, TAP_KEY
from blackbox.publish.listeners.demand import Demand
from blackbox.publish.listeners.peers import is_put_in_force
from blackbox.publish.listeners.subscription_reader import _matters
from blackbox.publish.listeners.wanted import WantedKeys
from tests.threads import in_threads

EPOCH = 7


def made(key_bytes: int, lines: int = 1, keys: int = 1_000) -> WantedKeys:
    feed = Feed.local("publisher", slices=1, lines=lines, key_bytes=key_bytes)
    return WantedKeys(msgspec.structs.replace(feed, max_topics=keys), 0, EPOCH, Demand())


def tell(subscriptions: WantedKeys, what: bytes, prefix: bytes, line: int = 0, fd: int = -1) -> None:
    subscriptions.note(line, fd, what + prefix, 1 + len(prefix), 0)


def ask(subscriptions: WantedKeys, nonce: bytes, line: int = 0, fd: int = -1) -> None:
    tell(subscriptions, b"\1", CONFIRM_KEY + nonce, line, fd)


def confirm(subscriptions: WantedKeys, nonce: bytes, line: int = 0) -> None:
    confirmations = subscriptions.confirmations
    confirmations.confirmed(confirmations.asked[line, CONFIRM_KEY + nonce])


def acceptance(nonce: bytes, line: int = 0) -> bytes:
    return ACCEPT_KEY + nonce + EPOCH.to_bytes(8, "little") + bytes([line])


def accept(subscriptions: WantedKeys, nonce: bytes, line: int = 0) -> None:
    """Ask for a confirmation that is sent and accepted."""
    with subscriptions.changed:
        ask(subscriptions, nonce, line)
        confirm(subscriptions, nonce, line)
        tell(subscriptions, b"\1", acceptance(nonce, line), line)


@pytest.mark.parametrize("key_bytes", [0, 1, 3, 8])
def test_a_key_is_wanted_while_a_filter_of_any_connection_of_any_line_matches_it(key_bytes: int) -> None:
    random = Random(key_bytes)
    subscriptions = made(key_bytes, lines=2)
    has: dict[tuple[int, int], set[bytes]] = {(line, fd): set() for line in range(2) for fd in (-1, 5, 6)}

    def text() -> bytes:
        # A small alphabet with padding and sign bytes, so that filters match keys.
        return bytes(random.choice(b"A\xff\x80") for _ in range(random.randint(0, key_bytes)))

    seen = set()
    for _ in range(600):
        (line, fd), prefix, choice = random.choice(list(has)), text(), random.random()
        if choice < 0.1 and prefix not in subscriptions.keys:
            subscriptions.add_key(prefix)
        elif choice < 0.15 and fd >= 0:
            if (gone := subscriptions.peer(line, fd)) is not None:
                subscriptions.forget(gone)
            has[line, fd].clear()
        elif fd < 0 and (choice < 0.6) == (prefix in has[line, fd]):
            continue  # subscribers without a connection are trusted to change a filter once
        elif choice < 0.6:
            tell(subscriptions, b"\1", prefix, line, fd)
            has[line, fd].add(prefix)
        else:
            tell(subscriptions, b"\0", prefix, line, fd)
            has[line, fd].discard(prefix)
        distinct = [set().union(*(has[line, fd] for fd in (-1, 5, 6))) for line in range(2)]
        for key, number in subscriptions.keys.items():
            matches = sum(key.startswith(each) for each in itertools.chain(*distinct))
            assert subscriptions.wanted[number] == matches
            seen.add(matches > 0)
        assert [subscriptions.held(line, wants=False)[1] for line in range(2)] == list(map(len, distinct))
    assert seen == {True, False}


def test_unlimited_subscriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.publish.listeners.confirmations._MOST_ASKED", 512)
    monkeypatch.setattr("blackbox.publish.listeners.confirmations._MOST_ANSWERED", 512)
    subscriptions = made(2)
    for number in range(1_600):
        nonce = number.to_bytes(8, "little")
        ask(subscriptions, nonce)
        if number % 2:
            confirm(subscriptions, nonce)
        if number % 4 == 3:
            tell(subscriptions, b"\1", acceptance(nonce))
    assert len(subscriptions.confirmations.asked) == 511, "the last one was confirmed"
    assert len(subscriptions.confirmations.answered) == 400
    assert subscriptions.subscriber_count() == 400
    for number in range(1_600):
        nonce = number.to_bytes(8, "little")
        ask(subscriptions, nonce, fd=9)
        confirm(subscriptions, nonce)
    assert len(subscriptions.confirmations.answered) == 512
    tell(subscriptions, b"\1", HEARTBEAT_KEY)
    assert subscriptions.subscribers(b"AA") == 0


def test_subscribers_on_inproc_count_once_they_have_accepted() -> None:
    subscriptions = made(2)
    tell(subscriptions, b"\1", b"AA")
    assert subscriptions.subscribers(b"AA") == 1, "a plain SUB socket"
    tell(subscriptions, b"\1", HEARTBEAT_KEY)
    assert subscriptions.subscribers(b"AA") == 0
    for number in range(2):
        accept(subscriptions, bytes([number]) * 8)
    assert subscriptions.subscribers(b"AA") == 2


@njit
def matters(data: int, size: int) -> Any:
    return _matters(data, size)


@pytest.mark.parametrize(
    "prefix", [b"", b"A", b"AAPL", b"\0", HEARTBEAT_KEY, PATH_KEY, TAP_KEY, CONFIRM_KEY + bytes(8), CONFIRM_KEY, b"\0x"]
)
def test_compiled_code_and_python_put_the_same_filters_in_force(prefix: bytes) -> None:
    change = numpy.frombuffer(b"\1" + prefix, numpy.uint8)
    assert matters(change.ctypes.data, len(change)) == is_put_in_force(prefix)


def test_no_request_of_thousands_at_once_is_dropped() -> None:
    subscriptions = made(2)
    for fd in range(10_000):
        ask(subscriptions, fd.to_bytes(8, "little"), fd=fd)
    assert [asked.fd for asked in subscriptions.confirmations.asked.values()] == list(range(10_000))


def test_subscribers_are_counted_while_others_come_and_go() -> None:
    subscriptions = made(2)
    over = threading.Event()

    def come_and_go() -> None:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            accept(subscriptions, number.to_bytes(8, "little"))

    with in_threads(come_and_go):
        while subscriptions.subscriber_count() < 3_000:
            pass
        over.set()


@pytest.mark.parametrize("answered", ["before", "between", "after"])
def test_a_reconnected_subscriber_counts_after_its_old_connection_closes(answered: str) -> None:
    subscriptions, nonce = made(2), bytes(8)

    def answer(fd: int) -> None:
        confirm(subscriptions, nonce)
        tell(subscriptions, b"\1", acceptance(nonce), fd=fd)

    ask(subscriptions, nonce, fd=5)
    if answered == "before":
        answer(5)
    ask(subscriptions, nonce, fd=6)
    if answered != "after":
        answer(6)
    gone = subscriptions.peer(0, 5)
    assert gone is not None
    subscriptions.forget(gone)
    if answered == "after":
        answer(6)
    assert subscriptions.subscriber_count() == 1


def test_acceptances_of_the_other_line_do_not_count_as_useless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.publish.listeners.subscriptions.MOST_USELESS", 4_096)
    subscriptions = made(2, lines=2)
    for number in range(1_000):
        nonce = number.to_bytes(8, "little")
        if number % 2:
            accept(subscriptions, nonce, line=1)
        else:
            ask(subscriptions, nonce, line=1)
            confirm(subscriptions, nonce, line=1)
        tell(subscriptions, b"\1", acceptance(nonce, 1), line=0, fd=5)
    assert not subscriptions.unwelcome
    assert subscriptions.subscriber_count() == 500
    for number in range(1_000, 1_300):
        tell(subscriptions, b"\1", acceptance(number.to_bytes(8, "little"), 1), line=0, fd=5)
    assert list(subscriptions.unwelcome) == [(5, 0)], "acceptances of unrequested nonces are useless"
