"""Description of the machine of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any


def processors() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def load() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def describe() -> dict[str, Any]:
    """Return processor, memory, kernel and versions."""
    cpus = [dict(re.findall(r"^(.+?)\t*: (.*)$", text, re.MULTILINE)) for text in _processors()]
    cores = {(cpu.get("physical id", "0"), cpu.get("core id", place)) for place, cpu in enumerate(cpus)}
    memory = int(re.findall(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())[0]) * 1024
    return {
        "cpu_model": next((cpu["model name"] for cpu in cpus if "model name" in cpu), platform.machine()),
        "cpus": processors(),
        "cores": len(cores),
        "hyperthreads": len(cpus) > len(cores),
        "virtual": any("hypervisor" in cpu.get("flags", "").split() for cpu in cpus),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
    }


def _processors() -> list[str]:
    return [text for text in Path("/proc/cpuinfo").read_text().split("\n\n") if text.strip()]


def versions() -> dict[str, str]:
    """Return the versions of libzmq and of each installed package of the benchmarks."""
    import zmq

    found = {"libzmq": zmq.zmq_version()}
    for line in importlib.metadata.requires("blackbox-md") or ():
        name = re.split(r"[^\w.-]", line)[0]
        if "extra ==" in line and not re.search(r"extra == ['\"](bench|rivals)['\"]", line):
            continue
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return dict(sorted(found.items()))
