"""The JSON of a run tells the machine, and how loaded it was."""

from __future__ import annotations

from typing import Any

import pytest

from bench.machine import describe, load

_AT_START = load()


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["described"] = describe()


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]) -> None:
    output_json["load"] = {"start": _AT_START, "end": load()}
