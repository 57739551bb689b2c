"""A contender as two processes, a publisher and a subscriber, and its rounds."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from bench.child import Child, Ended
from bench.contest import Figure, Lost, Spent
from bench.cost import cpu_seconds, wire_bytes

if TYPE_CHECKING:
    from bench.rivals.servers import Server

_ROUND_S: Final = 60.0
_END_S: Final = 10.0


class Missing(Exception):  # noqa: N818  # a fact about this machine, not an error of the benchmark
    """A rival is not installed, or did not start; the text says how to get it."""


def need(*packages: str) -> None:
    """Raise Missing unless these can be imported, named as pip names them (`redis`, `eclipse-zenoh:zenoh`)."""
    for package in packages:
        name, _, module = package.partition(":")
        if find_spec(module or name) is None:
            raise Missing(f"{name} is not installed (extra `bench`: pip install {name})")


def _side(module: str, side: str, arguments: dict[str, Any]) -> Child:
    try:
        return Child("-m", "bench.rivals.orders", module, side, json.dumps(arguments), name=f"{module}, {side}")
    except Ended as ended:
        raise Missing(str(ended)) from None


def _close(side: Child) -> None:
    try:
        side.close(_END_S)
    except Ended as ended:
        print(f"  {ended}")  # its rounds are over


class Pair:
    """A publisher and a subscriber of one contender, and the server between them if it has one."""

    def __init__(self, module: str, server: Server | None = None, *, form: str = "messages", **arguments: Any) -> None:
        self._server = server
        self._sides: list[Child] = []
        arguments = {"form": form, **arguments}
        try:
            # The publisher binds before the subscriber connects.
            for side in ("publish", "receive"):
                self._sides.append(_side(module, side, arguments))
        except BaseException:
            self.close()
            raise

    def round(self, messages: int) -> Figure:
        """M messages/s from the publisher's first call to the return of the last callback.

        The publisher's CPU time includes the server's.
        """
        publisher, subscriber = self._sides
        server = self._server.pid if self._server else None
        try:
            subscriber.send({"messages": messages})
            subscriber.answer()
            served_s = cpu_seconds(server) if server else 0.0
            before = wire_bytes()
            publisher.send({"messages": messages})
            received = subscriber.answer(_ROUND_S)
            sent = publisher.answer(_ROUND_S)
        except Ended:
            for side in self._sides:  # one that waits for the other would wait in every round to come
                side.kill()
            raise
        served_s = cpu_seconds(server) - served_s if server else 0.0
        crossed = wire_bytes() - before
        on_wire = crossed if crossed > messages else None  # fewer are those of others
        spent = Spent(sent["cpu_s"] + served_s, received["cpu_s"], on_wire, messages)
        if received["lost"]:
            raise Lost(received["lost"])
        return Figure(messages / (received["at"] - sent["at"]) / 1e6, spent)

    def close(self) -> None:
        """End both processes."""
        for side in reversed(self._sides):
            _close(side)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Single:
    """One process of a contender, which does all the work with its server, if it has one."""

    def __init__(self, module: str, side: str, server: Server | None = None, **arguments: Any) -> None:
        self._server = server
        self._side = _side(module, side, arguments)

    def round(self, messages: int) -> Figure:
        """M messages/s between what it calls its start and its end. The server's CPU time is the publisher's."""
        served_s = cpu_seconds(self._server.pid) if self._server else 0.0
        before = wire_bytes()
        self._side.send({"messages": messages})
        done = self._side.answer(_ROUND_S)
        served_s = cpu_seconds(self._server.pid) - served_s if self._server else 0.0
        if done["lost"]:
            raise Lost(done["lost"])
        spent = Spent(served_s if self._server else None, done["cpu_s"], wire_bytes() - before, messages)
        return Figure(messages / (done["at"] - done["started"]) / 1e6, spent)

    def close(self) -> None:
        """End the process."""
        _close(self._side)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
