"""System calls from compiled code."""

from __future__ import annotations

import ctypes
import platform

import pytest

from blackbox.native.compile.jit import njit
from blackbox.native.system.posix import allow_barriers, barrier_of_all_threads

SYSTEM_CALL = {"x86_64": 324, "aarch64": 283}
PRIVATE_EXPEDITED = 1 << 3


@njit(nogil=True)
def barrier() -> bool:
    done: bool = barrier_of_all_threads()
    return done


@pytest.mark.skipif(platform.machine() not in SYSTEM_CALL, reason="its number is not known here")
def test_all_threads_pass_a_barrier_if_the_system_has_one() -> None:
    commands = ctypes.CDLL(None).syscall(SYSTEM_CALL[platform.machine()], 0, 0, 0)
    allow_barriers()
    assert barrier() == (commands > 0 and commands & PRIVATE_EXPEDITED != 0)
