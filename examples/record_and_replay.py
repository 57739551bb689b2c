"""How do I record a feed and replay it to the same callbacks later?"""

import tempfile

from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Message, Publisher, Recorder, Recording, Replay, Subscriber

feed = Feed.local("session", schema="itch50")


def count_apple(subscriber: Subscriber) -> dict[bytes, int]:
    """Register a callback that counts messages of AAPL by topic; return the counts."""
    counts: dict[bytes, int] = {}

    @subscriber.on(b"AAPL.")
    def apple(message: Message) -> None:
        counts[message.topic] = counts.get(message.topic, 0) + 1

    return counts


with tempfile.TemporaryDirectory() as directory:
    live = Subscriber(feed)
    counts_live = count_apple(live)
    recorder = Recorder(feed, directory)  # a second subscriber, usually its own process: `blackbox record`
    with Publisher(feed, when_full="wait") as publisher:
        live.start()
        recorder.start()
        Synthetic(100_000, symbols=50).publish(publisher)
    live.run(until_end=True)
    recorder.run(until_end=True)
    print("recorded:", recorder.statistics().messages)

    (day,) = recorder.directory.glob("*-*-*")  # <directory>/<feed>/<session date>
    recording = Recording.open(day)

    wire = Subscriber(feed)  # on the wire, as from a live feed
    counts_on_the_wire = count_apple(wire)
    with Publisher(feed, when_full="wait") as publisher:
        wire.start()
        Replay(recording).publish(publisher)  # speed=10.0: ten times as fast as recorded
    wire.run(until_end=True)

    here = Subscriber(feed)  # in this process, without sockets: the same batches every time
    counts_here = count_apple(here)
    here.replay(recording)

print("equal:", counts_live == counts_on_the_wire == counts_here, sum(counts_here.values()))
