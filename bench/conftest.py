"""The JSON of a run tells the machine, and how loaded it was; what is done is kept, should the run end early."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pytest_benchmark.utils import get_commit_info

from bench.machine import describe, load

_AT_START = load()
_DONE: list[dict[str, Any]] = []


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["described"] = describe()


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]) -> None:
    output_json["load"] = {"start": _AT_START, "end": load()}


@pytest.fixture(autouse=True)
def _kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each contest, all so far in the form of a whole run: a time limit ends the process without a word."""
    yield
    told = getattr(request.node.funcargs.get("benchmark"), "extra_info", {})
    if "contest" not in told:
        return
    _DONE.append({"fullname": request.node.nodeid, "name": request.node.name, "extra_info": told})
    run = {
        "machine_info": {"described": describe()},
        "commit_info": get_commit_info(),
        "datetime": datetime.now(UTC).isoformat(),
        "load": {"start": _AT_START, "end": load()},
        "benchmarks": _DONE,
    }
    place = request.config.rootpath / ".benchmarks"
    place.mkdir(exist_ok=True)
    (place / "partial.json").write_text(json.dumps(run))
