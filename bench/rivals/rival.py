"""Rivals in the contests of messaging and storage: how they start, and are skipped if they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench.measure.contest import Contest
from bench.processes.child import Child, Ended
from bench.processes.pair import Pair
from bench.rivals.servers import Missing, Server, free_port, nats_server, redis_server

HOLDS: Final = "nothing lost: the server holds the whole run"
NATS: Final = ("nats-py:nats", "uvloop")
REDIS: Final = ("redis", "hiredis")


@contextmanager
def optional(contest: Contest, name: str, *packages: str) -> Iterator[None]:
    """Report a rival as skipped if a package is missing, or the block raises Missing or Ended.

    Names of packages are pip's, with the module if it differs (`redis`, `nats-py:nats`).
    """
    try:
        for package in packages:
            needed, _, module = package.partition(":")
            if find_spec(module or needed) is None:
                raise Missing(f"{needed} is not installed (extra `bench`: pip install {needed})")
        yield
    except (Missing, Ended) as why:
        contest.skip(name, str(why))


def enter(stack: ExitStack, server: Callable[[], Server], function: str, **arguments: Any) -> tuple[Server, Child]:
    """Start a server, and a child process that runs `function` with its address."""
    started = stack.enter_context(server())
    return started, stack.enter_context(Child(f"bench.rivals.{function}", address=started.url, **arguments))


def enter_nats(stack: ExitStack, form: str) -> tuple[str, Pair]:
    """Start a nats-server, a publisher and a subscriber of core NATS. Return the server's name."""
    server = stack.enter_context(nats_server())
    pair = Pair.rival("plain_nats", address=server.url, form=form, server_pid=server.pid)
    return f"nats-py, nats-server {server.version}", stack.enter_context(pair)


def jetstream(place: Path, sync: str = "2m") -> Server:
    """Start a NATS server with JetStream in `place`, which syncs its files at this interval, or `always`."""
    settings = place / "nats.conf"
    settings.write_text(f'jetstream {{ store_dir: "{place / "nats"}", sync_interval: {sync} }}')
    return nats_server("-c", str(settings))


def redis_stored(sync: str = "everysec") -> Server:
    """Start a Redis that writes an append-only file and syncs it `everysec` or `always`."""
    return redis_server("--appendonly", "yes", "--appendfsync", sync)


def tcp() -> str:
    """Return a free address."""
    return f"tcp://127.0.0.1:{free_port()}"
