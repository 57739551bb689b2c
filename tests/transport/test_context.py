"""System settings of slice threads."""

from __future__ import annotations

import ctypes
import sys

import pytest

from blackbox.transport.context import wake_on_time
from tests.threads import in_threads

_PR_GET_TIMERSLACK = 30


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no slack to take back")
def test_sleeps_of_a_line_thread_end_on_time() -> None:
    prctl = ctypes.CDLL(None).prctl
    slack_ns: list[int] = []

    def run() -> None:
        slack_ns.append(prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0))
        wake_on_time()
        slack_ns.append(prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0))

    with in_threads(run):
        pass
    assert slack_ns[0] > 1
    assert slack_ns[1] == 1
