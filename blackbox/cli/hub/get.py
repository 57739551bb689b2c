"""`blackbox get`: get messages of a durable subscription."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import typer

from blackbox.cli.ui.feeds import FeedOption, load_feed
from blackbox.cli.ui.messages import describe
from blackbox.cli.ui.options import CountOption, JsonLinesOption, choice_of, prefixes_of, symbols_of
from blackbox.cli.ui.status import Status, exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import SubscriberError
from blackbox.native.system.waits import step_of
from blackbox.receive.supervise.stop_signals import stopping_at_signals

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Message
    from blackbox.feed.schema.schema import Schema

_COMMIT_EVERY: Final = 1_000

ClientName = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the durable client.")]
PositionsOption = Annotated[
    Path, typer.Option("--positions", metavar="DIR", help="Directory of the positions of durable clients.")
]
KeepOption = Annotated[
    bool,
    typer.Option("--keep", help="Keep received messages with the positions, for a restart while the hub is away."),
]
SubscribedPrefix = Annotated[
    list[str] | None, choice_of("--prefix", "TEXT", "Prefix that NAME is subscribed to.", default="all topics")
]
SubscribedSymbol = Annotated[
    list[str] | None, choice_of("--symbol", "SYMBOL", "Symbol that NAME is subscribed to.", default="only --prefix")
]


def get(
    name: ClientName,
    prefix: SubscribedPrefix = None,
    symbol: SubscribedSymbol = None,
    feed: FeedOption = None,
    positions: PositionsOption = Path("positions"),
    keep: KeepOption = False,
    enough: CountOption = 1,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Time limit for each message. Default: none.", show_default=False),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Print the next messages of a durable subscription.

    `subscribe --durable --name NAME` begins a subscription.

    Printed messages are committed and do not come again. If the command is killed, the next one may print up to a
    thousand messages again. Ends with status 1 if a message does not come in time.

    JSON has `topic`, `ts_event` (ns since 1970), `slice`, `epoch`, `sequence`, and `payload` in base64.

    For example:

    blackbox get --prefix orders. --name desk-1 --feed feed.toml

    blackbox get --prefix orders. --name desk-1 --feed feed.toml --count 10 --timeout 5 --json
    """
    with exit_statuses():
        from blackbox.feed.schema.schema import load_schema
        from blackbox.services.hub.client.client import HubClient

        known = load_feed(feed)
        schema = load_schema(known.schema_name)
        prefixes, symbols = _chosen(prefix, symbol)
        client, got = HubClient(known, name, positions, keep=keep).start(), 0
        take = partial(client.get, prefixes, symbols=symbols)
        try:
            with stopping_at_signals(_note, _end_at_once) as came:
                while (got < enough or not enough) and (message := _next(take, timeout, came)) is not None:
                    print_message(message, None if as_json else schema)
                    got += 1
                    if got % _COMMIT_EVERY == 0:
                        sys.stdout.flush()
                        client.commit()
        except TimeoutError as error:
            raise SubscriberError(f"{got} messages arrived, expected {enough or 'more'}: {error}") from error
        finally:
            sys.stdout.flush()
            client.commit()
            client.end()
        if came:
            signal.raise_signal(min(came))


def _next(take: Callable[..., Message], timeout: float | None, came: Collection[int]) -> Message | None:
    """Return the next message; None after a signal. Raises TimeoutError.

    `take` is called with short timeouts: a signal that interrupted it could lose a message.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    while not came:
        step_s = step_of(until - time.monotonic())
        try:
            return take(timeout=step_s)
        except TimeoutError as error:
            if time.monotonic() >= until:
                raise TimeoutError(str(error).replace(f"in {step_s} s", f"in {timeout} s")) from error
    return None


def _note(_number: int) -> None:
    """Do nothing at the first signal: the loop sees it after the message that is being printed."""


def _end_at_once() -> NoReturn:
    os._exit(Status.INTERRUPTED)


def print_message(message: Message, schema: Schema | None) -> None:
    """Print a message as a line of text; without a schema as a line of JSON."""
    from blackbox.block.batch.plain_message import as_object

    if schema is None:
        line = msgspec.json.encode(as_object(message, None))
    else:
        line = describe(message, schema).encode(errors="backslashreplace")
    sys.stdout.write(line.decode() + "\n")


def unsubscribe(
    name: ClientName,
    prefix: SubscribedPrefix = None,
    symbol: SubscribedSymbol = None,
    feed: FeedOption = None,
    positions: PositionsOption = Path("positions"),
) -> None:
    """End a durable subscription, and delete its position. The hub need not run.

    For example:

    blackbox unsubscribe --prefix orders. --name desk-1 --feed feed.toml

    blackbox unsubscribe --name desk-1 --feed feed.toml --positions /var/lib/desk-1
    """
    with exit_statuses():
        from blackbox.services.hub.client.client import HubClient
        from blackbox.services.hub.client.durable_subscription import Subscription

        client = HubClient(load_feed(feed), name, positions).start()
        try:
            prefixes, symbols = _chosen(prefix, symbol)
            client.unsubscribe(prefixes, symbols=symbols)
            say(f"{name} is no longer subscribed to {', '.join(map(str, Subscription.chosen(prefixes, symbols)))}")
        finally:
            client.end()


def subscribe_durably(
    name: str,
    positions: Path,
    feed: str | None,
    prefix: list[str] | None,
    symbol: list[str] | None,
    timeout: float | None,
) -> None:
    """Begin durable subscriptions of a client to prefixes or symbols, from now on."""
    from blackbox.services.hub.client.client import HubClient
    from blackbox.services.hub.client.durable_subscription import Subscription

    client = HubClient(load_feed(feed), name, positions).start()
    try:
        prefixes, symbols = _chosen(prefix, symbol)
        client.subscribe(prefixes, timeout, symbols=symbols)
        say(f"{name} is subscribed to {', '.join(map(str, Subscription.chosen(prefixes, symbols)))}")
    finally:
        client.end()


def _chosen(prefix: list[str] | None, symbol: list[str] | None) -> tuple[tuple[bytes, ...] | None, list[bytes] | None]:
    """Return the prefixes and symbols of durable subscriptions; without either the prefix of all topics."""
    return (prefixes_of(prefix) if prefix or not symbol else None), symbols_of(symbol)
