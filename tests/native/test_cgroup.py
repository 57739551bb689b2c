"""Memory and CPU limits of cgroups, from files in Linux's layout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blackbox.native.system.cgroup import usable_cpus, usable_memory

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CPUS = len(os.sched_getaffinity(0))


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("mine", "files", "memory", "cpus"),
    [
        ("0::/desk/spark", {"desk/memory.max": "2147483648", "desk/spark/memory.max": "max"}, 2 << 30, CPUS),
        ("0::/desk/spark", {"desk/memory.max": "max", "desk/spark/memory.max": "1048576"}, 1 << 20, CPUS),
        ("0::/", {"memory.max": "3145728", "cpu.max": "50000 100000"}, 3 << 20, 1),
        ("0::/of/the/host", {"memory.max": "4194304", "cpu.max": "100000 100000"}, 4 << 20, 1),
        ("0::/desk", {"desk/cpu.max": "max 100000", "desk/memory.max": "max"}, MACHINE, CPUS),
        ("0::/desk", {"desk/cpu.max": "6400000 100000"}, MACHINE, CPUS),
        ("0::/desk", {}, MACHINE, CPUS),
        (
            "5:memory:/old\n4:cpu,cpuacct:/old\n0::/",
            {
                "memory/old/memory.limit_in_bytes": "5242880",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/old/cpu.cfs_quota_us": "100000",
                "cpu/old/cpu.cfs_period_us": "100000",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            5 << 20,
            1,
        ),
    ],
)
def test_the_lowest_limit_of_all_ancestors_applies(
    tmp_path: Path, mine: str, files: dict[str, str], memory: int, cpus: int
) -> None:
    put(tmp_path / "cgroup", files)
    (tmp_path / "mine").write_text(f"{mine}\n")
    assert usable_memory(tmp_path / "cgroup", tmp_path / "mine") == memory
    assert usable_cpus(tmp_path / "cgroup", tmp_path / "mine") == cpus


def test_without_cgroups_the_machine_and_the_affinity_limit(tmp_path: Path) -> None:
    assert usable_memory(tmp_path / "no", tmp_path / "none") == MACHINE
    assert usable_cpus(tmp_path / "no", tmp_path / "none") == CPUS
