"""A forked process inherits a subscriber, which belongs to the parent: the child gets an error."""

from __future__ import annotations

from blackbox import Publisher
from tests.publish.subscribers import collected, one_slice
from tests.support import in_child


def test_a_child_cannot_end_an_inherited_subscriber_and_the_parent_misses_nothing() -> None:
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
            assert in_child(work).startswith("SubscriberError: feed 'publisher': the subscriber belongs to process ")
        publisher.publish(b"T", b"2")
        publisher.flush()
    subscriber.run(until_end=True)
    assert got.payloads == [b"1", b"2"]
