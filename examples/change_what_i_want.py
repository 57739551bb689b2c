"""How do I subscribe to more, or less, while messages keep coming?"""

import threading

from blackbox import Feed, Message, Publisher, Subscriber

feed = Feed.local("changing")
subscriber = Subscriber(feed)
got: list[bytes] = []
arrived = threading.Semaphore(0)


@subscriber.on(b"AAPL.")
def apple(message: Message) -> None:
    got.append(message.payload)
    arrived.release()


def microsoft(message: Message) -> None:
    """As `apple`, to be added later."""
    apple(message)


with Publisher(feed) as publisher:
    subscriber.start()
    publisher.publish(b"AAPL.trade", b"first")
    arrived.acquire()

    subscriber.on(b"MSFT.")(microsoft)
    subscriber.wait_confirmed()  # the publisher has it: nothing after this is missed
    publisher.publish(b"MSFT.trade", b"second")
    arrived.acquire()

    subscriber.remove(apple)  # no call of it begins after this
    publisher.publish(b"AAPL.trade", b"nobody gets this")
    publisher.publish(b"MSFT.trade", b"third")

subscriber.run(until_end=True)
print(got)
