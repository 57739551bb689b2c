"""Requests for lost messages: how large their parts are."""

from __future__ import annotations

from blackbox_feeds.live.requests import FIRST_DELAY_NS, MOST_PART, PARTS, GapRequests


def test_parts_are_as_large_as_the_datagrams_of_the_server_and_a_short_gap_makes_them_no_smaller() -> None:
    requests = GapRequests()
    assert requests.due((5, 6, 0), 0) == [(5, 1)]
    requests.answered(5, 1)
    assert requests.due((10, 10_010, 1), 1)[0] == (10, MOST_PART)
    requests.answered(10, 30)
    assert requests.due((40, 10_010, 1), 2) == []
    assert requests.due((40, 10_010, 1), 2 + FIRST_DELAY_NS) == [(40 + 30 * part, 30) for part in range(PARTS)]
    requests.answered(40, 30)
    assert requests.due((70, 10_010, 1), 3 + FIRST_DELAY_NS) == [(40 + 30 * PARTS, 30)]


def test_parts_of_a_long_gap_are_large_again_after_a_short_answer() -> None:
    requests = GapRequests()
    requests.due((10, 266, 0), 0)
    requests.answered(10, 1)
    assert requests.due((300, 60_300, 1), 1)[0] == (300, MOST_PART)


def test_parts_stay_large_for_a_server_that_answers_with_several_datagrams() -> None:
    requests = GapRequests()
    assert len(requests.due((10, 10_010, 0), 0)) == PARTS
    for first in range(10, 16):
        requests.answered(first, 1)
    assert requests.due((16, 10_010, 0), 1) == [(10 + PARTS * MOST_PART, MOST_PART)]
    assert requests.due((16, 10_010, 0), 1 + FIRST_DELAY_NS)[0] == (16, MOST_PART)
