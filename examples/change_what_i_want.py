"""How do I add and remove subscriptions while messages arrive?"""

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
    """Do the same as `apple`; added later."""
    apple(message)


with Publisher(feed) as publisher:
    subscriber.start()
    publisher.publish(b"AAPL.trade", b"first")
    arrived.acquire()

    subscriber.on(b"MSFT.")(microsoft)
    subscriber.wait_confirmed()  # the publisher has it: no later message is missed
    publisher.publish(b"MSFT.trade", b"second")
    arrived.acquire()

    subscriber.remove(apple)  # it is not called after this
    publisher.publish(b"AAPL.trade", b"not delivered")
    publisher.publish(b"MSFT.trade", b"third")

subscriber.run(until_end=True)
print(got)
