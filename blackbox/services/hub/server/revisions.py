"""Places of each topic's newest message, by which a hub judges conditional puts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from blackbox.archive.files.day import recorded_days
from blackbox.archive.recording import open_kept
from blackbox.archive.serve.newest_of_slice import Newest
from blackbox.block.position import NOWHERE
from blackbox.errors import HubError

Revision = tuple[int, int]
"""Epoch and sequence."""
NO_VALUE: Revision = NOWHERE[1:]


class Revisions:
    """The revision of each topic that has a value, once they are known. Some 250 bytes a topic.

    Attributes: `is_known`, True once they are known; then the hub notes each put.
    """

    def __init__(self) -> None:
        self.is_known = False
        self._of: dict[bytes, Revision] = {}

    def __getitem__(self, topic: bytes) -> Revision:
        return self._of.get(topic, NO_VALUE)

    def know(self, places: dict[bytes, Revision]) -> None:
        """Set the newest message of every topic."""
        self._of, self.is_known = places, True

    def note(self, topic: bytes, revision: Revision, has_value: bool) -> None:
        """Note the newest message of a topic."""
        if has_value:
            self._of[topic] = revision
        else:
            self._of.pop(topic, None)


def newest_places(
    directory: Path, epoch: int, following: Sequence[int], pause: Callable[[], None]
) -> dict[bytes, Revision]:
    """Return the place of each topic's newest message.

    The days must reach `following`, the next number of each slice in this epoch.
    `pause` is called after each part of a day; an error that it raises ends the reading.
    Raises HubError if the days do not reach it, or some of them cannot be read; JournalError.
    """
    slices: dict[int, Newest] = {}
    for path in recorded_days(directory):
        if (day := open_kept(path)) is None:
            continue
        for slice_id in range(len(day.feed.slices)):
            if slice_id not in slices:
                slices[slice_id] = Newest(slice_id, day.feed.key_rule, day.feed.max_topics, has_payloads=False)
            for run in day.runs(slices=[slice_id]):
                slices[slice_id].take(run)
                pause()
        if day.damage:
            raise HubError(f"day {path} was damaged, so the newest messages of topics are unknown: {day.damage[0]}")
    for slice_id, number in enumerate(following):
        newest = slices.get(slice_id)
        reached = newest.position.sequence if newest is not None and newest.epoch == epoch else 0
        if reached != number:
            raise HubError(f"days of slice {slice_id} reached {reached} of epoch {epoch}, expected {number}")
    found: dict[bytes, Revision] = {}
    for newest in slices.values():
        for topic, revision in newest.places().items():
            found[topic] = max(revision, found.get(topic, NO_VALUE))
    return found
