"""How do I start with the newest message of every topic and keep a table of them?"""

import tempfile
import time

import msgspec

from blackbox import Batch, Feed, Publisher, Recorder, Subscriber


def main() -> None:
    """Publish prices before anyone subscribes; then start a subscriber and update a price."""
    with tempfile.TemporaryDirectory() as directory:
        feed = msgspec.structs.replace(Feed.local("prices", slices=1), archives=(f"ipc://{directory}/archive",))
        with Publisher(feed) as publisher, Recorder(feed, directory, serve=True):
            publisher.wait_for_subscribers()
            for cents in range(18_900, 18_999):
                publisher.publish(b"AAPL.price", b"%d.%02d" % divmod(cents, 100))
            publisher.publish(b"MSFT.price", b"370.10")
            publisher.wait_recorded()

            subscriber = Subscriber(feed)
            table = subscriber.table(b"")

            @subscriber.on_batch(b"AAPL.")
            def price(batch: Batch) -> None:
                print(f"{'image' if batch.is_image else 'then'}: {batch.payload_list()[-1]!r}")

            subscriber.start(snapshot="latest")
            table.wait_synced()
            print(f"synced: {sorted(table.items())}")
            publisher.publish(b"AAPL.price", b"190.00")
            publisher.flush()
            while table[b"AAPL.price"] != b"190.00":
                time.sleep(0.01)
            print(f"now: {table[b'AAPL.price']!r} {len(table)}")
            subscriber.stop()


if __name__ == "__main__":
    main()
