"""Waiting for input at any descriptor, and being woken."""

from __future__ import annotations

import fcntl
import os
import resource

from blackbox.transport.wakeup import Pipe, readable


def test_descriptors_above_1023_are_waited_for() -> None:
    pipe, quiet = Pipe(), Pipe()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2_048)), hard))
    high = fcntl.fcntl(pipe.reader, fcntl.F_DUPFD_CLOEXEC, 1_100)
    try:
        assert readable(high, quiet.reader, timeout=0) == []
        pipe.poke()
        assert readable(high, quiet.reader, timeout=200) == [high]
        assert readable(high, quiet.reader, timeout=None) == [high]
    finally:
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
