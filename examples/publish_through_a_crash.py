"""How do I resume publishing after a crash without losing or renumbering messages?"""

import signal
import subprocess
import sys
import tempfile
import time

import msgspec

from blackbox import Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.archive.record.outbox import Outbox

COUNT = 3_000


def publish(feed: Feed, directory: str) -> None:
    """Count from the position of the previous publisher, if there was one."""
    with Publisher(feed, outbox=Outbox(directory, serve=True)) as publisher:
        publisher.wait_for_subscribers(timeout=60)
        publisher.flush()  # unconfirmed messages, sent again
        for number in range(publisher.published_count(), COUNT):
            publisher.publish(b"COUNT", b"%d" % number)
            time.sleep(0.0005)


def main() -> None:
    """Kill a publisher twice and check that every number arrives."""
    with tempfile.TemporaryDirectory() as directory:
        feed = msgspec.structs.replace(Feed.local("counter", slices=1), archives=(f"ipc://{directory}/archive",))
        command = [sys.executable, __file__, msgspec.json.encode(feed).decode(), directory]
        heard: list[int] = []
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60, slow=SlowPolicy("warn"))

        @subscriber.on(b"COUNT")
        def count(message: Message) -> None:
            heard.append(int(message.payload))

        for kill in range(3):
            publisher = subprocess.Popen(command)
            if kill == 0:
                subscriber.start(timeout=60)
            while kill < 2 and len(heard) < 1_000 * (kill + 1):
                time.sleep(0.01)
            if kill < 2:
                publisher.send_signal(signal.SIGKILL)
                publisher.wait()
        subscriber.run(until_end=True)
        publisher.wait()
        print("heard", len(heard), "in order, each once:", heard == list(range(COUNT)))


if __name__ == "__main__":
    publish(msgspec.json.decode(sys.argv[1], type=Feed), sys.argv[2]) if len(sys.argv) > 1 else main()
