"""One schedule of an attack on hubs: puts while processes fail."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final, Protocol

from blackbox.testing import wait_until

MESSAGES: Final = 300
"""Messages of a schedule."""
PATIENCE_S: Final = 120.0


class House(Protocol):
    """The attacked processes."""

    def want(self, count: int) -> None:
        """Request `count` more puts."""

    def harm(self, harm: str) -> None:
        """Harm a process in the given way."""

    def go_on(self) -> None:
        """Restart or resume all processes."""

    def is_acknowledged(self) -> bool:
        """Return True if all puts are acknowledged."""

    def has_got(self) -> bool:
        """Return True if the reader has all messages."""


def put_all(random: Random, house: House, harms: Iterable[str]) -> None:
    """Put messages, with each harm at a random moment, until all are acknowledged and read. Raises TimeoutError."""
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
            wait_until(house.is_acknowledged, PATIENCE_S, "all puts are acknowledged")
        wanted += count
    house.go_on()
    wait_until(house.is_acknowledged, PATIENCE_S, "all puts are acknowledged")
    wait_until(house.has_got, PATIENCE_S, "all messages are read")
