"""Two hubs of which hosts lose power: nothing that was answered is lost, and who comes back follows by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox.testing import wait_until
from tests.hub.pairs import PATIENCE_S, ROLES, Hubs, pair_feed, places_once
from tests.hub.power import KEEP
from tests.hub.test_pair import OTHER, Writer


@pytest.fixture(scope="module")
def hubs() -> Iterator[Hubs]:
    with Hubs(pair_feed(), KEEP) as hubs:
        yield hubs


@pytest.fixture(autouse=True)
def closed(hubs: Hubs) -> Iterator[None]:
    yield
    hubs.close()


def assert_both_have(hubs: Hubs, answered: list[tuple[tuple[int, int, int], bytes]]) -> None:
    """End both; each has all that was answered, where that was said, each once."""
    hubs.wait_for_step()
    hubs.end_both()
    places_once(hubs, answered)
    for role in ROLES:
        assert hubs.published_by(role) == hubs.published()


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_that_loses_power_again_and_again_follows_and_has_all(tmp_path: Path, hubs: Hubs, seed: int) -> None:
    """Its outbox, which is synced often, may have messages that its put log, which is not, has lost."""
    chance = random.Random(seed)
    hubs.begin_both(tmp_path)
    writers = [Writer(hubs, name) for name in ("one", "two")]
    for _ in range(4):
        leads = hubs.wait_for_step()
        before = [len(writer.answered) for writer in writers]
        wait_until(lambda: all(len(w.answered) > n for w, n in zip(writers, before, strict=True)), PATIENCE_S)
        role = chance.choice(ROLES)
        hubs.cut_power(role, chance)
        if role == leads and chance.random() < 0.5:
            hubs.wait_for(**{role: "ended", OTHER[role]: "active"})
        hubs.begin(role)
    hubs.wait_for_step()
    for writer in writers:
        writer.end()
    assert_both_have(hubs, [each for writer in writers for each in writer.answered])


@pytest.mark.parametrize("seed", SEEDS)
def test_two_hosts_that_lose_power_at_once_have_what_was_answered_as_synced(
    tmp_path: Path, hubs: Hubs, seed: int
) -> None:
    chance = random.Random(seed)
    hubs.begin_both(tmp_path)
    writers = [Writer(hubs, name, "synced") for name in ("one", "two")]
    for _ in range(2):
        hubs.wait_for_step()
        before = [len(writer.answered) for writer in writers]
        wait_until(lambda: all(len(w.answered) > n for w, n in zip(writers, before, strict=True)), PATIENCE_S)
        for role in ROLES:
            hubs.cut_power(role, chance)
        for role in chance.sample(ROLES, 2):
            hubs.begin(role)
    hubs.wait_for_step()
    for writer in writers:
        writer.end()
    assert_both_have(hubs, [each for writer in writers for each in writer.answered])
