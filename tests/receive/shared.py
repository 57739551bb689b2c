"""Feeds in shared memory, messages with numbers, and the state of the memory in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy

from blackbox import Batch, Feed, Publisher, Subscriber
from blackbox.publish.send.slice_sender import SliceSender
from tests.receive.subscribers import one_slice


def shared_feed(**settings: Any) -> Feed:
    return one_slice(transport="shm", **{"heartbeat_ns": 50_000_000} | settings)


def by_sockets(feed: Feed) -> Feed:
    """The same feed without shared memory in its feed file."""
    slices = tuple(msgspec.structs.replace(each, endpoints=each.lines) for each in feed.slices)
    return msgspec.structs.replace(feed, slices=slices)


def sender_of(publisher: Publisher) -> SliceSender:
    return publisher._slices[0].sender


def shared_state(publisher: Publisher) -> Any:
    shared = sender_of(publisher).sockets.shared
    assert shared is not None
    return shared.state


def came_by(subscriber: Subscriber) -> str:
    return subscriber.statistics().received.transport


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:blackbox")


def publish_numbers(publisher: Publisher, first: int, stop: int, size: int = 8) -> None:
    rows = numpy.zeros((stop - first, size // 8), numpy.int64)
    rows[:, 0] = numpy.arange(first, stop)
    publisher.publish_many((b"T",), numpy.zeros(stop - first, numpy.int32), rows.view(numpy.uint8))


def numbers_in(batch: Batch) -> list[int]:
    found: list[int] = batch.payloads().view(numpy.int64)[:, 0].tolist()
    return found
