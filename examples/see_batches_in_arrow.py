"""How do I pass batches to Arrow, pandas or Polars? Needs the extra `arrow`: pip install '.[arrow]'."""

import pyarrow
from blackbox_feeds.synthetic import Synthetic

from blackbox import Batch, Feed, Publisher, Subscriber

feed = Feed.local("session", slices=1, schema="itch50")
subscriber = Subscriber(feed)
batches: list[pyarrow.RecordBatch] = []


@subscriber.on_batch(b"")
def keep(batch: Batch) -> None:
    batches.append(batch.to_arrow())  # zero-copy


with Publisher(feed, when_full="wait") as publisher:
    subscriber.start()
    Synthetic(50_000).publish(publisher)

subscriber.run(until_end=True)
table = pyarrow.Table.from_batches(batches).unify_dictionaries()
print(table.schema.names, table.num_rows)
