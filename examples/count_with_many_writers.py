"""How do I keep an exact counter that several writers raise?"""

import secrets
import tempfile
import threading

import msgspec

from blackbox import Feed, Hub, HubClient, Subscriber, Table
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import ConflictError, NotStoredError


def raise_by_one(table: Table, topic: bytes) -> Place:
    """Add 1 to the value of a topic and return the place of the write."""
    while True:
        entry = table.entry(topic)
        count = 0 if entry is None else int(entry.payload)
        at = NOWHERE if entry is None else entry.place
        attempt = secrets.token_bytes(16)  # an id: repeated, this attempt is stored once
        while True:
            try:
                return table.put(topic, b"%d" % (count + 1), id=attempt, if_at=at)
            except NotStoredError:
                continue  # unknown result: repeat with the same id and `if_at`
            except ConflictError as error:
                table.wait(error.found)  # another write was first: read it
                break


def count(feed: Feed, name: str, times: int) -> bytes:
    """Raise the counter several times and return its value."""
    subscriber = Subscriber(feed, on_gap="repair")
    with HubClient(feed, name) as client:
        table = subscriber.table(b"count", client=client)
        with subscriber.start(snapshot="latest"):
            table.wait_synced()
            for _ in range(times):
                table.wait(raise_by_one(table, b"count"))
            return table[b"count"]


def main() -> None:
    """Let two clients raise one counter of a hub at the same time."""
    with tempfile.TemporaryDirectory() as directory:
        feed = msgspec.structs.replace(
            Feed.local("counters", slices=1), hub=f"ipc://{directory}/hub", archives=(f"ipc://{directory}/archive",)
        )
        with Hub(feed, directory):
            other = threading.Thread(target=count, args=(feed, "desk-2", 20))
            other.start()
            count(feed, "desk-1", 20)
            other.join()
            print("count:", count(feed, "reader", 0).decode())


if __name__ == "__main__":
    main()
