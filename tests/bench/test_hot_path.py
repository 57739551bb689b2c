"""The steps of the hot path run on a block as a publisher sends it."""

from __future__ import annotations

import pytest

from bench.hot_path.kernels import Subject


@pytest.mark.long
def test_every_step_runs_over_and_over() -> None:
    with Subject() as kernels:
        for kernel in kernels:
            assert kernel.ns_a_message(20) > 0
