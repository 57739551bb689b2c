"""Flip a bit in any file of a single or paired hub that was killed, closed or lost power: see `tests.hub.flips`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.hub.flips import WAYS, Left, try_flip
from tests.torture.outcome import Outcome


def attack(random: Random, seconds: float) -> Outcome:
    """Flip bits one at a time and restart the hubs: no acknowledged message is lost silently, and no damage spreads."""
    outcome = Outcome(0, "flipped bits of hubs")
    deadline = time.monotonic() + seconds
    with TemporaryDirectory() as directory:
        place = Path(directory)
        left: dict[str, Left] = {}
        while outcome.tried == 0 or time.monotonic() < deadline:
            way = random.choice(list(WAYS))
            if way not in left:
                left[way] = WAYS[way](place / way)
            seed = random.randrange(1 << 30)
            outcome.tried += 1
            try:
                try_flip(left[way], place / "tried", Random(seed))
            except AssertionError as error:
                outcome.found.append(f"{way}, seed {seed}: {error}")
            shutil.rmtree(place / "tried")
    return outcome
