"""Kill and stop processes that share memory at any moment: no torn message is delivered, no other process waits."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random

from tests.torture import killed_publishers, killed_subscribers
from tests.torture.outcome import Outcome


def attack(random: Random, seconds: float) -> Outcome:
    """Attack readers of a publisher that drops, of one that waits, and then publishers."""
    outcomes = [killed_subscribers.attack_over("shm", random, seconds / 3, wait=False)]
    before = _held()
    outcomes.append(killed_subscribers.attack_over("shm", random, seconds / 3, wait=True))
    outcomes.append(killed_publishers.attack_over("shm", random, seconds / 3))
    if (after := _held()) != before:
        outcomes[0].found.append(f"open files and mappings of shared memory were {after}, {before} at the start")
    tried, found = sum(outcome.tried for outcome in outcomes), [found for each in outcomes for found in each.found]
    return Outcome(tried, "killed and stopped processes", found)


def _held() -> tuple[int, int]:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("memfd:blackbox")
