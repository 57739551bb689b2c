"""How do I compute only what somebody wants, here or behind relays?"""

import threading

from blackbox import Feed, Message, Publisher, Relay, Subscriber

source = Feed.local("greeks", slices=1)  # in real life Feed.load("greeks.toml")
desk = Feed.local("greeks", slices=1)  # the same feed behind a relay
computed: list[bytes] = []
got = threading.Event()

subscriber = Subscriber(desk)


@subscriber.on(b"AAPL.delta")
def delta(message: Message) -> None:
    """Print what was computed for this subscriber alone."""
    print(f"{message.topic.decode()} {message.payload.decode()}")
    got.set()


with Publisher(source) as publisher, Relay(source, desk):

    @publisher.on_demand
    def change(prefix: bytes, is_wanted: bool) -> None:
        """Begin what takes long: who wants it is confirmed once this has returned."""
        print(f"{prefix.decode()} is wanted{'' if is_wanted else ' no more'}")

    def compute(topic: bytes) -> None:
        """Publish a value, if it is worth computing."""
        if publisher.wants(topic):
            computed.append(topic)
            publisher.publish(topic, b"0.52")

    compute(b"AAPL.delta")  # nobody is here yet
    subscriber.start()
    for name in (b"AAPL.delta", b"AAPL.vega", b"MSFT.delta"):
        compute(name)
    got.wait(10)
    subscriber.stop()
print("computed:", computed)
