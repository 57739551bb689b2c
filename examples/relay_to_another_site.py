"""How do I relay a feed to another site so that each message crosses the link once?"""

from blackbox import Feed, Message, Publisher, Relay, Subscriber

exchange = Feed.local("quotes", slices=1, key_bytes=4)  # in production Feed.load("exchange.toml")
london = Feed.local("quotes", slices=1, key_bytes=4)  # the same feed with London's endpoints
desk = Feed.local("quotes", slices=1, key_bytes=4)

first, second = Subscriber(desk), Subscriber(desk)
heard: list[str] = []


@first.on(b"AAPL.")
def apple(message: Message) -> None:
    """Note messages that arrive through two relays."""
    heard.append(f"first: {message.topic.decode()} {message.payload.decode()}")


@second.on(b"AAPL.trade")
def trade(message: Message) -> None:
    """Do the same for a subscriber that adds no load at the exchange."""
    heard.append(f"second: {message.topic.decode()} {message.payload.decode()}")


with (
    Publisher(exchange) as publisher,
    Relay(exchange, london, name="london"),
    Relay(london, desk, name="desk") as relay,
):
    first.start()  # returns once all relays and the publisher have confirmed: no later message is missed
    second.start()
    publisher.publish(b"AAPL.trade", b"189.98")
    publisher.publish(b"MSFT.trade", b"370.10")  # no subscriber: it stays at the exchange
    publisher.close()
    for subscriber in (first, second):
        subscriber.run(until_end=True)
    print("\n".join(sorted(heard)))
    (line,) = relay.statistics().lines
    print("path:", " -> ".join(line.path), "filters below:", line.filters_below, "above:", line.filters_above)
    print("unwanted:", publisher.statistics().unwanted, "subscribers of the publisher: 1 relay")
