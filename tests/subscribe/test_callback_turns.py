"""Message callbacks on one worker take turns, also live."""

from __future__ import annotations

import pytest

from blackbox import Feed, Message, Publisher, Subscriber

MESSAGES = 3_000


def heard(workers: int, **options: object) -> list[tuple[int, int]]:
    """Return (callback, message) in order: one callback gets all messages, two get half of them each."""
    feed = Feed.local("turns")
    subscriber = Subscriber(feed, workers=workers)
    came: list[tuple[int, int]] = []

    def register(number: int, prefix: bytes) -> None:
        @subscriber.on(prefix, **options)  # type: ignore[arg-type]
        def _(message: Message) -> None:
            came.append((number, int(message.payload)))

    for number, prefix in enumerate((b"B", b"", b"A")):
        register(number, prefix)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        topics = [b"A.x", b"B.x"]
        payloads = [b"%04d" % n for n in range(MESSAGES)]
        for first in range(0, MESSAGES, 500):
            for n in range(first, first + 500):
                publisher.publish(topics[n % 2], payloads[n], n + 1)
    subscriber.run(until_end=True)
    return came


EXPECTED = [
    (number, n) for n in range(MESSAGES) for number, wants in enumerate((n % 2 == 1, True, n % 2 == 0)) if wants
]


def test_each_message_reaches_all_callbacks_of_a_worker_before_the_next() -> None:
    assert heard(workers=1) == EXPECTED


def test_a_group_runs_on_one_worker() -> None:
    assert heard(workers=3, group="pair") == EXPECTED


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_independent_callback_takes_no_turns_and_keeps_its_order(number: int) -> None:
    came = heard(workers=1, independent=True)
    assert sorted(came) == sorted(EXPECTED)
    assert [n for callback, n in came if callback == number] == [n for callback, n in EXPECTED if callback == number]
