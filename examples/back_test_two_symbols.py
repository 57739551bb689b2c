"""How do I back-test a strategy on two symbols and get the same trades from a live feed?"""

import tempfile
from threading import Thread

from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Message, Publisher, Recorder, Recording, Replay, Subscriber


class Pair:
    """Sells MSFT and buys AAPL when their ratio is 0.1 % above its running mean; reverses 0.1 % below."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.last: dict[str, int] = {}
        self.mean = 0.0
        self.seen = 0
        self.trades: list[tuple[int, bool]] = []
        # The group runs both callbacks on one worker, so that messages keep their order across symbols.
        subscriber.on(b"AAPL.P", group="pair")(lambda message: self.see("AAPL", message))
        subscriber.on(b"MSFT.P", group="pair")(lambda message: self.see("MSFT", message))

    def see(self, symbol: str, message: Message) -> None:
        self.last[symbol] = message.record.price
        if len(self.last) < 2:
            return
        ratio = self.last["MSFT"] / self.last["AAPL"]
        self.seen += 1
        self.mean += (ratio - self.mean) / self.seen
        if abs(ratio / self.mean - 1) > 0.001:
            is_high = ratio > self.mean
            if not self.trades or self.trades[-1][1] != is_high:
                self.trades.append((message.ts_event, is_high))


def live(feed: Feed, recording: Recording) -> Pair:
    """Publish the recording over a socket and run the strategy on it."""
    subscriber = Subscriber(feed)
    pair = Pair(subscriber)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        sending = Thread(target=Replay(recording).publish, args=(publisher,))
        sending.start()
        sending.join()
    subscriber.run(until_end=True)
    return pair


feed = Feed.local("session", slices=1, schema="itch50")  # several slices have no common order
with tempfile.TemporaryDirectory() as directory:
    recorder = Recorder(feed, directory)  # stands in for a day recorded earlier
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        Synthetic(500_000, symbols=50).publish(publisher)
    recorder.run(until_end=True)
    (day,) = recorder.directory.glob("*-*-*")
    recording = Recording.open(day)

    subscriber = Subscriber(feed)
    pair = Pair(subscriber)
    subscriber.replay(recording)

    print(f"{len(pair.trades)} trades, the same live: {live(feed, recording).trades == pair.trades}")
