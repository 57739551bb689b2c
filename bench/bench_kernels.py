"""Cost of a message in each step of the hot path, run on its own on one core.

    encode ─(wire)─> check ─> order ─> match ─> group ─> hand over ─> callback      blocks of 2,000 messages
limit   the same body copied within the caches
"""

from __future__ import annotations

from functools import partial

from pytest_benchmark.fixture import BenchmarkFixture

from bench.hot_path.kernels import SPIN, Kernel, Subject
from bench.measure.contest import Contest

_BLOCKS = 50
_TRIES = 10


def _fastest(kernel: Kernel) -> float:
    return min(kernel.ns_a_message(_BLOCKS) for _ in range(_TRIES))


def test_kernels(benchmark: BenchmarkFixture) -> None:
    """Time per message: the fastest try of a round, because a step is short compared with the noise."""
    contest = Contest("Steps of the hot path, one core", "ns a message", lower=True, topology=__doc__)
    with Subject() as kernels:
        for kernel in kernels:
            kind = "limit" if kernel.name == "memcpy" else "ours"
            name = f"{kernel.name}: {kernel.what}"
            contest.add(name, partial(_fastest, kernel), kind, versus=None)  # type: ignore[arg-type]
        contest.add(f"{SPIN.name}: {SPIN.what}", partial(_fastest, SPIN), "limit", versus=None)
        contest.run(benchmark)
