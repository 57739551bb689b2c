"""A publisher inherited by a forked process belongs to the parent; the child gets an error."""

from __future__ import annotations

import numpy

from blackbox import Publisher
from tests.publish.subscribers import collected, one_slice
from tests.support import in_child


def test_publish_in_a_forked_process_is_an_error_and_the_parent_goes_on() -> None:
    feed = one_slice()
    subscriber, got = collected(feed)
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"T", b"1")
        publisher.publish_many((b"T",), numpy.zeros(1, int), numpy.full((1, 1), ord("2"), numpy.uint8))
        rows = numpy.zeros((1, 1), numpy.uint8)
        for work in (
            lambda: publisher.publish(b"T", b"lost"),
            lambda: publisher.publish_many((b"T",), numpy.zeros(1, int), rows),
            publisher.flush,
            publisher.wait_for_subscribers,
        ):
            assert in_child(work).startswith("PublisherError: feed 'publisher': the publisher is of process ")
        assert in_child(publisher.close) == ""
        publisher.publish(b"T", b"3")
    subscriber.run(until_end=True)
    assert got.payloads == [b"1", b"2", b"3"]


def test_a_publisher_made_in_a_forked_process_publishes_there() -> None:
    feed = one_slice()
    publisher = Publisher(feed)

    def work() -> None:
        subscriber, got = collected(feed)
        with publisher, subscriber:
            publisher.publish(b"T", b"1")
            got.wait(1)

    assert in_child(work) == ""
