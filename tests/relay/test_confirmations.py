"""A relay confirms what is asked below it once all above have confirmed that to it."""

from __future__ import annotations

import pytest

from blackbox import NotConfirmedError, Publisher
from tests.late_answers import late_answers
from tests.relay.relays import PATIENCE_S, chain, collected, relayed


def test_no_answer_before_the_source_is_there() -> None:
    feeds = chain(2)
    subscriber, got = collected(feeds[-1])
    with relayed(feeds):
        with pytest.raises(NotConfirmedError):
            subscriber.start(timeout=0.5)
        subscriber, got = collected(feeds[-1])
        with Publisher(feeds[0]) as publisher:
            subscriber.start(PATIENCE_S)
            publisher.publish(b"T", b"1")
            got.wait(1)
        subscriber.run(until_end=True)


def test_an_answer_behind_a_long_queue_comes_in_time() -> None:
    feeds = chain(heartbeat_ns=20_000_000)
    subscriber, _ = collected(feeds[-1])
    with late_answers(feeds[0], beats=20), relayed(feeds):
        subscriber.start(PATIENCE_S)
        subscriber.stop()
