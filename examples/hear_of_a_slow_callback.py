"""How do I hear that a callback is too slow, before messages are lost?"""

import threading

from blackbox import Feed, Message, Publisher, SlowSubscriberError, Subscriber

feed = Feed.local("busy")
released = threading.Event()


def squawk(text: str) -> None:  # called before the policy acts; there is an endpoint for it too: console="tcp://..."
    print("squawk:", text)
    released.set()


subscriber = Subscriber(feed, max_lag_ns=50_000_000, on_slow="terminate", on_squawk=squawk)


@subscriber.on(b"")
def slow(_message: Message) -> None:
    released.wait()  # takes longer than the 50 ms that the subscriber may lag


with Publisher(feed) as publisher:
    subscriber.start()
    for number in range(1_000):
        publisher.publish(b"AAPL.trade", str(number).encode())
        publisher.flush()
    try:
        subscriber.run()
    except SlowSubscriberError as error:
        print("ended:", error)
