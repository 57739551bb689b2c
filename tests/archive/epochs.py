"""Epochs that end, the facts that a subscriber receives of them, and those that a plain walk expects."""

from __future__ import annotations

from blackbox import Subscriber
from blackbox.archive.serve.client import ArchiveClient
from blackbox.block.position import Position
from blackbox.testing import RawPublisher

SECOND = 10**9
Fact = tuple[str, int, int]
"""True if a message was received, False if it is gone; epoch and sequence."""


class Walk:
    """Events of a recorder, and the result of a plain walk over them."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, bytes, int, int]] = []
        """`block` or `told`, epoch, key, first sequence, sequence after the last one."""

    def walk(self, prefix: bytes, start: Position | None) -> list[Fact]:
        found: list[Fact] = []
        told: dict[int, int] = {}
        at = start

        def lose(epoch: int, stop: int) -> None:
            nonlocal at
            assert at is not None
            first = at.sequence if epoch == at.epoch else 0
            if epoch >= at.epoch and first < stop:
                found.extend(("gone", epoch, number) for number in range(first, stop))
            at = max(at, Position(epoch, max(first, stop)))

        for what, epoch, key, first, stop in self.log:
            told[epoch] = max(told.get(epoch, 0), stop if what == "told" else 0)
            if what == "told":
                continue
            at = Position(epoch, first) if at is None else at
            for before in sorted(told):
                if before < epoch:
                    lose(before, told[before])
            if Position(epoch, stop) > at:
                lose(epoch, first)
                if key.startswith(prefix):
                    found.extend(("came", epoch, number) for number in range(first, stop))
                at = Position(epoch, stop)
        for before in sorted(told) if at is not None else ():
            lose(before, told[before])
        return found


def from_start(facts: list[Fact], start: Position | None) -> list[Fact]:
    """Remove rows before the start, because an archive returns whole blocks."""
    return [fact for fact in facts if start is None or fact[1:] >= start]


def told_by(client: ArchiveClient, epoch: int) -> tuple[int, bool]:
    """Return the last known sequence of an epoch, and True if the epoch has ended."""
    runs = {run.epoch: run for run in client.about().slices[0].runs}
    return (runs[epoch].last_sequence, runs[epoch].has_ended) if epoch in runs else (-1, False)


def messages_in(client: ArchiveClient) -> int:
    return sum(held.messages for held in client.about().slices.values())


class Order:
    """Messages and gaps in the order of a subscriber's calls."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.told: list[Fact] = []
        subscriber.on(b"", fields=("epoch", "sequence"))(
            lambda epoch, number: self.told.append(("came", epoch, number))
        )
        subscriber.on_gap(b"")(
            lambda gap: self.told.extend(
                ("gone", gap.epoch, number) for number in range(gap.sequence, gap.sequence + gap.count)
            )
        )


def facts(what: str, epoch: int, numbers: range) -> list[Fact]:
    return [(what, epoch, number) for number in numbers]


def send(publisher: RawPublisher, count: int, key: bytes = b"A.") -> None:
    publisher.send(publisher.encode([(key + b"x", b"payload")] * count))


def lose(publisher: RawPublisher, count: int, key: bytes = b"A.") -> None:
    if count:
        publisher.encode([(key + b"x", b"payload")] * count)


def begin_run(publisher: RawPublisher, epoch: int) -> None:
    publisher.epoch, publisher.sequences, publisher.ends = epoch, [0], [{}]


FIRST, SECOND_RUN = 1 << 40, 1 << 41
