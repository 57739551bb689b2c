"""A publisher whose confirmations arrive late, after everything queued before them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from blackbox import Feed
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import CONFIRM_KEY
from blackbox.testing import RawPublisher


@contextmanager
def late_answers(feed: Feed, beats: int) -> Iterator[RawPublisher]:
    """Yield a raw publisher that sends heartbeats, and each confirmation `beats` heartbeats after its request."""
    over = threading.Event()
    due: dict[bytes, int] = {}

    def serve() -> None:
        beat = 0
        while not over.wait(feed.heartbeat_ns / 1e9):
            beat += 1
            publisher.heartbeat()
            for key in publisher.subscriptions():
                if key.startswith(CONFIRM_KEY) and due.setdefault(key, beat + beats) == beat:
                    answer = Block.encode_ends(
                        key,
                        {},
                        HeaderFields(slice_id=0, epoch=publisher.epoch, ts_out=time.time_ns(), key_rule=feed.key_rule),
                    )
                    publisher.send_frames(answer.frames)

    publisher = RawPublisher(feed)
    publisher.confirms = False
    thread = threading.Thread(target=serve)
    with publisher:
        thread.start()
        try:
            yield publisher
        finally:
            over.set()
            thread.join()
