"""How do I publish my own messages and receive every one of them?"""

from blackbox import Feed, Message, Publisher, Subscriber

feed = Feed.local("quotes")  # free ports on this machine; Feed.load("feed.toml") for a real one
subscriber = Subscriber(feed)


@subscriber.on(b"AAPL.")
def quote(message: Message) -> None:
    print(message.topic.decode(), message.payload.decode(), "at", message.ts_event)


with Publisher(feed) as publisher:
    subscriber.start()  # returns when the publisher has confirmed: no later message is missed
    publisher.publish(b"AAPL.bid", b"189.98", ts_event=1_700_000_000_000_000_000)
    publisher.publish(b"AAPL.ask", b"190.02", ts_event=1_700_000_000_000_000_500)
    publisher.publish(b"MSFT.bid", b"370.10")  # no subscriber

subscriber.run(until_end=True)  # until every publisher has closed and all messages are delivered
