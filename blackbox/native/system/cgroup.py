"""Memory and CPUs that this process may use, limited by Linux cgroups."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_MINE: Final = Path("/proc/self/cgroup")
_NO_LIMIT: Final = "max"


def usable_memory(root: Path = _ROOT, mine: Path = _MINE) -> int:
    """Return the bytes of memory that this process may use: the machine's, or the lowest limit of its cgroups."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [
        int(text)
        for text in (*_texts(root, mine, "", "memory.max"), *_texts(root, mine, "memory", "memory.limit_in_bytes"))
        if text != _NO_LIMIT
    ]
    return min([machine, *limits])


def usable_cpus(root: Path = _ROOT, mine: Path = _MINE) -> int:
    """Return how many CPUs this process may use, at least 1: its affinity, or the lowest quota of its cgroups."""
    shares = [text.split() for text in _texts(root, mine, "", "cpu.max")]
    quotas = _texts(root, mine, "cpu", "cpu.cfs_quota_us")
    periods = _texts(root, mine, "cpu", "cpu.cfs_period_us")
    shares += [[quota, period] for quota, period in zip(quotas, periods, strict=True) if quota != "-1"]
    limits = [math.ceil(int(quota) / int(period)) for quota, period in shares if quota != _NO_LIMIT]
    return max(1, min([_cpus(), *limits]))


def _cpus() -> int:
    if sys.platform == "linux":
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    return cpus


def _texts(root: Path, mine: Path, controller: str, name: str) -> Iterator[str]:
    """Yield the texts of a file in the cgroup of this process and in all its ancestors.

    `controller`: of cgroup v1; empty: v2.
    """
    with suppress(OSError):
        for line in mine.read_text().splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if controller in names.split(",") if controller else (number == "0" and not names):
                top = root / controller
                group = top / path.strip("/")
                # In a container the path may be the host's; the group is then the topmost one visible here.
                for place in dict.fromkeys((group, *group.parents, top)):
                    if place.is_relative_to(top):
                        with suppress(OSError):
                            yield (place / name).read_text().strip()
