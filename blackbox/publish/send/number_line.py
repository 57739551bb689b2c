"""Epoch and sequences of a publisher's slice, and its topics: what the sender stamps on blocks."""

from __future__ import annotations

import time

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import Origin, TopicTable
from blackbox.errors import PublisherError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.publish.listeners.wanted import WantedKeys
from blackbox.publish.send.outbox import OutboxSlice
from blackbox.publish.send.ring import SURE
from blackbox.publish.send.sender_state import SenderState

TOPIC_TEXT_BYTES = 32
"""Average room for a topic's text, per topic of `max_topics`."""


class NumberLine:
    """The number line of a slice: `origin` has its epoch, `state` its next sequence, `ends` and `counts` its keys'.

    The sending thread advances it. A new epoch begins while no thread publishes, so that each block has one epoch.
    """

    def __init__(self, feed: Feed, slice_id: int, epoch: int, keys: WantedKeys, outbox: OutboxSlice) -> None:
        self.origin = Origin(load_schema(feed.schema).schema_id, slice_id, feed.key_rule, epoch)
        self.state = SenderState()
        self.state.asked_at, self.state.asked_from, self.state.epoch = time.time_ns(), SURE, epoch
        self.ends, self.counts = numpy.zeros((2, feed.max_keys), numpy.int64)
        self._keys = keys
        if (
            not feed.key_rule
        ):  # heartbeats include it from the start, so that a loss before its first message is reported
            self.add_key(b"")
        self.state.sequence, ends = outbox.begin()
        self.state.kept = outbox.sequence
        for key, end in ends.items():
            number = self.add_key(key)
            self.ends[number], self.counts[number] = end

    def add_key(self, key: bytes) -> int:
        """Return the number of a key. Call with `ring.lock` held."""
        number = self._keys.add_key(key)
        self.state.keys = len(self._keys.keys)
        return number

    @property
    def position(self) -> int:
        """Next sequence of the current epoch, including blocks still to be sent again."""
        return max(self.state.sequence, self.state.kept)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch with sequence 0. Call in the sender's thread while no thread publishes."""
        self.origin = self.origin._replace(epoch=epoch)
        self.state.epoch = epoch
        self.ends[:] = self.counts[:] = self.state.sequence = self.state.kept = 0
        self._keys.begin_epoch(epoch)


class SliceTopics:
    """Topics of a slice, numbered for compiled code. Publishing threads that hold `ring.lock` add topics."""

    def __init__(self, feed: Feed, slice_id: int, numbers: NumberLine) -> None:
        self.ids: dict[bytes, int] = {}
        self.table = TopicTable(
            numpy.zeros(feed.max_topics * TOPIC_TEXT_BYTES, numpy.uint8),
            numpy.zeros(feed.max_topics, numpy.int64),
            numpy.zeros(feed.max_topics, numpy.int32),
        )
        self.key_of_topic: NDArray[numpy.int32] = numpy.zeros(feed.max_topics, numpy.int32)
        self._feed, self._slice_id, self._numbers = feed, slice_id, numbers
        self._text_end = 0

    def add(self, topic: bytes) -> int:
        """Return the id of a topic of this slice. Raises PublisherError if the table is full."""
        known = self.ids.get(topic)
        if known is not None:
            return known
        number = len(self.ids)
        end = self._text_end + len(topic)
        if number >= self._feed.max_topics or end > self.table.text.nbytes:
            raise PublisherError(
                f"slice {self._slice_id}: topic {topic[:64]!r} did not fit: {number} topics of {self._text_end} bytes, "
                f"expected at most max_topics = {self._feed.max_topics} of {TOPIC_TEXT_BYTES} bytes on average"
            )
        self.table.text[self._text_end : end] = numpy.frombuffer(topic, numpy.uint8)
        self.table.offsets[number] = self._text_end
        self.table.sizes[number] = len(topic)
        self.key_of_topic[number] = self._numbers.add_key(self._feed.key_of(topic))
        self._text_end = end
        self.ids[topic] = number
        return number
