"""Sequence tracking compared with a reference that stores every number."""

from __future__ import annotations

from typing import Any

import pytest
from blackbox_feeds.io import sequence as sequences
from blackbox_feeds.io.sequence import Sequence, enter_session, next_run, notice_gap, notice_reset
from blackbox_feeds.io.statistics import InputStatistics, new_counts, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples

DATAGRAMS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=60)


def fresh(room: int = 1_000) -> tuple[Sequence, Any]:
    sequence = Sequence()
    sequence.make_room(room)
    return sequence, new_counts()


def runs_of(sequence: Sequence, counts: Any, first: int, count: int, row: int = 0) -> list[int]:
    """Return the numbers of a datagram that are accepted."""
    notice_gap(sequence.address, counts, first, row)
    taken: list[int] = []
    done = 0
    while done < count:
        skip, take = next_run(sequence.address, counts, first, count, done)
        assert skip >= 0
        assert take >= 0
        if take == 0:
            break
        taken += range(first + done + skip, first + done + skip + take)
        done += skip + take
    assert done <= count
    return taken


@settings(max_examples=examples(300))
@given(DATAGRAMS, st.integers(1, 20))
def test_every_message_is_taken_once_and_missing_ones_are_reported(
    datagrams: list[tuple[int, int]], chunk: int
) -> None:
    sequence, counts = fresh()
    taken: list[int] = []
    sent = gaps = late = 0
    first_of_all = datagrams[0][0] if datagrams else 1
    expected = first_of_all
    model: list[tuple[int, set[int]]] = [(0, set(range(1, first_of_all)))]
    reported: list[tuple[int, int]] = []
    modelled: list[tuple[int, int]] = []
    for number, (first, count) in enumerate(datagrams):
        enter_session(sequence.address, counts, 1, 1, first)
        if first > expected:
            gaps += 1
            model.append((number, set(range(expected, first))))
        new = runs_of(sequence, counts, first, count, number)
        late += sum(each < expected for each in new)
        expected = max(expected, first + count)
        for _, missing in model[1:]:
            missing -= set(range(first, first + count))
        taken += new
        sent += count
        if (number + 1) % chunk == 0:
            reported += sequence.report()
            modelled += [(row, len(missing)) for row, missing in model if missing]
            model = [(0, set())]
    reported += sequence.report()
    modelled += [(row, len(missing)) for row, missing in model if missing]
    statistics = snapshot(counts)
    assert (statistics.gaps, statistics.late) == (gaps, late)
    assert len(set(taken)) == len(taken)
    assert len(taken) + statistics.duplicates + statistics.too_late == sent
    wanted = {number for first, count in datagrams for number in range(first, first + count)}
    assert set(taken) == {number for number in wanted if number >= first_of_all}
    assert statistics.missing == expected - first_of_all - len(taken)
    assert statistics.earlier == first_of_all - 1
    assert reported == modelled


def test_a_later_session_that_does_not_begin_at_1_has_a_gap_at_its_start() -> None:
    sequence, counts = fresh()
    for row, (session, first) in enumerate(((1, 1), (2, 1), (3, 500))):
        enter_session(sequence.address, counts, session, 0, first)
        assert runs_of(sequence, counts, first, 2, row) == [first, first + 1]
    assert snapshot(counts) == InputStatistics(sessions=3, gaps=1, missing=499)
    assert sequence.report() == ((2, 499),)


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_returning_session_keeps_its_gaps_and_duplicates(is_reported: bool) -> None:
    sequence, counts = fresh()
    reported: list[tuple[int, int]] = []
    for session, first, taken in ((1, 1, 1), (1, 5, 1), (2, 1, 1), (1, 3, 1), (2, 1, 0), (1, 5, 0), (1, 6, 1)):
        enter_session(sequence.address, counts, session, 0, first)
        assert len(runs_of(sequence, counts, first, 1)) == taken
        reported += sequence.report() if is_reported else ()
    reported += sequence.report()
    assert snapshot(counts) == InputStatistics(sessions=2, gaps=1, missing=2, late=1, duplicates=2)
    assert reported == [(0, 3 if is_reported else 2)]


def test_forgotten_sessions_cause_no_false_gap() -> None:
    sequence, counts = fresh()
    many = sequences.SESSIONS_KEPT + 2
    for first in (1, 2):
        for session in range(many):
            enter_session(sequence.address, counts, session, 0, first)
            assert runs_of(sequence, counts, first, 1) == [first]
    assert snapshot(counts) == InputStatistics(sessions=2 * many)
    assert sequence.report() == ()


def test_a_sequence_that_starts_again_is_not_a_duplicate_but_an_old_copy_is() -> None:
    sequence, counts = fresh()
    taken = []
    for first, send_time in ((1, 10), (3, 20), (1, 10), (3, 20), (1, 30), (3, 40), (1, 30)):
        enter_session(sequence.address, counts, 1, 1, first)
        notice_reset(sequence.address, counts, first, send_time)
        taken.append(len(runs_of(sequence, counts, first, 2)))
    assert taken == [2, 2, 0, 0, 2, 2, 0]
    assert snapshot(counts) == InputStatistics(sessions=1, resets=1, duplicates=6)


def test_too_many_open_gaps_are_still_counted() -> None:
    sequence, counts = fresh(2_000)
    many = sequences.RANGES + 36
    enter_session(sequence.address, counts, 1, 0, 1)
    for number in range(many):
        runs_of(sequence, counts, 1 + 4 * number, 2, number)
    late = [len(runs_of(sequence, counts, 3 + 4 * number, 2)) for number in range(many - 1)]
    assert late == [0] * 35 + [2] * sequences.RANGES
    assert snapshot(counts).missing == 70
    assert snapshot(counts).too_late == 70
    assert sequence.report() == tuple((1 + number, 2) for number in range(35))


def test_an_impossible_number_is_not_a_gap() -> None:
    sequence, counts = fresh()
    enter_session(sequence.address, counts, 1, 0, 1)
    runs_of(sequence, counts, 1, 1)
    assert runs_of(sequence, counts, 1 << 40, 1) == [1 << 40]
    assert snapshot(counts) == InputStatistics(sessions=1, resets=1)
    assert sequence.report() == ()
