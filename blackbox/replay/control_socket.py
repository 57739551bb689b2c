"""Control a replay from another process: a REP socket for JSON commands, and its client.

    {"do": "speed", "value": 10.0}        null: unlimited
    {"do": "pause"}   {"do": "resume"}   {"do": "stop"}   {"do": "status"}
    {"do": "step", "messages": 1}
    {"do": "seek", "to": "14:30"}         or a date-time, or ns since 1970

The answer is a `ReplayStatus` as JSON, or {"error": "..."}.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec
import zmq

from blackbox.arguments import Duration, seconds
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, ControlError, EndpointError
from blackbox.feed.endpoint import check_endpoint
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import Needs
from blackbox.native.system.waits import step_of
from blackbox.replay.status import ReplayState, ReplayStatus
from blackbox.timestamps import check_unit, is_time_of_day, parse_time
from blackbox.transport.context import new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import keys_of_line, use_keys
from blackbox.transport.security.gate import open_gate
from blackbox.transport.server_thread import ServerThread, bind

if TYPE_CHECKING:
    from blackbox.replay.controls import Controls

_MOST_BYTES: Final = 4_096
_QUEUE_REQUESTS: Final = 16
_LINGER_MS: Final = 500
_LARGEST: Final = (1 << 63) - 1
_NEEDS: Final = Needs(descriptors=3)


class Request(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A command. The key `do` has its name."""


class SetSpeed(Request, frozen=True, tag="speed"):
    """Set the speed; None: unlimited."""

    value: float | None


class Pause(Request, frozen=True, tag="pause"):
    """Pause."""


class Resume(Request, frozen=True, tag="resume"):
    """Resume playing."""


class Step(Request, frozen=True, tag="step"):
    """Deliver this number of messages, then pause."""

    messages: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)] = 1


class Seek(Request, frozen=True, tag="seek"):
    """Continue from a market time: ns since 1970, or a text for `parse_time`."""

    to: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)] | str


class Stop(Request, frozen=True, tag="stop"):
    """End the replay."""


class GetStatus(Request, frozen=True, tag="status"):
    """Return the status only."""


Asked = SetSpeed | Pause | Resume | Step | Seek | Stop | GetStatus
_REQUESTS: Final = Decoder[Asked]("json", Asked, _MOST_BYTES)
_ANSWERS: Final = Decoder[dict[str, Any]]("json", dict[str, Any])


class ControlSocket:
    """Passes requests to a replay's controls, in its own thread, as a context manager.

    Any process that can connect may use it: bind it to 127.0.0.1 or to a path (ipc), or give it a feed with
    `[security]`, whose allowed keys may use it. Requests of more than 4 KiB are not answered, and their sender is
    disconnected.
    """

    def __init__(self, controls: Controls, endpoint: str, *, time_zone: str = "UTC", feed: Feed | None = None) -> None:
        """`time_zone`: of times without an offset. `feed`: its `[security]` applies, if any.

        Raises ConfigError if the endpoint is not tcp or ipc.
        """
        _check(endpoint)
        self.endpoint = endpoint
        self._controls = controls
        self._time_zone, self._feed = time_zone, feed
        self._thread = ServerThread("blackbox-controls", f"control socket {endpoint}", self._serve)

    def __enter__(self) -> Self:
        """Bind the endpoint. Raises EndpointError, or ConfigError for an invalid key."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.end()

    def _serve(self) -> None:
        with ExitStack() as stack:
            context = stack.enter_context(new_context("control socket", _NEEDS))
            gate = None if self._feed is None else open_gate(context, self._feed, [self.endpoint], "control socket")
            if gate is not None:
                stack.callback(gate.close)
            socket = stack.enter_context(context.socket(zmq.REP))
            if gate is not None:
                gate.secure(socket, self.endpoint)
            socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
            socket.set_hwm(_QUEUE_REQUESTS)
            socket.linger = _LINGER_MS  # to send the answer to `stop`
            keep_alive(socket, must_take=True)
            bind(socket, self.endpoint, "control endpoint")
            for frames in self._thread.requests(socket):
                socket.send(self._answer(frames))

    def _answer(self, frames: list[bytes]) -> bytes:
        try:
            if len(frames) != 1:
                raise ValueError(f"request had {len(frames)} frames, expected 1")
            self._do(_REQUESTS.decode(frames[0]))
        except DecodeError as error:
            return _error(f'request was not understood: {error}; expected JSON such as {{"do": "pause"}}')
        except ValueError as error:
            return _error(str(error))
        return msgspec.json.encode(self._controls.status())

    def _do(self, request: Request) -> None:
        controls = self._controls
        match request:
            case SetSpeed(value=speed):
                controls.speed = speed
            case Pause():
                controls.pause()
            case Resume():
                controls.resume()
            case Step(messages=messages):
                controls.step(messages)
            case Seek(to=str(text)):
                now = controls.status()
                if now.state is ReplayState.READY and is_time_of_day(text):
                    raise ValueError(f"time was {text!r}, expected one with a date: the replay has not begun")
                controls.seek(parse_time(text, self._time_zone, now.start_ns, now.stop_ns))
            case Seek(to=int(ts_ns)):
                controls.seek(check_unit(ts_ns, controls.status().start_ns))
            case Stop():
                controls.stop()


def ask(endpoint: str, request: Request, timeout: Duration = 2.0, feed: Feed | None = None) -> ReplayStatus:
    """Send a request to a replay's control socket. Return the status after it.

    `feed`: the replayed feed. Its `[security]` has the keys for the connection.

    Raises:
        ConfigError: the endpoint is not tcp or ipc, or a key is missing or malformed.
        EndpointError: it cannot be connected.
        ControlError: the replay rejected the request, or did not answer within `timeout` seconds.
    """
    timeout = seconds("timeout", timeout)
    _check(endpoint)
    keys = None if feed is None else keys_of_line(feed, 0, endpoint)
    with ExitStack() as stack:
        context = stack.enter_context(new_context("replay control", _NEEDS))
        # Ctrl-C may interrupt closing the socket. Terminating the context would then wait for it without limit.
        stack.callback(context.destroy, linger=0)
        socket = stack.enter_context(context.socket(zmq.REQ))
        socket.linger = 0
        use_keys(socket, keys)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise EndpointError(error.errno, f"cannot connect to replay {endpoint}: {error.strerror}") from error
        socket.send(msgspec.json.encode(request))
        deadline = time.monotonic() + timeout
        while not socket.poll(int(1e3 * step_of(deadline - time.monotonic()))):
            if time.monotonic() < deadline:
                continue
            hint = "" if keys is None else ": it may not allow our key, or its key may differ from server_keys"
            raise ControlError(f"no replay answered at {endpoint} within {timeout:g} s{hint}")
        answer = socket.recv()
    try:
        document = _ANSWERS.decode(answer)
        if "error" in document:
            raise ControlError(str(document["error"]))
        return msgspec.convert(document, ReplayStatus)
    except DecodeError as error:
        raise ControlError(f"{endpoint} did not answer as a replay does: {error}") from error


def _check(endpoint: str) -> None:
    check_endpoint(endpoint)
    if endpoint.startswith("inproc://"):
        raise ConfigError(f"endpoint was {endpoint!r}, expected tcp:// or ipc://: commands come from other processes")


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
