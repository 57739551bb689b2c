"""Strangers report to an archive positions in the names of others, impossible positions and junk names."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from blackbox import Feed, Publisher, Recorder
from blackbox.archive.consumer_positions import CONSUMERS, owned_consumers
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.errors import ArchiveError
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.torture.outcome import Outcome

COUNT = 500
NAME = "strategy-1"
FAR = (1 << 63) - 1


def attack(random: Random, seconds: float) -> Outcome:
    """Report anything in any name with wrong secrets; the honest consumer keeps its position and can still move it."""
    archives = tuple(free_endpoints("tcp", "forged-consumers", 1, 1)[0])
    feed = msgspec.structs.replace(Feed.local("forged-consumers", slices=1), archives=archives)
    secret, found, tried = random.randbytes(32), list[str](), 0
    with TemporaryDirectory() as directory:
        place = Path(directory) / feed.name
        with Publisher(feed) as publisher, Recorder(feed, directory) as recorder:
            for number in range(COUNT):
                publisher.publish(b"T", b"%d" % number)
            publisher.flush()
            wait_until(lambda: recorder.statistics().messages == COUNT)
            epoch = publisher.epoch
        with (
            ArchiveServer(place, feed.archives, keeps_for_consumers=True) as archive,
            ArchiveClient(feed, timeout=60).kept() as client,
        ):
            client.tell(NAME, {0: Position(epoch, 1)}, secret)
            (kept,) = owned_consumers(place / CONSUMERS).values()
            end = time.monotonic() + seconds
            sequence = 1
            while (tried == 0 or time.monotonic() < end) and not found:
                forged = [
                    Position(random.choice([0, epoch, epoch + 1, FAR]), random.choice([0, COUNT, FAR])),
                ]
                positions = {random.choice([0, 0, 0, 1, FAR]): random.choice(forged)}
                name = random.choice([NAME, f"junk-{random.randrange(1000)}", "../evil", "x" * 255])
                positions = random.choice([positions, positions, {}])
                with suppress(ArchiveError):
                    client.tell(name, positions, random.randbytes(random.choice([0, 31, 32])))
                tried += 1
                if tried % 10 == 0:
                    sequence = min(COUNT, sequence + 1)
                    client.tell(NAME, {0: Position(epoch, sequence)}, secret)
                at = kept.read()
                expected = {0: Position(epoch, sequence)}
                if at is None or at.slices != expected:
                    found.append(f"after {name!r} {positions}: {NAME} was at {at}, expected sequence {sequence}")
                for other, file in owned_consumers(place / CONSUMERS).items() if found or tried % 50 == 0 else ():
                    noted = file.read()
                    wrong = noted is None or any(each > (epoch, COUNT) for each in noted.slices.values())
                    if wrong:
                        found.append(f"{other} was stored at {noted}, beyond {COUNT} of {epoch}")
            if archive.statistics().dropped:
                found.append(f"{archive.statistics().dropped} requests were not answered")
    return Outcome(tried, "forged reports of consumers", found)
