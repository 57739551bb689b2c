"""`blackbox put`: put messages to a hub."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.feeds import FeedOption, load_feed
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError, HubError

if TYPE_CHECKING:
    from blackbox.block.position import Place
    from blackbox.hub.client import HubClient

PutTimeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long the hub may take to answer.")]


def put(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its topic.")],
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="What to put; `-`: each line of stdin, as a message of its own.")
    ],
    feed: FeedOption = None,
    put_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Put with the same ID again, it is stored once.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With `-`: leave out as many lines as the hub has had of NAME already."),
    ] = None,
    synced: Annotated[
        bool, typer.Option("--synced", help="Wait until it is on the hub's disk, not only with its system.")
    ] = False,
    timeout: PutTimeout = 10.0,
) -> None:
    """Put a message; print where it is, as SLICE:EPOCH:SEQUENCE, once the hub has it. Of lines of stdin: how many.

    Ends with status 1 when the hub refuses it, or any of the lines: all others are stored. Also when the hub has not
    answered in time. The message may be stored all the same: put it again with the same --id, or, with `-`, the same
    lines with the same --name.

    For example:

    blackbox put orders.new '{"id": 17}' --feed feed.toml --id order-17

    blackbox put orders.new - --feed feed.toml --name desk-1    each line of stdin
    """
    with exit_statuses():
        from blackbox.hub.client import HubClient

        lines = payload == "-"
        if (name is not None and not lines) or (put_id is not None and lines):
            raise ConfigError(f"name was {name!r} and id {put_id!r}, expected a name with `-` and an id without")
        client = HubClient(load_feed(feed), name, acknowledged="synced" if synced else "recorded").start()
        try:
            if lines:
                _put_lines(client, topic, timeout, 0 if name is None else client.published_count(timeout))
            else:
                told = os.fsencode(put_id) if put_id is not None else None
                place = client.put(os.fsencode(topic), os.fsencode(payload), told, timeout=timeout)
                typer.echo(f"{place.slice_id}:{place.epoch}:{place.sequence}")
        finally:
            client.end()


class _Refused:
    """Lines that are not stored: how many, and why the first one is not."""

    def __init__(self) -> None:
        self.count, self.first, self.why = 0, 0, ""

    def note(self, line: int, future: Future[Place]) -> None:
        """Look at the answer to a line; they come in the order of the lines."""
        if (error := future.exception()) is not None:
            self.count += 1
            if self.count == 1:
                self.first, self.why = line, str(error)


def _put_lines(client: HubClient, topic: str, timeout: float, known: int) -> None:
    """Put each line of stdin behind those that are known, and say how many are stored."""
    refused, number = _Refused(), 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        if number > known:
            future = client.put_soon(os.fsencode(topic), line.rstrip(b"\n"), timeout=timeout)
            future.add_done_callback(partial(refused.note, number))
    client.flush(timeout)
    left_out = min(known, number)
    before = f", and {left_out} lines were left out: the hub had had them" if left_out else ""
    say(f"{number - left_out - refused.count} messages are stored{before}")
    if refused.count:
        raise HubError(f"{refused.count} lines are not stored, the first is line {refused.first}: {refused.why}")
