"""How do I share a table between writers without overwriting values they have not seen?"""

import tempfile
import threading

import msgspec

from blackbox import Feed, Hub, HubClient, Subscriber
from blackbox.block.position import NOWHERE
from blackbox.errors import ConflictError


def main() -> None:
    """Let two desks write the limits of symbols through a hub and compare their tables."""
    with tempfile.TemporaryDirectory() as directory:
        feed = msgspec.structs.replace(
            Feed.local("limits", slices=1),
            hub=f"ipc://{directory}/hub",
            archives=(f"ipc://{directory}/archive",),
        )
        with Hub(feed, directory), HubClient(feed, "desk-1") as one, HubClient(feed, "desk-2") as two:
            subscribers = Subscriber(feed, on_gap="repair"), Subscriber(feed, on_gap="repair")
            first = subscribers[0].table(b"", client=one)
            second = subscribers[1].table(b"", client=two)
            gone = threading.Event()
            second.on_change(lambda topic, payload: gone.set() if (topic, payload) == (b"alive", None) else None)
            for subscriber in subscribers:
                subscriber.start(snapshot="latest")
            first.wait_synced()
            second.wait_synced()

            place = first.put(b"limits.AAPL", b"100", if_at=NOWHERE)  # only if there is no value
            first.put(b"limits.MSFT", b"50")
            first.put(b"alive", b"desk-1", ttl=0.2)  # deleted by the hub unless renewed
            first.put(b"limits.AAPL", b"120", if_at=place)
            try:
                second.put(b"limits.AAPL", b"110", if_at=place)
            except ConflictError as error:
                second.wait(error.found)
                print("desk-2: another was first:", second[b"limits.AAPL"])
                last = second.put(b"limits.AAPL", b"121", if_at=error.found)
            gone.wait(60)
            second.wait(last)
            first.wait(second.at)
            print("equal:", first.digest() == second.digest(), dict(sorted(first.items())))
            print("alive:", b"alive" in first)
            for subscriber in subscribers:
                subscriber.stop()


if __name__ == "__main__":
    main()
