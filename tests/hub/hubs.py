"""Feeds with a hub, and processes of hubs and clients that are killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from blackbox import Feed, HubClient, Recording
from blackbox.feed.endpoint import free_endpoints

HUB: Final = """
def work(directory):
    with Hub(feed, directory) as hub:
        notes[0] += 1
        hub.run()
"""


def hub_feed(name: str = "hub", slices: int = 2, *, schema: str = "raw", key_bytes: int = 0, channels: int = 1) -> Feed:
    """Return a feed on free ports, with a hub that is its only archive."""
    feed = Feed.local(name, slices=slices, schema=schema, key_bytes=key_bytes, channels=channels)
    archives, hub = free_endpoints("tcp", name, 2, 1)
    return msgspec.structs.replace(feed, archives=archives, hub=hub[0], heartbeat_ns=200_000_000)


def published(directory: Path, feed: Feed) -> list[tuple[int, int, int, bytes, bytes | None]]:
    """Return all messages of an ended hub, in order: (epoch, slice, sequence, topic, payload)."""
    found = [
        (message.epoch, message.slice_id, message.sequence, message.topic, message.payload)
        for manifest in sorted((directory / feed.name).glob("*/manifest.json"))
        for batch in Recording.open(manifest.parent).batches()
        for message in batch
    ]
    return sorted(found, key=lambda each: each[:3])


def topics_of(feed: Feed) -> list[bytes]:
    """Return a topic of each slice."""
    found = {feed.slice_of(b"%d" % number): b"%d" % number for number in range(99)}
    return [found[slice_id] for slice_id in range(len(feed.slices))]


def sizes(directory: Path) -> dict[Path, int]:
    """Return the size of each journal of a hub, by its path below the directory."""
    return {path.relative_to(directory): path.stat().st_size for path in directory.rglob("*.journal")}


def leave(directory: Path, left: Path, had: dict[Path, int], *slices: int) -> Path:
    """Copy a hub's directory, with some slices cut to the sizes `had`, as if it had been killed then."""
    shutil.copytree(directory, left, ignore=shutil.ignore_patterns("*.new"))  # a running hub replaces such files
    for path, size in had.items():
        if int(path.parent.name.removeprefix("slice-")) in slices:
            os.truncate(left / path, size)
            (left / path).with_suffix(".index").unlink()
    return left


def reboot(directory: Path) -> None:
    """Make the hubs in a directory believe that the system has restarted, as after a power cut."""
    for path in directory.rglob("boot"):
        path.write_text("an earlier start of the system 1")


def put_for_damage(client: HubClient) -> None:
    """Put the messages for `damage_days`. Texts, because bare numbers may equal other bytes of a journal."""
    for number in range(100):
        client.put_soon(b"A", b"message %d" % number)
    client.flush()


def damage_days(directory: Path) -> None:
    """Change one message of `put_for_damage` in the days of a hub, which can then no longer be read."""
    journals = {path: path.read_bytes() for path in directory.glob("*/*/slice-*/*.journal")}
    journal = next(path for path, data in journals.items() if b"message 50" in data)
    data = bytearray(journals[journal])
    data[data.index(b"message 50")] ^= 1
    journal.write_bytes(data)
