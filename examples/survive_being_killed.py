"""How do I resume a killed strategy exactly once, without lost or repeated messages?"""

import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Publisher, Recorder, SlowPolicy, Subscriber

KILLS = int(sys.argv[1]) if len(sys.argv) == 2 else 3


def strategy(feed: Feed, path: Path) -> None:
    """Sum the shares traded by symbol. One transaction saves both state and positions."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS volumes (symbol PRIMARY KEY, shares INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS positions (slice PRIMARY KEY, epoch INTEGER, sequence INTEGER)")
    volumes = Counter(dict(database.execute("SELECT * FROM volumes")))
    since = {slice_id: (epoch, sequence) for slice_id, epoch, sequence in database.execute("SELECT * FROM positions")}

    subscriber = Subscriber(feed, on_gap="repair", slow=SlowPolicy("warn"))

    @subscriber.on(b"", fields=("symbol", "shares"), message_type="P")
    def trade(symbol: bytes, shares: int) -> None:
        volumes[symbol.decode()] += shares

    subscriber.start(since=since or 0, timeout=30)  # 0: from the first recorded message
    is_over = False
    while not is_over:
        time.sleep(0.01)
        is_over = subscriber.is_finished
        with subscriber.checkpoint() as positions:  # no callback runs in this block
            database.execute("BEGIN")
            database.executemany("REPLACE INTO volumes VALUES (?, ?)", volumes.items())
            database.executemany("REPLACE INTO positions VALUES (?, ?, ?)", [(n, *p) for n, p in positions.items()])
            database.execute("COMMIT")
    subscriber.stop()


def run_strategy(feed: Feed, path: Path) -> "subprocess.Popen[bytes]":
    """Start the strategy in its own process, which can be killed."""
    return subprocess.Popen([sys.executable, __file__, msgspec.json.encode(feed).decode(), str(path)])


def result_of(path: Path) -> list[tuple[str, int]]:
    """Return the volumes that a strategy saved."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT * FROM volumes ORDER BY symbol").fetchall()


def main() -> None:
    """Kill a strategy repeatedly and compare its result with an undisturbed one."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        feed = Feed.local("session", slices=2, schema="itch50")
        feed = msgspec.structs.replace(feed, archives=(f"ipc://{directory}/archive",))
        publisher = Publisher(feed, when_full="wait").start()
        with Recorder(feed, directory, serve=True):
            undisturbed = run_strategy(feed, directory / "undisturbed.db")
            for kill in range(KILLS):
                killed = run_strategy(feed, directory / "killed.db")
                until = time.monotonic() + random.uniform(0.5, 3.0)
                while time.monotonic() < until:
                    Synthetic(1_000, seed=kill, symbols=20).publish(publisher)
                    time.sleep(0.01)
                killed.send_signal(signal.SIGKILL)
                killed.wait()
            while publisher.statistics().subscribers > 2:  # until the killed one is detected
                time.sleep(0.01)
            last = run_strategy(feed, directory / "killed.db")
            publisher.wait_for_subscribers(count=3, timeout=30)  # both strategies and the recorder
            publisher.close()
            last.wait()
            undisturbed.wait()
        volumes = result_of(directory / "killed.db")
        print("symbols:", len(volumes), "the same:", volumes == result_of(directory / "undisturbed.db"))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        strategy(msgspec.json.decode(sys.argv[1], type=Feed), Path(sys.argv[2]))
    else:
        main()
