"""How do I publish my own format and receive typed records?"""

from collections.abc import Iterator

import numpy

from blackbox import Batch, Feed, Publisher, Schema, Source, Subscriber
from blackbox.feed.source import Chunk

TICK = numpy.dtype([("type", "S1"), ("price", "<i4"), ("size", "<u2")])
SCHEMA = Schema("rates", schema_id=1_002, records={"t": TICK})


class Ticks(Source):
    """Synthetic ticks. A real source would read a file; register it in the entry-point group `blackbox.feeds`."""

    schema = SCHEMA

    def chunks(self) -> Iterator[Chunk]:
        """Yield one chunk of 10,000 messages with two topics."""
        number = numpy.arange(10_000)
        records = numpy.zeros(len(number), TICK)
        records["type"], records["price"], records["size"] = b"t", 100 + number % 7, 1 + number % 3
        yield Chunk(
            topics=(b"EURUSD.t", b"GBPUSD.t"),
            topic_index=(number % 2).astype(numpy.int32),
            ts_event=1_700_000_000_000_000_000 + number,
            payloads=records.view(numpy.uint8),
            starts=number * TICK.itemsize,
            lengths=numpy.full(len(number), TICK.itemsize, numpy.int32),
        )


feed = Feed.local("rates", schema=SCHEMA)  # schema="rates" once SCHEMA is registered in the group `blackbox.schemas`
subscriber = Subscriber(feed)
volume = [0]


@subscriber.on_batch(b"EURUSD.")
def ticks(batch: Batch) -> None:
    volume[0] += int(batch.records("t")["size"].sum(dtype=numpy.int64))


with Publisher(feed, when_full="wait") as publisher:
    subscriber.start()
    print("published:", Ticks().publish(publisher))

subscriber.run(until_end=True)
print("EURUSD volume:", volume[0])
