"""`blackbox control`: each command, given to a replay that runs in this process."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from blackbox.feed.endpoint import free_endpoints
from blackbox.replay.clock import ManualClock
from blackbox.replay.control_socket import ControlSocket
from blackbox.replay.controls import Action, Controls
from blackbox.replay.status import ReplayStatus
from tests.cli.commands import assert_one_line, invoke, succeed

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
    ((endpoint,),) = free_endpoints("tcp", "control", 1, 1)
    with ControlSocket(controls, endpoint):
        yield endpoint


def control(endpoint: str, *words: str) -> ReplayStatus:
    ended = succeed("control", endpoint, *words, "--json", "--timeout", 60)
    return msgspec.json.decode(ended.out, type=ReplayStatus)


def test_each_command_is_obeyed(endpoint: str, controls: Controls) -> None:
    assert control(endpoint).speed == 2.0
    assert control(endpoint, "speed", "10").speed == 10.0
    assert control(endpoint, "speed", "max").speed is None
    assert control(endpoint, "pause").state == "paused"
    assert control(endpoint, "resume").state == "playing"
    assert control(endpoint, "step", "7").state == "stepping"
    assert controls.wait(START).messages == 7
    assert control(endpoint, "seek", "15:00").position_ns == START + 1_800 * S
    assert control(endpoint, "seek", str(START + 5)).position_ns == START + 5
    assert control(endpoint, "stop").state == "stopping"
    assert controls.wait(START).action is Action.STOP


def test_the_table_shows_the_status(endpoint: str, controls: Controls) -> None:
    controls.wait(START)
    controls.played(1_234, START)
    shown = invoke("control", endpoint, "--timeout", 60).out
    for text in (endpoint, "playing", "2x", "2019-12-30T14:30:00.000000Z", "1,234", "1,800 s"):
        assert text in shown, shown
    ((other,),) = free_endpoints("tcp", "control", 1, 1)
    with ControlSocket(Controls(2.0, clock=ManualClock()), other):
        shown = invoke("control", other, "--timeout", 60).out
    assert "ready" in shown
    assert "1970" not in shown


def test_refusal_is_one_line(endpoint: str) -> None:
    ended = invoke("control", endpoint, "seek", "noon", "--timeout", 60)
    assert_one_line(ended, "error: time was 'noon', expected ns since 1970, a date-time such as")
