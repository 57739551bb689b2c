"""Where the newest message of each topic is: what a hub judges conditional puts by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from blackbox.archive.day import recorded_days
from blackbox.archive.newest import Newest
from blackbox.archive.recording import Recording
from blackbox.block.position import NOWHERE
from blackbox.errors import HubError

Revision = tuple[int, int]
"""Epoch and sequence."""
NO_VALUE: Revision = NOWHERE[1:]


class Revisions:
    """The revision of each topic that has a value, once they are known. Some 250 bytes a topic.

    Attributes: `is_known`: from then on the hub notes each put.
    """

    def __init__(self) -> None:
        """Nothing is known."""
        self.is_known = False
        self._of: dict[bytes, Revision] = {}

    def __getitem__(self, topic: bytes) -> Revision:
        return self._of.get(topic, NO_VALUE)

    def know(self, places: dict[bytes, Revision]) -> None:
        """Take the newest message of every topic."""
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
    """Return where the newest message of each topic is.

    The days must reach `following`, the next number of each slice in this epoch.
    `pause` is called after each part of a day; what it raises ends the reading.
    Raises HubError when they do not reach so far, or some of them cannot be read; JournalError.
    """
    slices: dict[int, Newest] = {}
    for path in recorded_days(directory):
        if (day := Recording._open_kept(path)) is None:
            continue
        for slice_id in range(len(day.feed.slices)):
            if slice_id not in slices:
                slices[slice_id] = Newest(slice_id, day.feed.key_rule, day.feed.max_topics, has_payloads=False)
            for run in day.runs(slices=[slice_id]):
                slices[slice_id].take(run)
                pause()
        if day.damage:
            raise HubError(f"day {path} was damaged, expected to know what each topic had: {day.damage[0]}")
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
