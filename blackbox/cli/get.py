"""`blackbox get`: get messages of a durable subscription."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from blackbox.cli.ui.feeds import FeedOption, load_feed
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import SubscriberError

if TYPE_CHECKING:
    from blackbox.block.batch import Message

_COMMIT_EVERY: Final = 1_000

ClientName = Annotated[str, typer.Option("--name", metavar="NAME", help="Of the durable client.")]
PositionsOption = Annotated[
    Path, typer.Option("--positions", metavar="DIR", help="Where durable clients keep what they have subscribed to.")
]


def get(
    name: ClientName,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="One that NAME is subscribed to.")] = "",
    feed: FeedOption = None,
    positions: PositionsOption = Path("positions"),
    enough: Annotated[int, typer.Option("--count", metavar="N", min=0, help="How many to get; 0: no end.")] = 1,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for each. Default: no end.", show_default=False),
    ] = None,
) -> None:
    """Print the next messages of a durable subscription, a JSON object a line, payloads in base64.

    `subscribe --durable NAME` begins one.

    What was printed is committed: it does not come again. One that is killed may print the last ones again: up to a
    thousand. Ends with status 1 when a message does not come in time.

    For example:

    blackbox get orders. --name desk-1 --feed feed.toml

    blackbox get orders. --name desk-1 --feed feed.toml --count 10 --timeout 5
    """
    with exit_statuses():
        from blackbox.hub.client import HubClient

        client, got = HubClient(load_feed(feed), name, positions).start(), 0
        try:
            while got < enough or not enough:
                print_message(client.get(prefix.encode(), timeout))
                got += 1
                if got % _COMMIT_EVERY == 0:
                    sys.stdout.flush()
                    client.commit()
        except TimeoutError as error:
            raise SubscriberError(f"{got} messages came, expected {enough or 'more'}: {error}") from error
        finally:
            sys.stdout.flush()
            client.commit()
            client.end()


def print_message(message: Message) -> None:
    """Print a message as a line of JSON."""
    from blackbox.block.plain_message import as_object

    sys.stdout.write(msgspec.json.encode(as_object(message, None)).decode() + "\n")


def unsubscribe(
    name: ClientName,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="One that NAME is subscribed to.")] = "",
    feed: FeedOption = None,
    positions: PositionsOption = Path("positions"),
) -> None:
    """End a durable subscription, and forget where it was. The hub need not be there.

    For example:

    blackbox unsubscribe orders. --name desk-1 --feed feed.toml

    blackbox unsubscribe --name desk-1 --feed feed.toml --positions /var/lib/desk-1
    """
    with exit_statuses():
        from blackbox.hub.client import HubClient

        client = HubClient(load_feed(feed), name, positions).start()
        try:
            client.unsubscribe(prefix.encode())
            say(f"{name} is not subscribed to {prefix!r} any more")
        finally:
            client.end()


def subscribe_durably(
    name: str, positions: Path, feed: str | None, prefixes: tuple[bytes, ...], timeout: float | None
) -> None:
    """Have a durable client subscribe to prefixes: `get` has what is put from now on."""
    from blackbox.hub.client import HubClient

    client = HubClient(load_feed(feed), name, positions).start()
    try:
        for prefix in prefixes:
            client.subscribe(prefix, timeout)
            say(f"{name} is subscribed to {prefix.decode(errors='backslashreplace')!r}")
    finally:
        client.end()
