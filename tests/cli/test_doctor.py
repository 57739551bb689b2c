"""`blackbox doctor`: each check with real or made-up states of the machine."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Publisher
from blackbox.cli.feed import machine
from blackbox.cli.feed.machine import State
from blackbox.cli.ui.status import Status
from blackbox.errors import ConfigError
from blackbox.native.compile import kernel_cache
from tests.cli.commands import Place, invoke
from tests.process_state import linux_only

pytestmark = linux_only

FEED = Feed.local("checked")


def checks_of(ended_out: str) -> dict[str, machine.Check]:
    found = msgspec.json.decode(ended_out, type=dict[str, list[machine.Check]])["checks"]
    return {each.name: each for each in found}


def test_all_checks_run_and_problems_and_a_port_in_use_have_advice(place: Place) -> None:
    with Publisher(place.feed):
        ended = invoke("doctor", "--feed", place.path, "--json")
    checks = checks_of(ended.out)
    assert set(checks) == {
        *("versions", "kernel cache", "CPUs", "memory", "/dev/shm", "file descriptors", "libzmq", "Spark"),
        *("feed", "ports", "clock"),
    }
    assert all((each.state is State.OK) == (not each.advice) for each in checks.values())
    problems = [each for each in checks.values() if each.state is State.PROBLEM]
    assert ended.status == (Status.ERROR if problems else Status.OK)
    assert checks["ports"].state is State.WARNING
    assert f"{place.feed.slices[0].endpoints[0]} in use by" in checks["ports"].found
    assert f"(PID {os.getpid()})" in checks["ports"].found


def test_the_status_is_1_with_a_problem_and_0_with_warnings(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    for state, status in ((State.WARNING, Status.OK), (State.PROBLEM, Status.ERROR)):
        monkeypatch.setattr(machine, "check_machine", lambda _, state=state: [machine.Check("x", state, "y", "z")])
        table = invoke("doctor", "--feed", place.path)
        assert (table.status, "│ x" in table.out) == (status, True)
        assert json.loads(invoke("doctor", "--json").out)["checks"] == [
            {"name": "x", "state": state.value, "found": "y", "advice": "z"}
        ]


def test_a_cache_that_cannot_be_written_or_is_empty_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "cache_root", lambda: tmp_path / "kernels")
    found = machine.check_kernel_cache()
    assert (found.state, "is empty" in found.found) == (State.WARNING, True)
    (tmp_path / "kernels" / "module-1").mkdir()
    (tmp_path / "kernels" / "module-1" / "kernel.1.nbc").touch()
    assert machine.check_kernel_cache().found.endswith("can be written, 1 kernel")
    (tmp_path / "file").touch()
    monkeypatch.setattr(kernel_cache, "cache_root", lambda: tmp_path / "file" / "kernels")
    found = machine.check_kernel_cache()
    assert (found.state, "cannot be written (Not a directory)" in found.found) == (State.WARNING, True)
    assert "XDG_CACHE_HOME" in found.advice


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (machine.check_cpus(1), State.WARNING),
        (machine.check_cpus(2), State.OK),
        (machine.check_memory(256 << 20), State.PROBLEM),
        (machine.check_memory(768 << 20), State.WARNING),
        (machine.check_memory(1 << 30), State.OK),
        (machine.check_descriptors(FEED, 100), State.PROBLEM),
        (machine.check_descriptors(FEED, 512), State.WARNING),
        (machine.check_descriptors(FEED, 1_024), State.OK),
        (machine.check_shm(Path("/nowhere")), State.WARNING),
    ],
)
def test_limits_are_compared_with_what_a_feed_needs(check: machine.Check, expected: State) -> None:
    assert check.state is expected
    assert bool(check.advice) == (expected is not State.OK)


def test_missing_or_slow_curve_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.transport.security.curve.is_fast", lambda: True)
    assert machine.check_libzmq(FEED).found.endswith("with CURVE by libsodium")
    monkeypatch.setattr("blackbox.transport.security.curve.is_fast", lambda: False)
    assert machine.check_libzmq(FEED).state is State.WARNING
    assert machine.check_libzmq(FEED).found.endswith("with CURVE by TweetNaCl")
    monkeypatch.setattr("zmq.has", lambda _: False)
    assert machine.check_libzmq(FEED).state is State.WARNING
    secured = msgspec.convert(msgspec.to_builtins(FEED) | {"security": {"key": "me.key_secret"}}, Feed)
    assert machine.check_libzmq(secured).state is State.PROBLEM


def test_the_clock_has_the_kernels_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_kernel_clock", lambda: (0x40, 0))
    assert machine.ClockWatch().check().found.startswith("not synchronised")
    monkeypatch.setattr(machine, "_kernel_clock", lambda: (0x2001, 1_500_000))
    assert machine.ClockWatch().check().state is State.OK
    monkeypatch.setattr(machine, "_kernel_clock", lambda: (None, 0))
    assert machine.ClockWatch().check().state is State.OK


def test_a_step_of_the_clock_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    status, error_ns = machine._kernel_clock()
    assert status is None or (0 <= status < 1 << 16 and error_ns >= 0)
    watch, now = machine.ClockWatch(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3 * 10**9)
    found = watch.check()
    assert (found.state, found.found) == (State.WARNING, "stepped by 3.00 s during these checks")


def test_an_unsuitable_java_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse() -> None:
        raise ConfigError("no Java for Spark: /usr/bin/java is Java 11")

    monkeypatch.setattr(machine, "version", lambda _: "4.3.0")
    monkeypatch.setattr("blackbox.analysis.spark.java.find_java", refuse)
    found = machine.check_spark()
    assert (found.state, "is Java 11" in found.found, "Java 17" in found.advice) == (State.WARNING, True, True)
    assert machine._java_version(tmp_path) == "of unknown version"
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.8"\n')
    assert machine._java_version(tmp_path) == "21.0.8"


def test_a_feed_whose_schema_is_not_installed_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "feed.toml").write_text('name = "x"\nschema = "no"\n[[slices]]\nendpoints = ["tcp://127.0.0.1:1"]\n')
    ended = invoke("doctor", "--feed", tmp_path / "feed.toml", "--json")
    assert ended.status == Status.ERROR
    assert checks_of(ended.out)["feed"].found.startswith("schema was 'no', expected one of")


def test_a_small_receive_buffer_is_reported_for_feeds_with_multicast(tmp_path: Path) -> None:
    (limit := tmp_path / "rmem_max").write_text("212992\n")
    check = machine.check_receive_buffer(limit)
    assert (check.state, "net.core.rmem_max" in check.advice) == (State.WARNING, True)
    limit.write_text("33554432\n")
    assert machine.check_receive_buffer(limit).state is State.OK
    assert machine.check_receive_buffer(tmp_path / "none").state is State.OK
