"""`blackbox feed new`: write a commented feed file."""

from __future__ import annotations

import json
import tomllib
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed, check_name
from blackbox.feed.routing.key_rule import MAX_CHANNELS
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.slice import MAX_LINES, MAX_SLICES
from blackbox.feed.toml import from_document

_HEAD: Final = """\
# The feed {name!r}. Publisher and subscribers load this file; an unknown key is an error.
#
#     blackbox feed check {file}
#     blackbox subscribe --feed {file}
#     blackbox stat --feed {file}
#
# A variable such as BLACKBOX_FEED_MAX_LAG_NS overrides a setting. Settings after a # have their default.
"""
_SETTINGS: Final = """
# block_bytes = 262_144         # bytes at which a block is sent without waiting
# heartbeat_ns = 1_000_000_000  # time between heartbeats
# max_lag_ns = 1_000_000_000    # lag above which a subscriber is slow, and its policy applies
{time_zone:<32}# IANA name, for session dates and times such as 09:30
# day_start = "00:00"           # local time at which a recorder begins a new day
"""
_SECURITY: Final = """
# Encryption of tcp, and who may connect. `blackbox keys new me` makes a pair. Paths are relative to this file.
# [security]
# key = "keys/me.key_secret"           # of the side that reads this file
# server_keys = ["keys/exchange.key"]  # public keys of the servers
# allowed_keys = "allowed"             # directory of the public keys of clients
"""
_IN_NEW_YORK: Final = ("itch50", "iex_deep10", "iex_tops16", "tape")
"""Schemas of US equities, whose session dates and times such as 09:30 are those of New York."""
_FIRST_PORT, _RANGES, _PORTS = 10_000, 1_250, 16
"""Ranges of ports for new feeds, below the system's range for outgoing connections."""


class Transport(StrEnum):
    """The transports of a new feed."""

    TCP = "tcp"
    IPC = "ipc"
    SHM = "shm"


def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The feed file to write.")],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the feed.", show_default="name of FILE"),
    ] = None,
    slices: Annotated[
        int, typer.Option("--slices", metavar="N", min=1, max=MAX_SLICES, help="Slices; symbols are spread evenly.")
    ] = 2,
    schema: Annotated[str, typer.Option("--schema", metavar="NAME", help="Schema of the payloads.")] = "raw",
    key_bytes: Annotated[
        int,
        typer.Option(
            "--key-bytes", metavar="N", min=0, max=8, help="Bytes of a topic that ZeroMQ filters on; 0: whole slices."
        ),
    ] = 0,
    channels: Annotated[
        int,
        typer.Option(
            "--channels",
            metavar="N",
            min=1,
            max=MAX_CHANNELS,
            help="Instead of --key-bytes: keys by a hash of the symbol; 1: whole slices.",
        ),
    ] = 1,
    transport: Annotated[
        Transport,
        typer.Option("--transport", help="`tcp`; `ipc`, for one host; `shm`: tcp, with shared memory on one host."),
    ] = Transport.TCP,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address of the publisher for tcp.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=1,
            max=65_535,
            help="First port; each endpoint takes the next.",
            show_default="one of 10000, 10016, ... 29984, by a hash of the feed's name",
        ),
    ] = None,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", metavar="N", min=1, max=MAX_LINES, help="Redundant lines of each slice: 2 are A and B."
        ),
    ] = 1,
    archives: Annotated[
        int, typer.Option("--archives", metavar="N", min=0, max=9, help="Archives, where `record --serve` answers.")
    ] = 0,
) -> None:
    """Write a commented feed file. An existing file is not changed.

    For example:

    blackbox feed new feed.toml

    blackbox feed new quotes.toml --schema itch50 --slices 4 --transport shm

    blackbox feed new quotes.toml --host 10.0.0.5 --port 6000 --lines 2 --archives 1
    """
    with exit_statuses():
        load_schema(schema)
        if not str(file).isprintable():
            raise ConfigError(f"file was {str(file)!r}, expected a name without control characters")
        name = file.stem if name is None else name
        check_name(name)
        many = slices * lines + archives
        port = _first_port(name) if port is None else port
        if transport is not Transport.IPC and port + many - 1 > 65_535:
            raise ConfigError(f"port was {port} and {many} are needed, expected at most {65_536 - many}")
        shape, place = _Shape(slices, lines, archives), _Place(transport, host, port)
        text = "".join(_text(file, name, schema, (key_bytes, channels), shape, place))
        from_document(tomllib.loads(text), Feed)  # raises ConfigError for an invalid host
        try:
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise ConfigError(f"{file} already exists: choose another name") from None
        say(f"wrote {file}; `blackbox feed check {file}` shows its endpoints")


class _Shape(NamedTuple):
    """Parts of a new feed."""

    slices: int
    lines: int
    archives: int


class _Place(NamedTuple):
    """Place of a new feed's endpoints."""

    transport: Transport
    host: str
    port: int


def _first_port(name: str) -> int:
    """Return the first port of a feed: always the same for a name, and rarely that of another."""
    return _FIRST_PORT + zlib.crc32(name.encode()) % _RANGES * _PORTS


def _text(file: Path, name: str, schema: str, keys: tuple[int, int], shape: _Shape, place: _Place) -> Iterator[str]:
    """Yield the parts of a feed file. `keys`: `key_bytes` and `channels`."""
    slices, lines, archives = shape
    transport, host, port = place
    key_bytes, channels = keys
    ports = iter(range(port, 65_536))

    def endpoint(what: str) -> str:
        if transport is Transport.IPC:
            return f"ipc:///tmp/blackbox-{name}-{what}"
        return f"tcp://{f'[{host}]' if ':' in host else host}:{next(ports)}"

    yield _HEAD.format(name=name, file=file)
    yield f"\nname = {json.dumps(name)}\n"
    yield f"schema = {json.dumps(schema)}  # how payloads are read; raw: bytes\n"
    yield f"key_bytes = {key_bytes}  # bytes of a topic that ZeroMQ filters on; 0: subscribers receive whole slices\n"
    yield f"channels = {channels}  # instead of key_bytes: ZeroMQ filters on one of N hashes of the symbol\n"
    parts = []
    for slice_id in range(slices):
        endpoints = [endpoint(f"{slice_id}{letter}") for letter in "AB"[:lines]]
        endpoints += [f"shm://{name[:48]}-{slice_id}"] * (transport is Transport.SHM)
        parts.append(f"\n[[slices]]\nendpoints = {json.dumps(endpoints)}\nshare = [{slice_id}, {slices}]\n")
    if archives:
        places = [endpoint(f"archive-{number}") for number in range(archives)]
        yield f"archives = {json.dumps(places)}  # where `blackbox record --serve` answers\n"
    time_zone = 'time_zone = "America/New_York"' if schema in _IN_NEW_YORK else '# time_zone = "UTC"'
    yield _SETTINGS.format(time_zone=time_zone)
    yield _SECURITY
    yield "\n# Each slice has its own socket and threads. `share = [index, of]` spreads symbols by a hash.\n"
    yield '# bind = "tcp://0.0.0.0:PORT" in a slice: where the publisher listens, if not at `endpoints`.\n'
    yield from parts
