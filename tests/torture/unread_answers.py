"""Readers of an archive send requests without reading replies: an honest reader is served, memory stays bounded."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import zmq

from blackbox import Feed, Publisher, Recorder
from blackbox.archive.serve.protocol import ENCODER, AskAbout, AskBlocks, AskImage
from blackbox.archive.serve.server import ArchiveServer
from blackbox.archive.serve.turns import MOST_IN_FLIGHT
from blackbox.block.position import Position
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.process_state import resident_bytes
from tests.torture.outcome import Outcome

COUNT = 20_000
PAYLOAD_BYTES = 500
MOST_HOGS = 100
MOST_HELD_BYTES = MOST_IN_FLIGHT + (256 << 20)
"""Limit on growth beyond replies in flight: buffers of this process as a reader, and of 100 connections."""
ANSWER_MS = 60_000


def attack(random: Random, seconds: float) -> Outcome:
    """Open a connection that requests without reading, or close one; then an honest reader must get a reply."""
    archives = tuple(free_endpoints("tcp", "unread-answers", 1, 1)[0])
    feed = msgspec.structs.replace(Feed.local("unread-answers", slices=1), archives=archives)
    found, tried = list[str](), 0
    with TemporaryDirectory() as directory, ExitStack() as stack:
        with Publisher(feed, when_full="wait") as publisher, Recorder(feed, directory) as recorder:
            for number in range(COUNT):
                publisher.publish(b"T%d" % (number % 100), random.randbytes(PAYLOAD_BYTES))
            publisher.flush()
            wait_until(lambda: recorder.statistics().messages == COUNT, 60)
            blocks = AskBlocks(slice_id=0, start=Position(publisher.epoch, 0))
        other = msgspec.structs.replace(blocks, slice_id=9)
        requests = [ENCODER.encode(each) for each in (blocks, AskAbout(), AskImage(slice_id=0, prefixes=(b"",)), other)]
        archive = stack.enter_context(ArchiveServer(Path(directory) / feed.name, feed.archives))
        context = stack.enter_context(zmq.Context())
        hogs: list[zmq.Socket[bytes]] = []
        honest = stack.enter_context(context.socket(zmq.DEALER))
        honest.linger = 0
        honest.connect(feed.archives[0])
        before, end = resident_bytes(), time.monotonic() + seconds
        while (tried == 0 or time.monotonic() < end) and not found:
            if len(hogs) == MOST_HOGS or (hogs and random.random() < 0.2):
                hogs.pop(random.randrange(len(hogs))).close()
            hog = context.socket(zmq.DEALER)
            hog.linger, hog.rcvhwm = 0, 1
            hog.setsockopt(zmq.RCVBUF, random.choice([4_096, 65_536, 1 << 20]))
            hog.connect(feed.archives[0])
            for _ in range(random.choice([1, 2, 30, 63, 200])):
                hog.send_multipart([random.randbytes(random.choice([0, 8, 1_000])), random.choice(requests)])
            hogs.append(hog)
            tried += 1
            honest.send_multipart([b"%d" % tried, requests[0]])
            if not honest.poll(ANSWER_MS):
                found.append(f"an honest reader had no reply in {ANSWER_MS} ms next to {len(hogs)} that do not read")
            elif honest.recv_multipart()[0] != b"%d" % tried:
                found.append(f"an honest reader received a reply other than that of request {tried}")
            if resident_bytes() - before > MOST_HELD_BYTES:
                found.append(f"{resident_bytes() - before} more bytes are held, expected at most {MOST_HELD_BYTES}")
        for hog in hogs:
            hog.close()
        if archive.statistics().answered < tried:
            found.append(f"{archive.statistics().answered} requests were answered, expected at least {tried}")
    return Outcome(tried, "readers that do not read", found)
