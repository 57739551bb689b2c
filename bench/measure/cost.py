"""What a run costs: CPU time of whole processes, and bytes on the loopback wire."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_SENT: Final = Path("/sys/class/net/lo/statistics/tx_bytes")
_SCHEDULED: Final = 2
"""The kind of CPU clock that counts what the scheduler gave, as glibc's clock_getcpuclockid asks for."""


def cpu_seconds(pid: int = 0) -> float:
    """CPU time of a process so far, this one unless told: all its threads, user and system, to the nanosecond."""
    return time.clock_gettime(~(pid or os.getpid()) << 3 | _SCHEDULED)


def wire_bytes() -> int:
    """Bytes over the loopback interface so far, with the heads of TCP and IP; of all processes that share it."""
    return int(_SENT.read_text())
