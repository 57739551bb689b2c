"""Add the machine, its load, failures and skipped benchmarks to the JSON of a run.

Results are saved after each benchmark, in case the run ends early.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from pytest_benchmark.utils import get_commit_info

from bench.measure.machine import describe, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_START = load()
_DONE: list[dict[str, Any]] = []
_PLANNED: list[str] = []
_FAILED: list[dict[str, str]] = []
_LEFT_OUT: list[dict[str, str]] = []
_FINISHED: set[str] = set()

collect_ignore_glob: list[str] = []
if find_spec("pyspark") is None:
    collect_ignore_glob.append("bench_spark*.py")
    _LEFT_OUT.append({"name": "bench_spark*.py", "why": "pyspark is not installed"})


def _ended() -> dict[str, Any]:
    """Return load, failures and skipped benchmarks so far."""
    return {
        "load": {"start": _AT_START, "end": load()},
        "failed": _FAILED,
        "left_out": _LEFT_OUT,
        "not_run": [name for name in _PLANNED if name not in _FINISHED],
    }


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["described"] = describe()


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]) -> None:
    output_json.update(_ended())


def pytest_collection_finish(session: pytest.Session) -> None:
    _PLANNED.extend(item.nodeid for item in session.items)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _judge(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _judge(report)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _FINISHED.add(nodeid)


def _judge(report: pytest.CollectReport | pytest.TestReport) -> None:
    if report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        _LEFT_OUT.append({"name": report.nodeid, "why": why})
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = str(crash.message if crash else report.longreprtext).strip().splitlines()
        _FAILED.append({"name": report.nodeid, "why": (lines[0] if crash else lines[-1]) if lines else "unknown"})


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from bench.spark.trades import begin

    session = begin("local[2]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """Save all contests so far as a complete run, because a timeout ends the process without cleanup."""
    yield
    # Ctrl-C clears the arguments.
    told = getattr((request.node.funcargs or {}).get("benchmark"), "extra_info", {})
    if "contest" not in told:
        return
    _DONE.append({"fullname": request.node.nodeid, "name": request.node.name, "extra_info": told})
    _FINISHED.add(request.node.nodeid)
    run = {
        "machine_info": {"described": describe()},
        "commit_info": get_commit_info(),
        "datetime": datetime.now(UTC).isoformat(),
        "benchmarks": _DONE,
        **_ended(),
    }
    place = request.config.rootpath / ".benchmarks"
    place.mkdir(exist_ok=True)
    (place / "partial.part").write_text(json.dumps(run))
    (place / "partial.part").replace(place / "partial.json")
