"""`blackbox steer`: each command to a replay that runs in this process."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from typer.testing import CliRunner

from blackbox.cli import app
from blackbox.endpoint import free_endpoints
from blackbox.replay.clock import ManualClock
from blackbox.replay.control_socket import ControlSocket
from blackbox.replay.controls import Controls, Kind
from blackbox.replay.status import ReplayStatus

S = 1_000_000_000
START = 1_577_716_200 * S
"""2019-12-30 14:30 UTC."""


@pytest.fixture
def controls() -> Controls:
    controls = Controls(2.0, clock=ManualClock())
    controls.begin(START, START + 3_600 * S)
    return controls


@pytest.fixture
def endpoint(controls: Controls) -> Iterator[str]:
    ((endpoint,),) = free_endpoints("tcp", "steer", 1, 1)
    with ControlSocket(controls, endpoint):
        yield endpoint


def steer(endpoint: str, *words: str) -> ReplayStatus:
    result = CliRunner().invoke(app, ["steer", endpoint, *words, "--json"])
    assert result.exit_code == 0, result.stderr
    return msgspec.json.decode(result.stdout, type=ReplayStatus)


def test_each_command_steers(endpoint: str, controls: Controls) -> None:
    assert steer(endpoint).speed == 2.0
    assert steer(endpoint, "speed", "10").speed == 10.0
    assert steer(endpoint, "speed", "max").speed is None
    assert steer(endpoint, "pause").state == "paused"
    assert steer(endpoint, "resume").state == "running"
    assert steer(endpoint, "step", "7").state == "paused"
    assert controls.wait(START).messages == 7
    assert steer(endpoint, "seek", "15:00").position_ns == START + 1_800 * S
    assert steer(endpoint, "seek", str(START + 5)).position_ns == START + 5
    assert steer(endpoint, "stop").state == "paused"
    assert controls.wait(START).kind is Kind.STOP


def test_table_tells_what_a_person_wants_to_know(endpoint: str, controls: Controls) -> None:
    controls.wait(START)
    controls.played(1_234, START)
    shown = CliRunner().invoke(app, ["steer", endpoint]).stdout
    for text in (endpoint, "running", "2x", "2019-12-30T14:30:00.000000Z", "1,234", "1,800 s"):
        assert text in shown, shown


def test_refusal_is_one_line(endpoint: str) -> None:
    result = CliRunner().invoke(app, ["steer", endpoint, "seek", "noon"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: time was 'noon', expected ns since 1970 or an ISO 8601 time")
    assert result.stderr.count("\n") == 1
