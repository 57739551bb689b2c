"""The control socket of a replay: valid requests, malformed requests, and clients that are refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from blackbox import ConfigError, Feed
from blackbox.errors import ControlError, EndpointError
from blackbox.feed.endpoint import free_endpoints
from blackbox.replay.clock import ManualClock
from blackbox.replay.control_socket import (
    ControlSocket,
    GetStatus,
    Pause,
    Request,
    Resume,
    Seek,
    SetSpeed,
    Step,
    Stop,
    ask,
)
from blackbox.replay.controls import Action, Controls
from blackbox.replay.status import ReplayStatus
from tests.keyring import Keyring
from tests.process_state import held, linux_only, wait_given_back

S = 1_000_000_000
START = 1_577_716_200 * S
"""2019-12-30 14:30 UTC, 9:30 in New York."""
STOP = START + 6 * 3_600 * S + 1_800 * S


def free_endpoint(transport: str = "tcp") -> str:
    return free_endpoints(transport, "controls", 1, 1)[0][0]


@pytest.fixture
def controls() -> Controls:
    controls = Controls(1.0, clock=ManualClock())
    controls.begin(START, STOP)
    return controls


@pytest.fixture
def socket(controls: Controls) -> Iterator[ControlSocket]:
    with ControlSocket(controls, free_endpoint(), time_zone="America/New_York") as socket:
        yield socket


def exchange(endpoint: str, *frames: bytes) -> dict[str, Any]:
    """Send the frames and return the decoded answer."""
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.linger = 0
        client.connect(endpoint)
        client.send_multipart(frames)
        assert client.poll(60_000), "no answer"
        answer: dict[str, Any] = msgspec.json.decode(client.recv())
        return answer


def test_each_request_is_obeyed_and_answered_with_the_status(controls: Controls) -> None:
    requests: list[tuple[Request, Callable[[ReplayStatus], bool]]] = [
        (GetStatus(), lambda status: (status.state, status.speed) == ("playing", 1.0)),
        (SetSpeed(10), lambda status: status.speed == 10.0),
        (SetSpeed(None), lambda status: status.speed is None),
        (Pause(), lambda status: status.state == "paused"),
        (Resume(), lambda status: status.state == "playing"),
        (Step(3), lambda status: status.state == "stepping"),
        (Seek(START + S), lambda status: status.position_ns == START + S),
        (Stop(), lambda status: status.state == "stopping"),
    ]
    with ControlSocket(controls, free_endpoint("ipc")) as socket:
        for request, holds in requests:
            assert holds(ask(socket.endpoint, request)), request
    assert controls.wait(START).action is Action.STOP


def test_requests_are_plain_json(socket: ControlSocket, controls: Controls) -> None:
    assert exchange(socket.endpoint, b'{"do": "speed", "value": 10}')["speed"] == 10.0
    assert exchange(socket.endpoint, b'{"do": "speed", "value": null}')["speed"] is None
    assert exchange(socket.endpoint, b'{"do": "step"}')["state"] == "stepping"
    assert controls.wait(START).messages == 1
    assert set(exchange(socket.endpoint, b'{"do": "status"}')) == set(ReplayStatus.__struct_fields__)


def test_time_of_day_before_the_replay_has_begun_is_an_error() -> None:
    with ControlSocket(Controls(), free_endpoint()) as socket:
        with pytest.raises(ControlError, match="^time was '14:30', expected one with a date: the replay has not begun"):
            ask(socket.endpoint, Seek("14:30"))
        assert ask(socket.endpoint, Seek("2019-12-30T14:30")).position_ns == START


def test_times_are_in_the_zone_of_the_replay(socket: ControlSocket) -> None:
    for text, seconds in (("09:31", 60), ("20191231", 6.5 * 3_600), ("1969-12-31", 0)):
        assert ask(socket.endpoint, Seek(text)).position_ns == START + int(seconds * S), text


MISUNDERSTOOD = (
    b"",
    b"pause",
    b"[]",
    b"\xff\xfe",
    b"{}",
    b'{"do": "jump"}',
    b'{"do": "pause", "now": true}',
    b'{"do": "pause", "now": ' + b"[" * 3_000,
    b'{"do": "speed"}',
    b'{"do": "speed", "value": "fast"}',
    b'{"do": "step", "messages": 0}',
    b'{"do": "step", "messages": 1000000000000000000000}',
    b'{"do": "seek", "to": -1}',
    b'{"do": "seek", "to": 1e30}',
)


def test_wrong_requests_are_answered_and_the_socket_keeps_working(socket: ControlSocket) -> None:
    for request in MISUNDERSTOOD:
        assert exchange(socket.endpoint, request)["error"].startswith("request was not understood: "), request
    for text in ("", "noon", "9" * 30, "25:00", "2019-13-01", "9999-12-31", "0001-01-01T00:00+14:00"):
        with pytest.raises(ControlError, match=re.escape(f"time was '{text}', expected ns since 1970, ")):
            ask(socket.endpoint, Seek(text))
    with pytest.raises(ControlError, match="^speed was 0.0, expected a finite number above 0"):
        ask(socket.endpoint, SetSpeed(0))
    answer = exchange(socket.endpoint, b'{"do": "pause"}', b"")
    assert answer == {"error": "request had 2 frames, expected 1"}
    with pytest.raises(ControlError, match="no replay answered"):
        ask(socket.endpoint, Seek("x" * 5_000), timeout=0.2)  # too long to be read
    assert ask(socket.endpoint, GetStatus()).state == "playing"


@given(st.binary(max_size=200) | st.text(max_size=50).map(lambda text: b'{"do": "seek", "to": "%s"}' % text.encode()))
def test_any_bytes_are_answered(request_bytes: bytes) -> None:
    answer = ControlSocket(Controls(), "tcp://127.0.0.1:1")._answer([request_bytes])
    assert isinstance(msgspec.json.decode(answer), dict)


def test_client_that_does_not_wait_for_its_answer(socket: ControlSocket) -> None:
    with zmq.Context() as context:
        for _ in range(3):
            with context.socket(zmq.REQ) as client:
                client.connect(socket.endpoint)
                client.send(b'{"do": "pause"}')
    assert ask(socket.endpoint, GetStatus()).state == "paused"


def test_stop_is_answered_although_the_socket_closes(controls: Controls) -> None:
    with ControlSocket(controls, free_endpoint()) as socket:
        assert ask(socket.endpoint, Stop()).state == "stopping"
    controls.end()
    with pytest.raises(ControlError, match=f"no replay answered at {socket.endpoint} within 0.05 s"):
        ask(socket.endpoint, GetStatus(), timeout=0.05)


def test_endpoints_that_cannot_be_used_are_refused(socket: ControlSocket) -> None:
    for endpoint, text in (
        (socket.endpoint, f"control endpoint {socket.endpoint} is in use"),
        ("ipc:///nowhere/at/all", "could not be bound"),
    ):
        with pytest.raises(EndpointError, match=text), ControlSocket(Controls(), endpoint):
            pass
    for endpoint in ("localhost:5555", "inproc://controls", "tcp://*:5555"):
        with pytest.raises(ConfigError, match="endpoint"):
            ControlSocket(Controls(), endpoint)
        with pytest.raises(ConfigError, match="endpoint"):
            ask(endpoint, GetStatus())
    assert ask(socket.endpoint, GetStatus()).state == "playing"


def test_only_an_allowed_key_controls_a_replay_of_a_feed_with_keys(controls: Controls, tmp_path: Path) -> None:
    ring, feed = Keyring(tmp_path, "exchange", "desk", "stranger"), Feed.local("quotes", slices=1)
    ring.allow("exchange", "desk")
    with ControlSocket(controls, free_endpoint(), feed=ring.feed(feed, "exchange")) as socket:
        assert ask(socket.endpoint, Pause(), 200, ring.feed(feed, "desk", "exchange")).state == "paused"
        with pytest.raises(ControlError, match="it may not allow our key"):
            ask(socket.endpoint, Resume(), 0.5, ring.feed(feed, "stranger", "exchange"))
        with pytest.raises(ControlError, match="no replay answered"):
            ask(socket.endpoint, Resume(), 0.5)
        assert ask(socket.endpoint, GetStatus(), 200, ring.feed(feed, "desk", "exchange")).state == "paused"


@pytest.mark.parametrize("answer", [b"hello", b"{}"])
def test_something_else_answers(answer: bytes) -> None:
    endpoint = free_endpoint("ipc")
    with zmq.Context() as context, context.socket(zmq.REP) as stranger:
        stranger.bind(endpoint)

        def reply() -> None:
            stranger.recv()
            stranger.send(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(ControlError, match="did not answer as a replay does"):
            ask(endpoint, GetStatus())
        thread.join()


@pytest.mark.own_process
@linux_only
def test_nothing_is_left_open(controls: Controls) -> None:
    with ControlSocket(controls, free_endpoint()) as socket:
        ask(socket.endpoint, GetStatus())
    del socket
    before = held()
    for _ in range(5):
        with ControlSocket(controls, free_endpoint()) as socket:
            ask(socket.endpoint, GetStatus())
        del socket
    wait_given_back(before)
