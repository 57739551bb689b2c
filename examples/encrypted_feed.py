"""How do I encrypt a feed and restrict who may read which topics?"""

import logging
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from blackbox import Feed, Message, Publisher, Subscriber
from blackbox.errors import NotConfirmedError, RightsError

logging.disable()  # the publisher also logs rejected peers

place = Path(tempfile.mkdtemp())
for name in ("exchange", "desk", "stranger"):  # at a shell: blackbox keys new NAME; each on its own host
    new = ["-m", "blackbox.cli", "keys", "new", name, "--out", place / "keys"]
    subprocess.run([sys.executable, *new], check=True, capture_output=True)

(place / "allowed").mkdir()
shutil.copy(place / "keys" / "desk.key", place / "allowed")  # public keys of the peers that may connect
(place / "allowed" / "rights.toml").write_text(
    'desk = ["AAPL."]'
)  # prefixes that each may read; without this file, everything

(endpoint,) = Feed.local("quotes", slices=1).slices[0].endpoints


def feed_of(me: str) -> Feed:
    """Write and load the feed file of one side."""
    path = place / f"{me}.toml"
    path.write_text(f"""
        name = "quotes"
        key_bytes = 8   # rights apply to ZeroMQ's filters, the first bytes of topics

        [security]
        key = "keys/{me}.key_secret"          # this side's secret key; the other paths are public keys
        server_keys = ["keys/exchange.key"]   # publishers that subscribers accept
        allowed_keys = "allowed"              # peers that the publisher accepts

        [[slices]]
        endpoints = ["{endpoint}"]
    """)
    return Feed.load(path)


desk, stranger = Subscriber(feed_of("desk")), Subscriber(feed_of("stranger"))
greedy = Subscriber(feed_of("desk"))


@desk.on(b"AAPL.")
def apple(message: Message) -> None:
    """Print a message that only the desk and the exchange can read."""
    print(f"desk: {message.topic.decode()} {message.payload.decode()}")


@greedy.on(b"MSFT.")
@stranger.on(b"")
def everything(message: Message) -> None:
    """Is never called."""
    print(f"not for them: {message.topic.decode()}")


with Publisher(feed_of("exchange")) as publisher:
    desk.start()
    try:
        stranger.start(timeout=2)
    except NotConfirmedError as error:
        print("stranger:", str(error).split(": ")[-1].split(" key")[0])
    try:
        greedy.start()
    except RightsError as error:
        print("desk:", str(error).split("refused ")[1].split(",")[0])
    publisher.publish(b"AAPL.trade", b"189.98")
    publisher.close()
    desk.run(until_end=True)

shutil.rmtree(place)
