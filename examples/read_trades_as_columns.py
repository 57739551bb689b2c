"""How do I read the trades of some symbols as typed columns?"""

import numpy
from blackbox_feeds.synthetic import Synthetic

from blackbox import Batch, Feed, Publisher, Subscriber

feed = Feed.local("session", schema="itch50")
subscriber = Subscriber(feed)
prices: dict[str, list[float]] = {"AAPL": [], "MSFT": []}


@subscriber.on_batch(b"AAPL.P")  # topics are {symbol}.{type}; P is a trade against a hidden order
@subscriber.on_batch(b"MSFT.P")
def trades(batch: Batch) -> None:
    records = batch.records("P")  # a numpy array with the venue's field names
    dollars = records["price"] / 10_000
    prices[records["stock"][0].decode().rstrip()].extend(dollars.tolist())


with Publisher(feed, when_full="wait") as publisher:
    subscriber.start()
    Synthetic(200_000, symbols=50).publish(publisher)

subscriber.run(until_end=True)
for symbol, each in prices.items():
    print(f"{symbol}: {len(each)} trades, mean {numpy.mean(each):.2f}")
