"""How do I compute only values with subscribers, including subscribers of relays?"""

import threading

from blackbox import Feed, Message, Publisher, Relay, Subscriber

source = Feed.local("greeks", slices=1)  # in production Feed.load("greeks.toml")
desk = Feed.local("greeks", slices=1)  # the same feed through a relay
computed: list[bytes] = []
got = threading.Event()

subscriber = Subscriber(desk)


@subscriber.on(b"AAPL.delta")
def delta(message: Message) -> None:
    """Print a value computed for this subscriber."""
    print(f"{message.topic.decode()} {message.payload.decode()}")
    got.set()


with Publisher(source) as publisher, Relay(source, desk):

    @publisher.on_demand
    def change(prefix: bytes, is_wanted: bool) -> None:
        """Start slow work here: the subscription is confirmed when this returns."""
        print(f"{prefix.decode()} is {'' if is_wanted else 'no longer '}wanted")

    def compute(topic: bytes) -> None:
        """Compute and publish a value if it has subscribers."""
        if publisher.wants(topic):
            computed.append(topic)
            publisher.publish(topic, b"0.52")

    compute(b"AAPL.delta")  # no subscriber yet
    subscriber.start()
    for name in (b"AAPL.delta", b"AAPL.vega", b"MSFT.delta"):
        compute(name)
    got.wait(60)
    subscriber.stop()
print("computed:", computed)
