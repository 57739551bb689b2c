"""Kill a JSON-driven client, and its hub: each message is put once and got once, whatever was going on.

The program that drives it repeats each request until it is done: puts have ids, and it skips messages that it got.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

import zmq

from tests.hub.drivers import CLIENT, Driver
from tests.hub.hubs import HUB, hub_feed, published
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome
from tests.torture.schedules import run_schedules

SCHEDULES: Final = 100
"""Schedules of one hub and one client before both are replaced."""
_PATIENCE_S: Final = 120.0
_ANSWER_S: Final = 5.0


class _House:
    """A hub, a driven client, and the program that drives it."""

    def __init__(self, stack: ExitStack, random: Random, place: Path) -> None:
        self._random, self._place = random, place
        self._feed = feed = hub_feed("driven-clients", slices=1, key_bytes=random.choice((0, 1)))
        endpoint = f"ipc://{place / 'desk'}"
        self._hub = stack.enter_context(Nursery(feed, HUB, 1))
        self._client = stack.enter_context(Nursery(feed, CLIENT, 1))
        self._words = {
            self._hub: (place / "hub",),
            self._client: (place / "positions", endpoint, random.choice(("keep", "plain"))),
        }
        for process, words in self._words.items():
            process.begin(words)
        self._driver = Driver(stack.enter_context(zmq.Context()), endpoint)
        stack.callback(self._driver.close)
        self._put, self._got = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
        self._ask(do="subscribe", prefix="A")

    def _ask(self, **asked: Any) -> dict[str, Any]:
        """Ask until it is done. Raises TimeoutError."""
        until = monotonic() + _PATIENCE_S
        while (answer := self._driver.ask(_ANSWER_S, timeout_s=2, **asked)) is None or "error" in answer:
            if monotonic() > until:
                raise TimeoutError(f"{asked} was answered with {answer}")
        return answer

    def run(self) -> None:
        """Kill the client during a request, and perhaps the hub; put, get and perhaps commit."""
        number = len(self._put)
        put = {"do": "put", "topic": "A.x", "text": str(number), "id": str(number)}
        for asked in self._random.choices((put, {"do": "get", "prefix": "A"}, {"do": "commit"}), k=2):
            self._driver.send(number=0, timeout_s=2, **asked)
        for process in self._random.choice(((self._client,), (self._client, self._hub), (self._hub, self._client))):
            process.kill()
            process.begin(self._words[process])
        self._put[_place(self._ask(**put))] = number
        while len(self._got) < len(self._put):
            message = self._ask(do="get", prefix="A")
            self._got.setdefault(_place(message), int(b64decode(message["payload"])))
        if self._random.random() < 0.7:
            self._ask(do="commit")

    def end(self) -> None:
        self.give_up()

    def give_up(self) -> object:
        self._client.kill()
        self._hub.kill()
        return self._put

    def defects(self) -> Iterator[str]:
        """Yield what is wrong with what was got and stored."""
        stored = {
            (epoch, sequence): int(data or b"")
            for epoch, _, sequence, _, data in published(self._place / "hub", self._feed)
        }
        for what, has in (("got", self._got), ("stored", stored)):
            if list(has.items()) != list(self._put.items()):
                yield f"{has} were {what}, expected {self._put}"


def _place(answer: dict[str, Any]) -> tuple[int, int]:
    return answer["epoch"], answer["sequence"]


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules: each kills the client, and in the end each message was put and got once, in order."""
    return run_schedules(
        "kills of driven clients", seconds, SCHEDULES, lambda stack, place: _House(stack, random, place)
    )
