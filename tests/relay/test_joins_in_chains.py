"""Join a chain of relays while its source publishes: everything published after the confirmation is delivered."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from blackbox import Publisher
from blackbox.testing import Collector, wait_until
from tests.examples import examples
from tests.relay.relays import PATIENCE_S, chain, collected, relayed

JOINS = examples(10)
TOPICS = 7


@pytest.mark.parametrize("key_bytes", [0, 2])
@pytest.mark.parametrize("relays", [1, 3])
def test_nothing_published_after_the_confirmation_is_missing_at_a_join(relays: int, key_bytes: int) -> None:
    """Messages published before `start` returns may be missing at the start of a join, later ones may not.

    Each relay requests more above while other filters are active, and forgets them when the last subscriber has left:
    each join takes its filters through the whole chain again.
    """
    feeds = chain(relays, key_bytes=key_bytes)
    published, over = [0], threading.Event()
    with relayed(feeds, when_full="wait"), Publisher(feeds[0], when_full="wait") as publisher:

        def publish() -> None:
            while not over.is_set():
                publisher.publish(b"A%d" % (published[0] % TOPICS), b"%d" % published[0])
                published[0] += 1

        source = threading.Thread(target=publish)
        source.start()
        try:
            with ExitStack() as stack:
                for join in range(JOINS):
                    subscriber, got = collected(feeds[-1], b"A")
                    gaps: list[int] = []
                    subscriber.on_gap(b"")(lambda gap, gaps=gaps: gaps.append(gap.count))  # type: ignore[misc]
                    subscriber.start(timeout=PATIENCE_S)
                    first = published[0] + 1  # one message may be on its way into the publisher
                    got.wait(1, PATIENCE_S)

                    def has_all(got: Collector = got, first: int = first) -> bool:
                        """Return True if every topic has been received past the confirmation."""
                        numbers = map(int, got.payloads)
                        return len({number % TOPICS for number in numbers if number > first + 1_000}) == TOPICS

                    wait_until(has_all, PATIENCE_S)
                    if join % 2:
                        stack.callback(subscriber.stop)  # it stays, so that the next one finds active filters
                    else:
                        subscriber.stop()
                    numbers = [int(payload) for payload in got.payloads]
                    assert gaps == []
                    for topic in range(TOPICS):
                        mine = [number for number in numbers if number % TOPICS == topic and number >= first]
                        begin = first + (topic - first) % TOPICS
                        assert mine == list(range(begin, begin + TOPICS * len(mine), TOPICS))
                        assert mine
        finally:
            over.set()
            source.join()
