"""A clock that a test can step in another process: a preloaded library that replaces `clock_gettime`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long long stepped_ns;

void step_clock(long long ns) { stepped_ns += ns; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) {
        long long ns = time->tv_sec * 1000000000LL + time->tv_nsec + stepped_ns;
        time->tv_sec = ns / 1000000000;
        time->tv_nsec = ns % 1000000000;
    }
    return result;
}
"""
STEP_CLOCK = """
        import ctypes
        step_clock = lambda seconds: ctypes.CDLL(None).step_clock(ctypes.c_longlong(int(seconds * 1e9)))
"""
"""Python code for a `Script` started with `words_before`; defines `step_clock(seconds)`."""


def words_before(directory: Path) -> list[str]:
    """Build the library; return a command prefix that preloads it. Skip the test without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = directory / "clock.c", directory / "clock.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return ["env", f"LD_PRELOAD={library}"]
