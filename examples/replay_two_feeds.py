"""How do I replay two feeds with different message types in one time order?"""

import tempfile

import numpy

from blackbox import Feed, Message, Recording, Schema, Subscriber

TRADE = Schema("trade", 1_003, {"t": numpy.dtype([("type", "S1"), ("price", "<f8")])})
SIGNAL = Schema("signal", 1_004, {"s": numpy.dtype([("type", "S1"), ("score", "<f8")])})
SECONDS = 1_735_828_200_000_000_000 + 1_000_000_000 * numpy.arange(6)

subscriber = Subscriber(Feed.local("strategy"))  # a feed that accepts any topic
scores = [0.0]


@subscriber.on(b"IBM.signal")
def signal(message: Message) -> None:
    scores.append(message.record.score)


@subscriber.on(b"IBM.trade")
def trade(message: Message) -> None:
    print(f"{message.batch.feed}: IBM at {message.record.price:.2f}, score {scores[-1]:+.1f}")


with tempfile.TemporaryDirectory() as directory:
    trades = {
        "topic": ["IBM.trade"] * 3,
        "ts_event": SECONDS[[1, 2, 4]],
        "price": [220.0, 220.1, 219.9],
    }
    signals = {"topic": ["IBM.signal"] * 2, "ts_event": SECONDS[[0, 3]], "score": [0.5, -1.0]}
    subscriber.replay(
        [
            Recording.create(directory, Feed.local("trades", schema=TRADE), trades, message_type="t"),
            Recording.create(directory, Feed.local("signals", schema=SIGNAL), signals, message_type="s"),
        ]
    )
