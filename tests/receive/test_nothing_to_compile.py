"""All code for delivery is compiled before `start` returns; a later compilation would look like a slow subscriber."""

from __future__ import annotations

import msgspec

from blackbox import Feed
from tests.support import Script

CALLBACKS = """
import gc
from numba.core.dispatcher import Dispatcher
subscriber = Subscriber(feed, workers=1)
subscriber.book(b"A.")
@subscriber.on_batch(b"", independent=True)
def batches(batch):
    batch.indices("P"), batch.records("P"), batch.payloads()
@subscriber.on_batch(b"A.")
def some(batch):
    batch.indices("P"), batch.payloads()
@subscriber.on(b"A.")
def message(message):
    pass
@subscriber.on(b"B.")
def other(message):
    pass
def compiled():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {str(each): len(each.overloads) for each in kernels if each.overloads}
from blackbox_feeds.itch50 import SCHEMA
trade = numpy.zeros(1, SCHEMA.dtype("P"))
trade["message_type"] = b"P"
with Publisher(feed, when_full="wait") as publisher:
    subscriber.start(timeout=200)
    before = compiled()
    for number in range(100):
        publisher.publish(b"AB"[number % 2 :][:1] + b".P", trade.tobytes())
    publisher.flush()
    wait_until(lambda: subscriber.statistics().delivery.delivered == 300, 60, "300 deliveries")
    after = compiled()
subscriber.run(until_end=True)
say(sorted(name for name in after if after[name] != before.get(name, 0)))
"""


def test_nothing_is_compiled_after_the_start() -> None:
    feed = msgspec.structs.replace(Feed.local("warm", slices=1, schema="itch50"), max_lag_ns=10**12)
    with Script(CALLBACKS, feed) as script:
        script.expect("[]")
        assert script.finish()[0] == 0
