"""Schedules of faults in virtual time: each message is delivered once and in order, or reported as lost once."""

from __future__ import annotations

import pytest

from tests.examples import first_of
from tests.simulation.world import finding_of

SCHEDULES = 250


@pytest.mark.parametrize("first", first_of(range(0, 2_000, SCHEDULES), keep=2))
def test_no_message_is_lost_unreported_or_delivered_twice(first: int) -> None:
    assert [finding for finding in map(finding_of, range(first, first + SCHEDULES)) if finding] == []
