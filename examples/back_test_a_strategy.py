"""How do I back-test a strategy on a recorded day with reproducible results?"""

import tempfile

from blackbox_feeds.synthetic import Synthetic

from blackbox import Batch, Feed, Publisher, Recorder, Recording, Subscriber


class BuyBelowVwap:
    """Holds a share while AAPL trades at least 0.1 % below the day's VWAP; prices are in 1/10,000 dollars."""

    def __init__(self) -> None:
        self.value = self.shares = self.cash = self.trades = self.position = self.last = 0

    def see(self, price: int, shares: int) -> None:
        self.value += price * shares
        self.shares += shares
        self.last = price
        wanted = int(1_000 * price * self.shares < 999 * self.value)
        self.cash -= (wanted - self.position) * price
        self.trades += wanted != self.position
        self.position = wanted

    @property
    def profit(self) -> float:
        """Profit in dollars, with the position valued at the last price."""
        return (self.cash + self.position * self.last) / 10_000


def back_test(recording: Recording) -> BuyBelowVwap:
    strategy = BuyBelowVwap()
    subscriber = Subscriber(recording.feed)

    @subscriber.on_batch(b"AAPL.P")  # trades; the same callback works on the live feed
    def trades(batch: Batch) -> None:
        records = batch.records("P")
        for price, shares in zip(records["price"].tolist(), records["shares"].tolist(), strict=True):
            strategy.see(price, shares)

    subscriber.replay(recording)  # in this thread, in time order; start=, stop= select a part
    return strategy


feed = Feed.local("session", schema="itch50")
with tempfile.TemporaryDirectory() as directory:
    recorder = Recorder(feed, directory)  # stands in for a day recorded earlier
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        Synthetic(500_000, symbols=50).publish(publisher)
    recorder.run(until_end=True)
    (day,) = recorder.directory.glob("*-*-*")

    runs = [back_test(Recording.open(day)) for _ in range(3)]

for run in runs:
    print(f"{run.trades} trades, profit {run.profit:.2f}, VWAP {run.value / run.shares / 10_000:.4f}")
