"""Sequence tracking against a reference that remembers every number."""

from __future__ import annotations

from blackbox_feeds.io.sequence import Sequence, arrive, enter_session, notice_reset
from blackbox_feeds.io.statistics import InputStatistics, new_counts, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples

DATAGRAMS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 6)), max_size=60)


@settings(max_examples=examples(300))
@given(DATAGRAMS)
def test_each_message_is_taken_once_whatever_the_order(datagrams: list[tuple[int, int]]) -> None:
    sequence, counts = Sequence(), new_counts()
    taken: list[int] = []
    sent = 0
    first_of_all = datagrams[0][0] if datagrams else 0
    for first, count in datagrams:
        enter_session(sequence.address, counts, 1, 1, first)
        skip, take = arrive(sequence.address, counts, first, count)
        assert skip >= 0
        assert skip + take <= count
        taken += range(first + skip, first + skip + take)
        sent += count
    told = snapshot(counts)
    assert len(set(taken)) == len(taken)
    assert len(taken) + told.duplicates == sent
    end = max((first + count for first, count in datagrams), default=0)
    assert set(taken) <= set(range(first_of_all, end))
    assert told.missing == end - first_of_all - len(taken)


def test_two_lines_that_each_lose_something_lose_nothing_together() -> None:
    sequence, counts = Sequence(), new_counts()
    taken: list[int] = []
    line_a = [(1, 3), (4, 3), (10, 3), (13, 3)]
    line_b = [(1, 3), (4, 3), (7, 3), (13, 3)]
    for a, b in zip(line_a, line_b, strict=True):
        for first, count in (a, b):
            enter_session(sequence.address, counts, 1, 0, first)
            skip, take = arrive(sequence.address, counts, first, count)
            taken += range(first + skip, first + skip + take)
    assert sorted(taken) == list(range(1, 16))
    assert snapshot(counts) == InputStatistics(sessions=1, gaps=1, late=3, duplicates=9)


def test_a_heartbeat_shows_a_loss_before_it() -> None:
    sequence, counts = Sequence(), new_counts()
    enter_session(sequence.address, counts, 1, 0, 1)
    assert arrive(sequence.address, counts, 1, 5) == (0, 5)
    assert arrive(sequence.address, counts, 9, 0) == (0, 0)
    assert snapshot(counts) == InputStatistics(sessions=1, gaps=1, missing=3)


def test_another_session_starts_anew_without_a_gap() -> None:
    sequence, counts = Sequence(), new_counts()
    for session, first in ((1, 100), (2, 7)):
        enter_session(sequence.address, counts, session, 0, first)
        assert arrive(sequence.address, counts, first, 2) == (0, 2)
    assert snapshot(counts) == InputStatistics(sessions=2)


def test_a_sequence_that_starts_again_is_not_a_duplicate_but_an_old_copy_is() -> None:
    sequence, counts = Sequence(), new_counts()
    taken = []
    for first, send_time in ((1, 10), (3, 20), (1, 10), (3, 20), (1, 30), (3, 40), (1, 30)):
        enter_session(sequence.address, counts, 1, 1, first)
        notice_reset(sequence.address, counts, first, send_time)
        taken.append(arrive(sequence.address, counts, first, 2)[1])
    assert taken == [2, 2, 0, 0, 2, 2, 0]
    assert snapshot(counts) == InputStatistics(sessions=1, resets=1, duplicates=6)


def test_only_the_newest_gaps_are_remembered() -> None:
    sequence, counts = Sequence(), new_counts()
    enter_session(sequence.address, counts, 1, 0, 0)
    for first in range(0, 400, 4):
        arrive(sequence.address, counts, first, 2)
    late = [arrive(sequence.address, counts, first + 2, 2)[1] for first in range(0, 396, 4)]
    assert late == [0] * 35 + [2] * 64
    assert snapshot(counts).missing == 70
