"""Checks of this machine for `blackbox doctor`: each is ok, a warning or a problem, with advice."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import tempfile
import time
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from blackbox import __version__
from blackbox.cli.feed.endpoints import check_files, endpoints_of
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.native.system.cgroup import usable_cpus, usable_memory
from blackbox.numbers import byte_size, counted, duration
from blackbox.transport.udp.sockets import BUFFER_BYTES, LEAST_BUFFER_BYTES

_LEAST_MEMORY: Final = 512 << 20
_FAIR_MEMORY: Final = 1 << 30
_LEAST_DESCRIPTORS: Final = 1_024
_DESCRIPTORS_OF_SLICE: Final = 40
"""Descriptors of a publisher or subscriber with a few connections; see `operations` in the docs for exact numbers."""
_LEAST_SHM: Final = 1 << 20
_STEP_NS: Final = 10_000_000
_UNSYNCHRONISED: Final = 0x40
"""STA_UNSYNC of adjtimex(2)."""
_TIMEX_BYTES: Final = 256
_MAX_ERROR_AT, _STATUS_AT = 24, 40
"""Offsets in `struct timex` with 64-bit longs."""
_SHOWN: Final = 4
_CLOCK_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_CLOCKS: Final = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")


class State(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """A check of this machine."""

    name: str
    state: State
    found: str
    """The value that was found."""
    advice: str = ""
    """Remedy; empty if the state is ok."""


def ok(name: str, found: str) -> Check:
    """Return a check without problems."""
    return Check(name, State.OK, found)


def check_versions() -> Check:
    """Return the versions of this package and its dependencies."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyzmq", "numba", "numpy"))
    return ok("versions", f"blackbox {__version__}, Python {platform.python_version()}, {packages}")


def check_kernel_cache() -> Check:
    """Check that compiled kernels can be cached."""
    from blackbox.native.compile.kernel_cache import cache_root

    cache = cache_root()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        return Check(
            "kernel cache",
            State.WARNING,
            f"{cache} cannot be written ({error.strerror})",
            "each start compiles for up to a minute: set XDG_CACHE_HOME to a directory that can be written, or run "
            "`blackbox warmup` when the image is built",
        )
    many = sum(1 for _ in cache.glob("*/*.nbc"))
    if not many:
        return Check(
            "kernel cache", State.WARNING, f"{cache} is empty", "the first start compiles: run `blackbox warmup`"
        )
    return ok("kernel cache", f"{cache} can be written, {counted(many, 'kernel')}")


def check_cpus(cpus: int | None = None) -> Check:
    """Check the CPUs that this process may use."""
    usable = usable_cpus() if cpus is None else cpus
    found = f"{counted(usable, 'CPU')} of {os.cpu_count()}, by affinity and cgroup"
    if usable < 2:
        return Check(
            "CPUs", State.WARNING, found, "publisher and subscriber take turns, lags are milliseconds: allow 2 CPUs"
        )
    return ok("CPUs", found)


def check_memory(memory: int | None = None) -> Check:
    """Check the memory that this process may use."""
    usable = usable_memory() if memory is None else memory
    found = f"{byte_size(usable)}, of the machine or by cgroup"
    if usable < _FAIR_MEMORY:
        state = State.PROBLEM if usable < _LEAST_MEMORY else State.WARNING
        return Check("memory", state, found, "compiling takes some 500 MiB: allow 1 GiB (memory.max of the cgroup)")
    return ok("memory", found)


def check_shm(place: Path = Path("/dev/shm")) -> Check:
    """Check the file system for locks shared by Python processes; `shm://` endpoints do not use it."""
    advice = "`processes=True` shares locks there: mount a tmpfs, as by `docker run --shm-size=64m`"
    if not os.access(place, os.W_OK):
        return Check(str(place), State.WARNING, "missing, or cannot be written", advice)
    there = os.statvfs(place)
    size, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    found = f"{byte_size(size)}, {byte_size(free)} free; shm:// endpoints do not use it"
    return ok(str(place), found) if free >= _LEAST_SHM else Check(str(place), State.WARNING, found, advice)


