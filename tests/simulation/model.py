"""Check a consumer: each message is delivered once and in order, or reported as lost once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from blackbox.subscribe.order_state import LIVE

if TYPE_CHECKING:
    from tests.simulation.world import World


class ModelError(AssertionError):
    """A schedule violated the model."""


class Report(NamedTuple):
    """Messages that were reported as lost."""

    epoch: int
    key: bytes | None
    """Key of the messages; None: any key."""
    first: int
    lost: int


def check(world: World) -> None:
    """Raise ModelError unless the consumer is live and each message was delivered once in order or reported as lost."""
    consumer, order, publisher = world.consumer, world.consumer.order, world.publisher
    state, position, is_clean = order.state, order.order.position, order.order.is_clean
    if state.epoch and (state.phase != LIVE or not is_clean or position != (publisher.epoch, publisher.next)):
        cursor, end = order.cursor, (publisher.epoch, publisher.next)
        raise ModelError(f"not live: {position} clean {is_clean} cursor {cursor} of {end}")
    if consumer.begun is None:
        return
    came = _check_delivered(world, consumer.begun)
    lost = _check_reports(world, came)
    _check_repairs(world, lost)
    for epoch, log in publisher.log.items():
        for sequence, key in enumerate(log):
            at = epoch, sequence
            if at < consumer.begun or not key.startswith(consumer.prefixes) or came[at] + (at in lost) == 1:
                continue
            if not _is_excused(world, epoch, sequence):
                raise ModelError(f"{epoch, sequence, key} came {came[at]} times, begun {consumer.begun}")


def _check_delivered(world: World, begun: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Return the number of deliveries of each message, by (epoch, sequence)."""
    consumer = world.consumer
    came: dict[tuple[int, int], int] = defaultdict(int)
    last: dict[bytes, tuple[int, int]] = {}
    for epoch, sequence, key in consumer.state:
        at = epoch, sequence
        came[at] += 1
        if world.publisher.log[epoch][sequence] != key or not key.startswith(consumer.prefixes):
            raise ModelError(f"not what was sent: {epoch, sequence, key}")
        line = b"" if consumer.order.is_full and at >= begun else key
        if at <= last.get(line, (0, -1)):
            raise ModelError(f"out of order: {epoch, sequence, key} after {last[line]}")
        last[line] = at
    return came


def _check_reports(world: World, came: dict[tuple[int, int], int]) -> set[tuple[int, int]]:
    """Return (epoch, sequence) of each message that was reported as lost."""
    consumer = world.consumer
    reported = set[tuple[int, int]]()
    for epoch, key, first, lost in consumer.reports:
        log = world.publisher.log[epoch]
        is_exact = (key is not None or consumer.order.is_full) and epoch not in consumer.resumed
        stop = len(log) if key is not None else min(len(log), first + lost)
        missing = [
            (epoch, sequence)
            for sequence in range(first, stop)
            if key in (None, log[sequence]) and not came[epoch, sequence]
        ]
        if is_exact and len(missing) < lost:
            raise ModelError(f"{epoch, key, first} counts {lost}, missing {len(missing)}")
        if is_exact and reported.intersection(missing[:lost]):
            raise ModelError(f"{epoch, key, first, lost} reported twice")
        reported.update(missing[:lost])
    return reported


def _check_repairs(world: World, lost: set[tuple[int, int]]) -> None:
    """Raise ModelError for a wanted message that an archive has and that was reported as lost."""
    consumer = world.consumer
    if not world.repairs or not world.are_reliable or consumer.gave_up or consumer.begun is None:
        return
    for archive in world.archives:
        for epoch, blocks in archive.blocks.items():
            for block in blocks:
                for at in ((epoch, sequence) for sequence in range(block.sequence, block.end)):
                    if at in lost and at >= consumer.begun and block.key.startswith(consumer.prefixes):
                        raise ModelError(f"{at, block.key} was reported as lost, but an archive has it")


def _is_excused(world: World, epoch: int, sequence: int) -> bool:
    """Return True if the consumer had no means to know of a message."""
    consumer = world.consumer
    if not world.repairs:
        proven = dict(consumer.unproven)
        heard_of = {each for each, _, _ in consumer.state} | {each.epoch for each in consumer.reports} | set(proven)
        return epoch not in heard_of or sequence >= proven.get(epoch, sequence + 1)
    heard = [consumer.heard.get(epoch, 0)]
    if world.are_reliable and not consumer.gave_up:
        heard += [archive.heard.get(epoch, 0) for archive in world.archives]
    return sequence >= max(heard)
