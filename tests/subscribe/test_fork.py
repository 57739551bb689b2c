"""A subscriber that a forked process inherits: it is the parent's, and the child is told so."""

from __future__ import annotations

from blackbox import Publisher
from tests.publish.subscribers import collected, one_slice
from tests.support import in_child


def test_a_child_that_ends_an_inherited_subscriber_is_refused_and_the_parent_misses_nothing() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"T", b"1")
        for work in (
            subscriber.stop,
            subscriber.terminate,
            subscriber.request_stop,
            subscriber.run,
            lambda: subscriber.remove(got.batch),
            lambda: subscriber.on(b"X")(print),
        ):
            assert in_child(work).startswith("SubscriberError: feed 'publisher': the subscriber is of process ")
        publisher.publish(b"T", b"2")
        publisher.flush()
    subscriber.run(until_end=True)
    assert got.payloads == [b"1", b"2"]
