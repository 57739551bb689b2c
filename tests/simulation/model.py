"""Check a consumer: each message is delivered once and in order, or reported as lost once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from blackbox.block.position import Position
from blackbox.receive.order.state import Phase

if TYPE_CHECKING:
    from tests.simulation.network import Sent
    from tests.simulation.world import World

Line = tuple[int, int, bytes | None]
"""Epoch, sequence and key of a message. Key None: any key."""


class ModelError(AssertionError):
    """A schedule violated the model."""


class Report(NamedTuple):
    """Messages that were reported as lost."""

    epoch: int
    key: bytes | None
    """Key of the messages; None: any key."""
    first: int
    lost: int


@dataclass
class Want:
    """A period in which a consumer wants a key."""

    start: Position
    """No message before it may be reported as lost."""
    begin: Position | None = None
    """Each message from here on must be delivered or reported as lost. None: no filter was confirmed."""
    end: Position | None = None
    """Each message before it must be delivered or reported. None: the key is still wanted."""

    def copy(self) -> Want:
        return Want(self.start, self.begin, self.end)


def is_settled(world: World) -> bool:
    """Return True if the consumer is live and at the end of the published messages."""
    slice_, end = world.consumer.order, world.publisher_position
    return slice_.state.phase == Phase.LIVE and slice_.order.is_clean and slice_.order.position == end


def check(world: World) -> None:
    """Raise ModelError unless the consumer is live and each message was delivered once in order or reported as lost."""
    consumer, order, publisher = world.consumer, world.consumer.order, world.publisher
    if order.state.epoch and not is_settled(world):
        position, end = order.order.position, world.publisher_position
        raise ModelError(f"not live: {position} clean {order.order.is_clean} cursor {order.cursor} of {end}")
    if consumer.begun is None:
        return
    came = _check_delivered(world, consumer.begun)
    lost = _check_reports(world, came)
    _check_repairs(world, lost)
    for epoch, log in publisher.log.items():
        for sequence, sent in log:
            for key in sent.keys:
                if _is_wanted(world, epoch, sequence, key):
                    is_lost = (epoch, sequence, key) in lost or (epoch, sequence, None) in lost
                    if came[epoch, sequence] + is_lost != 1 and not _is_excused(world, epoch, sequence):
                        wants = consumer.wants[key]
                        raise ModelError(f"{epoch, sequence, key} came {came[epoch, sequence]} times, wanted {wants}")


def _is_wanted(world: World, epoch: int, sequence: int, key: bytes) -> bool:
    """Return True if a consumer wants a message, and its filters were confirmed before."""
    at, want = (epoch, sequence), world.consumer.wants.get(key)
    if want is None or want.begin is None or at < want.begin:
        return False
    return want.end is None or at < want.end


def _check_delivered(world: World, begun: Position) -> Counter[tuple[int, int]]:
    """Return the number of deliveries of each message, by (epoch, sequence)."""
    consumer = world.consumer
    came = Counter((epoch, sequence) for epoch, sequence, _ in consumer.state)
    sent = {(epoch, sequence): each for epoch, log in world.publisher.log.items() for sequence, each in log}
    last: dict[bytes, tuple[int, int]] = {}
    for epoch, sequence, key in consumer.state:
        at = epoch, sequence
        if at not in sent or sent[at].is_message != (key is not None) or not sent[at].keys <= {key}:
            raise ModelError(f"not what was sent: {epoch, sequence, key}")
        if key is not None:
            line = b"" if consumer.is_full and at >= begun else key
            if at <= last.get(line, (0, -1)):
                raise ModelError(f"out of order: {epoch, sequence, key} after {last[line]}")
            last[line] = at
    return came


def _check_reports(world: World, came: Counter[tuple[int, int]]) -> set[Line]:
    """Return each message that was reported as lost."""
    consumer = world.consumer
    reported = set[Line]()
    for epoch, key, first, lost in consumer.reports:
        is_exact = epoch not in consumer.resumed and _is_exact(world, epoch, key, first)
        stop = 1 << 62 if key is not None else first + lost
        if first + lost > world.publisher.log[epoch].end:
            raise ModelError(f"{epoch, key, first} counts {lost}, the epoch ends before")
        missing: list[tuple[int, Sent]] = [
            (sequence, sent)
            for sequence, sent in world.publisher.log[epoch].between(first, stop)
            if (key is None or key in sent.keys | sent.later) and not came[epoch, sequence]
        ]
        if key is not None:
            missing = missing[:lost]
        lines = [(epoch, sequence, key) for sequence, _ in missing]
        if is_exact and (len(lines) if key is not None else sum(sent.numbers for _, sent in missing)) < lost:
            raise ModelError(f"{epoch, key, first} counts {lost}, missing {len(missing)}")
        if is_exact and (reported.intersection(lines) or any((*line[:2], None) in reported for line in lines)):
            raise ModelError(f"{epoch, key, first, lost} reported twice")
        if key is not None and is_exact:
            _check_start(world, key, lines)
        reported.update(lines)
    return reported


def _is_exact(world: World, epoch: int, key: bytes | None, first: int) -> bool:
    """Return True if the count of a report has no messages of other keys, or from before the consumer began."""
    consumer = world.consumer
    if key is None:
        return consumer.is_full
    is_first = any(key in sent.later for _, sent in world.publisher.log[epoch].between(0, first))
    return not is_first and not (consumer.has_changed and (consumer.was_full or world.repairs))


def _check_start(world: World, key: bytes, lines: list[Line]) -> None:
    """Raise ModelError for messages that were reported as lost although the consumer did not want them yet."""
    delivered = ((epoch, sequence) for epoch, sequence, each in world.consumer.state if each == key)
    start = min([world.consumer.wants[key].start, *delivered])
    for epoch, sequence, _ in lines:
        if (epoch, sequence) < start:
            raise ModelError(f"{epoch, sequence, key} was reported as lost, but wanted from {start} on")


def _check_repairs(world: World, lost: set[Line]) -> None:
    """Raise ModelError for a wanted message that an archive has and that was reported as lost."""
    consumer = world.consumer
    if not world.repairs or not world.are_reliable or consumer.gave_up:
        return
    for archive in world.archives:
        for epoch, blocks in archive.blocks.items():
            for block in blocks:
                for offset in block.rows or range(block.span):
                    sequence = block.sequence + offset
                    is_lost = (epoch, sequence, block.key) in lost or (epoch, sequence, None) in lost
                    if is_lost and _is_wanted(world, epoch, sequence, block.key):
                        raise ModelError(f"{epoch, sequence, block.key} was reported as lost, but an archive has it")


def _is_excused(world: World, epoch: int, sequence: int) -> bool:
    """Return True if the consumer had no means to know of a message."""
    consumer = world.consumer
    if not world.repairs:
        known = consumer.known_ends
        heard_of = {each for each, _, _ in consumer.state} | {each.epoch for each in consumer.reports} | set(known)
        return epoch not in heard_of or sequence >= known.get(epoch, sequence + 1)
    heard = [consumer.heard.get(epoch, 0)]
    if world.are_reliable and not consumer.gave_up:
        heard += [archive.heard.get(epoch, 0) for archive in world.archives]
    return sequence >= max(heard)
