"""How do I follow the order books of many symbols in a back-test?"""

import tempfile

from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Message, Publisher, Recorder, Recording, Subscriber

feed = Feed.local("session", slices=2, schema="itch50")
with tempfile.TemporaryDirectory() as directory:
    recorder = Recorder(feed, directory)  # stands in for a day recorded earlier
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        Synthetic(100_000, symbols=50).publish(publisher)
    recorder.run(until_end=True)
    (day,) = recorder.directory.glob("*-*-*")

    subscriber = Subscriber(feed)
    book = subscriber.book(b"")  # register it before the callbacks that read it
    away: list[float] = []

    @subscriber.on(b"AAPL.P")
    def trade(message: Message) -> None:
        bid, ask = book.best(b"AAPL")  # the book at this trade
        if bid is not None and ask is not None:
            away.append(abs(message.record.price - (bid.price + ask.price) / 2))

    subscriber.replay(Recording.open(day))

    print(f"{len(away)} trades of AAPL, {sum(away) / len(away) / 10**book.decimals:.4f} from the middle on average")
    print("never crossed:", book.counters()["crossed"] == 0)
    for symbol, bids, asks in book.tops(depth=2)[:3].tolist():
        print(symbol.decode(), "bids", bids, "asks", asks)
