"""One schedule of an attack on hubs: messages are put, and processes harmed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final, Protocol

from blackbox.testing import wait_until

MESSAGES: Final = 300
"""Of one schedule."""
PATIENCE_S: Final = 120.0


class House(Protocol):
    """The processes that are attacked."""

    def want(self, count: int) -> None:
        """Have so many more messages put."""

    def harm(self, harm: str) -> None:
        """Do something to a process."""

    def go_on(self) -> None:
        """Have all processes there again, and none paused."""

    def is_acknowledged(self) -> bool:
        """Whether all that was put is acknowledged."""

    def has_got(self) -> bool:
        """Whether the reader has got all."""


def put_all(random: Random, house: House, harms: Iterable[str]) -> None:
    """Have messages put, with each harm at some moment, until all are acknowledged and got. Raises TimeoutError."""
    at: dict[int, list[str]] = {}
    for harm in harms:
        at.setdefault(random.randrange(MESSAGES - 40), []).append(harm)
    wanted = 0
    while wanted < MESSAGES:
        count = min(random.randrange(1, 40), MESSAGES - wanted)
        house.want(count)
        for place in range(wanted, wanted + count):
            for harm in at.pop(place, ()):
                house.harm(harm)
        if random.random() < 0.5:
            house.go_on()
            wait_until(house.is_acknowledged, PATIENCE_S, "all was acknowledged")
        wanted += count
    house.go_on()
    wait_until(house.is_acknowledged, PATIENCE_S, "all was acknowledged")
    wait_until(house.has_got, PATIENCE_S, "all was got")
