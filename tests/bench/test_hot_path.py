"""The steps of the hot path, run on a block that a publisher sent."""

from __future__ import annotations

import pytest

from bench.hot_path.kernels import Subject


@pytest.mark.long
def test_every_step_runs_repeatedly() -> None:
    with Subject() as kernels:
        for kernel in kernels:
            assert kernel.ns_a_message(20) > 0
