"""How do I get an alert that a callback is too slow, before messages are lost?"""

import threading

from blackbox import Feed, Message, Publisher, SlowPolicy, SlowSubscriberError, Subscriber

feed = Feed.local("busy")
released = threading.Event()


def alert(text: str) -> None:  # called before the policy acts; or send it to an endpoint: console="tcp://..."
    print(f"alert: {text}")
    released.set()


subscriber = Subscriber(feed, slow=SlowPolicy("raise", max_lag=0.05, on_alert=alert, start_grace=0))


@subscriber.on(b"")
def slow(_message: Message) -> None:
    released.wait()  # longer than the maximum lag of 50 ms


with Publisher(feed) as publisher:
    subscriber.start()
    for number in range(1_000):
        publisher.publish(b"AAPL.trade", str(number).encode())
        publisher.flush()
    try:
        subscriber.run()
    except SlowSubscriberError as error:
        print(f"ended: {error}")
