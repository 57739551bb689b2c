"""`blackbox put`: put messages to a hub."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.feeds import FeedOption, load_feed
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import print_json, say
from blackbox.errors import ConfigError, HubError

if TYPE_CHECKING:
    from blackbox.block.position import Place
    from blackbox.services.hub.client.client import HubClient

PutTimeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time limit for the hub's answer.")]


def put(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the message.")],
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="Payload of the message; `-`: one message per line of stdin.")
    ],
    feed: FeedOption = None,
    also: Annotated[
        list[str] | None, typer.Option("--also", metavar="TOPIC", help="Another topic of the same message; may repeat.")
    ] = None,
    put_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The hub stores only one message with this ID.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="With `-`: name of the client, whose stored lines are skipped."),
    ] = None,
    synced: Annotated[
        bool, typer.Option("--synced", help="Wait until the message is on the hub's disk, not only in its page cache.")
    ] = False,
    timeout: PutTimeout = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Put a message to a hub; print its position, SLICE:EPOCH:SEQUENCE, once the hub has stored it.

    With `-`, each line of stdin is a message, and the number of stored lines is reported. Ends with status 1 if the
    hub refuses a message or does not answer in time; all other lines are stored. A message without an answer may be
    stored: put it again with the same --id, or the same lines with the same --name.

    JSON has `slice`, `epoch` and `sequence`. With `-` it has `stored`, `skipped` and `refused` (lines).

    For example:

    blackbox put orders.new '{"id": 17}' --feed feed.toml --id order-17

    blackbox put orders.new - --feed feed.toml --name desk-1    each line of stdin
    """
    with exit_statuses():
        from blackbox.services.hub.client.client import HubClient

        lines, topics = payload == "-", tuple(map(os.fsencode, [topic, *(also or [])]))
        if (name is not None and not lines) or (put_id is not None and lines):
            raise ConfigError(f"name was {name!r} and id {put_id!r}, expected a name with `-` and an id without")
        client = HubClient(load_feed(feed), name, acknowledged="synced" if synced else "recorded").start()
        try:
            if lines:
                _put_lines(client, topics, timeout, 0 if name is None else client.published_count(timeout), as_json)
            else:
                told = os.fsencode(put_id) if put_id is not None else None
                place = client.put(topics, os.fsencode(payload), told, timeout=timeout)
                if as_json:
                    print_json({"slice": place.slice_id, "epoch": place.epoch, "sequence": place.sequence})
                else:
                    typer.echo(f"{place.slice_id}:{place.epoch}:{place.sequence}")
        finally:
            client.end()


class _Refused:
    """Lines that are not stored: their number, and the reason for the first one."""

    def __init__(self) -> None:
        self.count, self.first, self.why = 0, 0, ""

    def note(self, line: int, future: Future[Place]) -> None:
        """Check the answer to a line. Answers come in order of the lines."""
        if (error := future.exception()) is not None:
            self.count += 1
            if self.count == 1:
                self.first, self.why = line, str(error)


def _put_lines(client: HubClient, topics: tuple[bytes, ...], timeout: float, known: int, as_json: bool) -> None:
    """Put each line of stdin after the first `known`, and report how many are stored."""
    refused, number, known = _Refused(), 0, known // len(topics)
    for number, line in enumerate(sys.stdin.buffer, 1):
        if number > known:
            future = client.put_soon(topics, line.rstrip(b"\n"), timeout=timeout)
            future.add_done_callback(partial(refused.note, number))
    client.flush(timeout)
    skipped = min(known, number)
    stored = number - skipped - refused.count
    if as_json:
        print_json({"stored": stored, "skipped": skipped, "refused": refused.count})
    before = f", and {skipped} lines were skipped: they were stored before" if skipped else ""
    say(f"{stored} messages are stored{before}")
    if refused.count:
        raise HubError(f"{refused.count} lines are not stored, the first is line {refused.first}: {refused.why}")
