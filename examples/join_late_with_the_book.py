"""How do I join late and start with full order books?"""

import tempfile
from typing import Any

import msgspec
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Publisher, Recorder, Subscriber


def main() -> None:
    """Publish half of a synthetic session, start a second subscriber, publish more, compare their books."""
    chunks = Synthetic(500_000, symbols=5).chunks()

    def publish(count: int) -> None:
        for _, chunk in zip(range(count), chunks, strict=False):
            columns: Any = {"ts_event": chunk.ts_event, "offsets": chunk.starts, "lengths": chunk.lengths}
            publisher.publish_many(chunk.topics, chunk.topic_index, chunk.payloads, **columns)
        publisher.wait_recorded()

    with tempfile.TemporaryDirectory() as directory:
        feed = Feed.local("nasdaq", slices=1, schema="itch50")
        feed = msgspec.structs.replace(feed, archives=(f"ipc://{directory}/archive",))
        early, late = Subscriber(feed), Subscriber(feed)
        had, has = early.book(b""), late.book(b"")
        with Publisher(feed, when_full="wait") as publisher, Recorder(feed, directory, serve=True):
            early.start()
            publish(2)
            late.start(snapshot="books")
            publish(1)
            late.wait_live()
        for subscriber in (early, late):
            subscriber.run(until_end=True)
        print(sum(len(had.orders(symbol)) for symbol in had.symbols), "orders rest")
        print("in sync:", has.synced)
        print("the same:", all((had.orders(symbol) == has.orders(symbol)).all() for symbol in had.symbols))


if __name__ == "__main__":
    main()
