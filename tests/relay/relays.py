"""Chains of feeds, and the relays between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from blackbox import Feed, Publisher, Relay
from blackbox.block.form.format import ACCEPT_KEY
from blackbox.publish.listeners.subscriptions import SUBSCRIBE
from blackbox.services.relay.relay import RelayLine
from tests.publish import subscribers

BEAT_NS = 100_000_000
PLAIN_BEAT_NS = 10_000_000_000
"""A plain publisher sends no heartbeats; with this interval it does not count as silent."""
PATIENCE_S = 60.0
collected = subscribers.collected


def chain(
    relays: int = 1,
    *,
    slices: int = 1,
    key_bytes: int = 0,
    lines: int = 1,
    transport: Any = "tcp",
    below: Any = "",
    **settings: Any,
) -> list[Feed]:
    """The same feed at its source and below each of `relays` relays. `below`: another transport below the last one."""
    feeds = [
        Feed.local("chain", slices=slices, key_bytes=key_bytes, lines=lines, transport=each)
        for each in [transport] * relays + [below or transport]
    ]
    return [msgspec.structs.replace(feed, **{"heartbeat_ns": BEAT_NS} | settings) for feed in feeds]


@contextmanager
def relayed(feeds: Sequence[Feed], **settings: Any) -> Iterator[list[Relay]]:
    """Relays from each feed to the next one, named by their hop."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Relay(above, below, name=f"hop-{hop}", **settings))
            for hop, (above, below) in enumerate(zip(feeds, feeds[1:], strict=False), start=1)
        ]


def line_of(relay: Relay, place: int = 0) -> RelayLine:
    return relay.statistics().lines[place]


def is_traced(sequence: int, count: int, every: int) -> bool:
    """Return True if a message of the block is the last one of a run of `every`."""
    return any((each + 1) % every == 0 for each in range(sequence, sequence + count))


def asked_of(publisher: Publisher) -> list[bytes]:
    """Record all later requests to a publisher except acceptances, which may arrive late after a start."""
    return changes_of(publisher, lambda change: change[:1] == SUBSCRIBE and not change[1:].startswith(ACCEPT_KEY))


def changes_of(publisher: Publisher, counts: Callable[[bytes], bool] = bool) -> list[bytes]:
    """Record all later requests to a publisher, and withdrawals, for which `counts` is true."""
    subscriptions, changes = publisher._slices[0].sender.subscriptions, list[bytes]()
    note = subscriptions.note

    def listen(line: int, fd: int, change: bytes, size: int, after: int) -> None:
        if counts(change):
            changes.append(change)
        note(line, fd, change, size, after)

    subscriptions.note = listen  # type: ignore[method-assign]
    return changes
