"""Schedules of faults of a pair of hubs in virtual time: it answers as one register per topic, and loses nothing."""

from __future__ import annotations

import pytest

from tests.simulation.pair_world import pair_finding_of

SCHEDULES = 100
FOUND = (920_036, 920_362, 941_303)
"""Schedules that failed once: the passive hub had a later epoch; after a power cut both hubs led, twice."""


@pytest.mark.parametrize("first", range(0, 600, SCHEDULES))
def test_two_hubs_answer_as_one_that_loses_nothing(first: int) -> None:
    assert [finding for finding in map(pair_finding_of, range(first, first + SCHEDULES)) if finding] == []


@pytest.mark.parametrize("seed", FOUND)
def test_a_schedule_that_failed_once_passes(seed: int) -> None:
    assert not pair_finding_of(seed)
