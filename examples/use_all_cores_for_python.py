"""How do I run Python callbacks on several cores?"""

import os

from blackbox_feeds.synthetic import Synthetic

from blackbox import Batch, Feed, Publisher, Subscriber

feed = Feed.local("session", slices=2, schema="itch50")
subscriber = Subscriber(feed, processes=True)  # one process per slice, started and stopped with the subscriber


@subscriber.on_batch(b"")
def where(batch: Batch) -> None:
    # Changes made by a callback stay in its process: send results elsewhere, or use a compiled callback's state.
    if batch.sequence[0] == 0:
        print(f"slice {batch.block.slice_id}: in its own process: {os.getpid() != main_process}", flush=True)


main_process = os.getpid()
with Publisher(feed, when_full="wait") as publisher:
    subscriber.start()
    Synthetic(100_000).publish(publisher)

subscriber.run(until_end=True)
print("delivered:", subscriber.statistics().delivery.delivered)
