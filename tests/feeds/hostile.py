"""Hostile packets, for the tests of each live client: random, cut, longer, changed, repeated and forged ones."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

_KEPT = 1_000
"""Packets that may be repeated."""


class Enemy(ABC):
    """Makes the packets of a client's peer, and hostile ones between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.earlier: list[bytes] = []

    @abstractmethod
    def new(self) -> bytes:
        """Return the next packet of the peer. Some are missing, or in another order."""

    @abstractmethod
    def hostile(self) -> bytes:
        """Return a packet that the peer did not send."""

    def damaged(self, places: Sequence[int]) -> bytes:
        """Return random bytes, or an earlier packet that is shorter, longer, or has another bit at a place."""
        whole = bytearray(self.random.choice(self.earlier))
        kind = self.random.randrange(4)
        if kind == 0:
            return self.random.randbytes(self.random.choice([0, 1, 2, 19, 20, 39, 40, 100, 1_400]))
        if kind == 1:
            return bytes(whole[: self.random.randrange(len(whole))])
        if kind == 2:
            return bytes(whole) + self.random.randbytes(self.random.randint(1, 9))
        whole[self.random.choice([place for place in places if place < len(whole)])] ^= 1 << self.random.randrange(8)
        return bytes(whole)

    def packets(self, count: int) -> Iterator[tuple[bytes, bool]]:
        """Yield packets, each with True if the peer sent it, maybe before."""
        for _ in range(count):
            kind = self.random.random()
            if kind < 0.6 or not self.earlier:
                packet = self.new()
                if len(self.earlier) < _KEPT:
                    self.earlier.append(packet)
                elif kind < 0.05:
                    self.earlier[self.random.randrange(_KEPT)] = packet
                yield packet, True
            elif kind < 0.8:
                yield self.random.choice(self.earlier), True
            else:
                yield self.hostile(), False
