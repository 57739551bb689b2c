"""Two hubs on hosts that lose power: no acknowledged put is lost, and a hub that returns follows on its own."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox.archive.files.format import FILE_HEAD_BYTES
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.hub.pairs import PATIENCE_S, ROLES, Hubs, pair_feed, places_once
from tests.hub.power import KEEP
from tests.hub.test_pair import LARGE_BYTES, OTHER, Writer


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Hubs]:
    with Hubs(pair_feed(), KEEP) as hubs:
        yield hubs


def wait_for_puts(writers: list[Writer]) -> None:
    """Wait until each writer has another acknowledged put."""
    before = [len(writer.answered) for writer in writers]
    wait_until(lambda: all(len(w.answered) > n for w, n in zip(writers, before, strict=True)), PATIENCE_S)


def assert_both_have(hubs: Hubs, writers: list[Writer]) -> None:
    """End all; assert that each hub has every acknowledged put once, at its place."""
    hubs.wait_for_step()
    for writer in writers:
        writer.end()
    hubs.wait_for_step()
    hubs.end_both()
    places_once(hubs, [each for writer in writers for each in writer.answered])
    for role in ROLES:
        assert hubs.published_by(role) == hubs.published()


SEEDS = first_of(range(3))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_that_loses_power_repeatedly_follows_and_has_all(tmp_path: Path, hubs: Hubs, seed: int) -> None:
    """The slices lose different parts of their ends."""
    chance = random.Random(seed)
    hubs.begin_both(tmp_path)
    writers = [Writer(hubs, name) for name in ("one", "two")]
    for _ in range(4 if seed else 2):
        leads = hubs.wait_for_step()
        wait_for_puts(writers)
        role = chance.choice(ROLES)
        hubs.cut_power(role, chance)
        if role == leads and chance.random() < 0.5:
            hubs.wait_for(**{role: "ended", OTHER[role]: "active"})
        hubs.begin(role)
    assert_both_have(hubs, writers)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_hosts_that_lose_power_at_once_have_all_synced_puts(tmp_path: Path, hubs: Hubs, seed: int) -> None:
    chance = random.Random(seed)
    hubs.begin_both(tmp_path)
    writers = [Writer(hubs, name, "synced") for name in ("one", "two")]
    for _ in range(2):
        hubs.wait_for_step()
        wait_for_puts(writers)
        for role in ROLES:
            hubs.cut_power(role, chance)
        for role in chance.sample(ROLES, 2):
            hubs.begin(role)
    assert_both_have(hubs, writers)


@pytest.mark.long
def test_a_hub_with_an_empty_disk_fetches_everything(tmp_path: Path, hubs: Hubs) -> None:
    hubs.begin_both(tmp_path)
    writers = [Writer(hubs, "one")]
    wait_until(lambda: any(len(payload) == LARGE_BYTES for _, payload in writers[0].answered), PATIENCE_S)
    hubs.kill("backup")
    for journal in (tmp_path / "backup").rglob("*.journal"):
        os.truncate(journal, FILE_HEAD_BYTES)
        journal.with_suffix(".index").unlink(missing_ok=True)
    hubs.begin("backup")
    assert_both_have(hubs, writers)