def check_descriptors(feed: Feed, soft: int | None = None) -> Check:
    """Check the limit of open files against the feed's slices."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = limit if soft is None else soft
    hard_text = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if limit == resource.RLIM_INFINITY:
        return ok("file descriptors", "no limit")
    found = f"{limit:,}, can be raised to {hard_text}"
    needed = 100 + _DESCRIPTORS_OF_SLICE * len(feed.slices)
    if limit < needed:
        advice = f"{counted(len(feed.slices), 'slice')} of feed {feed.name!r} need some {needed:,}: ulimit -n {needed}"
        return Check("file descriptors", State.PROBLEM, found, advice)
    if limit < _LEAST_DESCRIPTORS:
        return Check(
            "file descriptors", State.WARNING, found, f"each connection takes one: ulimit -n {_LEAST_DESCRIPTORS}"
        )
    return ok("file descriptors", found)


def check_receive_buffer(most: Path = Path("/proc/sys/net/core/rmem_max")) -> Check:
    """Check the receive buffer that the system grants for multicast."""
    try:
        granted = int(most.read_text())
    except OSError:  # older kernels hide it in containers
        return ok("receive buffer", "its limit is not shown here")
    found = f"up to {byte_size(granted)}"
    if granted >= LEAST_BUFFER_BYTES:
        return ok("receive buffer", found)
    advice = f"bursts of multicast are lost: sysctl -w net.core.rmem_max={BUFFER_BYTES}"
    return Check("receive buffer", State.WARNING, found, advice)


def check_libzmq(feed: Feed) -> Check:
    """Check libzmq's version and its encryption."""
    import zmq

    from blackbox.transport.security.curve import is_fast

    name = f"libzmq {zmq.zmq_version()}"
    if not zmq.has("curve"):
        state = State.WARNING if feed.security is None else State.PROBLEM
        advice = "[security] needs CURVE: install a wheel of pyzmq (pip install --only-binary :all: pyzmq)"
        return Check("libzmq", state, f"{name} without CURVE", advice)
    if not is_fast():
        advice = "[security] runs at a fraction of the usual rate: install a wheel of pyzmq that has libsodium"
        return Check("libzmq", State.WARNING, f"{name} with CURVE by TweetNaCl", advice)
    return ok("libzmq", f"{name} with CURVE by libsodium")


class ClockWatch:
    """Detects a step of the wall clock between creation and `check`."""

    def __init__(self) -> None:
        self._before = time.time_ns() - time.monotonic_ns()

    def check(self) -> Check:
        """Check that the clock is synchronised, has not stepped, and is fast to read."""
        step = time.time_ns() - time.monotonic_ns() - self._before
        if abs(step) > _STEP_NS:
            found = f"stepped by {duration(abs(step))} during these checks"
            return Check("clock", State.WARNING, found, "lags and session dates jump with it: let it slew (chronyd)")
        source = _CLOCK_SOURCE.read_text().strip() if _CLOCK_SOURCE.exists() else "unknown source"
        if source in _SLOW_CLOCKS:
            return Check("clock", State.WARNING, f"source {source}", "each reading takes a microsecond: use tsc")
        status, error_ns = _kernel_clock()
        if status is None:
            return ok("clock", f"no step during these checks, source {source}; synchronisation unknown")
        if status & _UNSYNCHRONISED:
            found = f"not synchronised, source {source}"
            return Check("clock", State.WARNING, found, "lags between hosts are wrong: run chronyd or ntpd on the host")
        return ok("clock", f"synchronised, error at most {duration(error_ns)}, source {source}")


def _kernel_clock() -> tuple[int | None, int]:
    """Return the status of the kernel's clock, None if unavailable, and its greatest error in ns."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None or ctypes.sizeof(ctypes.c_long) != 8 or adjtimex(timex) < 0:
        return None, 0
    status = ctypes.c_int.from_buffer(timex, _STATUS_AT).value
    return status, ctypes.c_long.from_buffer(timex, _MAX_ERROR_AT).value * 1_000


def check_spark() -> Check:
    """Check that Spark and a suitable Java are found. Spark is optional."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return ok("Spark", "not installed; `analyse` needs it: pip install 'blackbox-md[spark]'")
    from blackbox.analysis.spark.java import EXPECTED, find_java

    try:
        home = find_java()
    except ConfigError as error:
        return Check(
            "Spark", State.WARNING, f"pyspark {spark}, {error}", f"`analyse` does not start: install {EXPECTED}"
        )
    return ok("Spark", f"pyspark {spark}, Java {_java_version(home)} in {home}")


def _java_version(home: Path) -> str:
    try:
        lines = (home / "release").read_text().splitlines()
    except OSError:
        return "of unknown version"
    return next((line.split('"')[1] for line in lines if line.startswith("JAVA_VERSION=")), "of unknown version")


def check_feed(feed: Feed) -> list[Check]:
    """Check a feed's schema and key files, and that its endpoints are free."""
    checks = []
    try:
        check_files(feed)
        checks.append(ok("feed", f"{feed.name!r}, schema {feed.schema_name!r}"))
    except ConfigError as error:
        checks.append(Check("feed", State.PROBLEM, str(error), "correct the feed file, or install what it names"))
    used = [each for each in endpoints_of(feed) if each.used]
    if not used:
        return [*checks, ok("ports", f"all of feed {feed.name!r} are free here, or of another host")]
    shown = "; ".join(f"{each.bind} {each.state}" for each in used[:_SHOWN])
    more = f" and {len(used) - _SHOWN} more" if len(used) > _SHOWN else ""
    advice = "unless these are this feed's own processes, choose other ports: `blackbox feed check` lists all"
    return [*checks, Check("ports", State.WARNING, f"{shown}{more}", advice)]


def check_machine(feed: Feed) -> list[Check]:
    """Return all checks, for this machine and a feed."""
    clock = ClockWatch()
    return [
        check_versions(),
        check_kernel_cache(),
        check_cpus(),
        check_memory(),
        check_shm(),
        check_descriptors(feed),
        *([check_receive_buffer()] if any(part.multicast for part in feed.slices) else []),
        check_libzmq(feed),
        check_spark(),
        *check_feed(feed),
        clock.check(),  # last: it has watched the others
    ]
