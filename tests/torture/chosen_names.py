"""Topics chosen to collide in tables whose hash has no key, or mixes it in only at the start."""

from __future__ import annotations

import time
from random import Random

import numpy

from blackbox.native.tables.name_table import Numbering, number_of
from tests.native.test_name_table import chosen_names, longest_run
from tests.torture.outcome import Outcome

PAIRS = 12
MOST_SIDE_BY_SIDE = 400
"""Longest permitted run of adjacent names. With 2^12 names in 2^13 slots, chance makes runs of a few dozen."""


def attack(random: Random, seconds: float) -> Outcome:
    """Insert chosen names, each after a common prefix of random size, into a table; none may be far from its slot."""
    found: list[str] = []
    names = 0
    deadline = time.monotonic() + seconds
    while names == 0 or time.monotonic() < deadline:
        beginning = random.randbytes(8 * random.randrange(5))
        chosen = [beginning + name for name in chosen_names(PAIRS)]
        numbering = Numbering(len(chosen), len(chosen[0]))
        for name in chosen:
            text = numpy.frombuffer(name, numpy.uint8)
            number_of(numbering.at, text.ctypes.data, len(name))
        names += len(chosen)
        if numbering.names() != chosen:
            found.append(f"{len(numbering)} names were distinguished, expected {len(chosen)}")
        if longest_run(numbering) > MOST_SIDE_BY_SIDE:
            found.append(f"{longest_run(numbering)} of {len(chosen)} names are adjacent")
    return Outcome(names, "chosen topics", found)
