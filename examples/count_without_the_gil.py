"""How do I process every message at tens of millions per second?"""

from typing import Any

import numpy
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Publisher, Subscriber

feed = Feed.local("session", schema="itch50")
subscriber = Subscriber(feed)


@subscriber.on_compiled(b"", state=numpy.zeros(256, numpy.int64))
def by_type(batch: Any, state: Any) -> None:  # compiled by numba, runs without the GIL, one state per slice
    for row in batch.rows:
        start = batch.offsets[row] if batch.stride < 0 else row * batch.stride
        state[batch.payloads[start]] += 1


with Publisher(feed, when_full="wait") as publisher:
    subscriber.start()
    Synthetic(1_000_000).publish(publisher)

subscriber.run(until_end=True)
counts = by_type.total()  # the sum over the slices
print({chr(kind): int(counts[kind]) for kind in numpy.flatnonzero(counts)})
print("messages:", counts.sum())
