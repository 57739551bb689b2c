"""Imported messages with equal times are delivered in order of slice and number."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Feed, Recording, Subscriber
from blackbox.archive.importing.import_days import import_days
from tests.archive.imports import DAY, NOON, Made
from tests.examples import examples
from tests.journals import feed_of

Messages = list[tuple[bytes, bytes, int]]
"""Topic, payload and time, in source order."""
TOPICS = (b"A.t", b"A.q", b"AB.t", b"B.t", b"B.q", b"C.q")
rows = st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 3)), min_size=1, max_size=60)


def messages_of(drawn: list[tuple[bytes, int]]) -> Messages:
    """Return messages in order of time, each with its number as payload."""
    found = [(topic, b"%d" % number, NOON + time) for number, (topic, time) in enumerate(drawn)]
    return sorted(found, key=lambda message: message[2])


def expected(feed: Feed, messages: Messages) -> list[bytes]:
    """Return the payloads by time, slice and source order."""
    places = sorted(enumerate(messages), key=lambda each: (each[1][2], feed.slice_of(each[1][0]), each[0]))
    return [payload for _, (_, payload, _) in places]


def by_number(recording: Recording) -> list[bytes]:
    """Return the payloads by time, slice and number."""
    found = [
        (message.ts_event, message.slice_id, message.sequence, message.payload)
        for batch in recording.batches()
        for message in batch
    ]
    return [payload for *_, payload in sorted(found)]


def check(recording: Recording, messages: Messages) -> None:
    """Check a replay's order; with keys, numbers follow the blocks (one key each) instead of the source."""
    came = replayed(recording)
    assert came == by_number(recording)
    assert sorted(came) == sorted(payload for _, payload, _ in messages)
    if not recording.feed.key_bytes:
        assert came == expected(recording.feed, messages)


def replayed(recording: Recording) -> list[bytes]:
    subscriber = Subscriber(recording.feed)
    came: list[bytes] = []
    subscriber.on(b"")(lambda message: came.append(message.payload))
    assert subscriber.replay(recording).misplaced == 0
    return came


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows, st.integers(1, 3), st.sampled_from([0, 1, 2]), st.randoms(use_true_random=False))
def test_a_source_imported_in_any_chunks_is_played_in_order(
    drawn: list[tuple[bytes, int]], slices: int, key_bytes: int, random: Random
) -> None:
    feed, messages = feed_of(slices, key_bytes), messages_of(drawn)
    if slices > 1:
        messages = [each for each in messages if ord(each[0][:1]) - ord("A") < slices]
    if not messages:
        return
    with TemporaryDirectory() as directory:
        cuts = sorted(random.randint(0, len(messages)) for _ in range(3))
        parts = [messages[a:b] for a, b in zip([0, *cuts], [*cuts, len(messages)], strict=True)]
        source = Made(*(part for part in parts if part), date=DAY)
        (day,) = import_days(feed, Path(directory) / "imported", [source], block_bytes=4096)
        check(Recording.open(day.path), messages)
