"""Check a feed on this host: where each endpoint is bound, which process listens there, and risks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from blackbox.cli.feed.listeners import use_of
from blackbox.feed.endpoint import transport_of
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.security import is_loopback
from blackbox.feed.slice import Slice

_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint of a feed, and its state on this host."""

    what: str
    """`slice 0 line A`, `slice 0 shared memory`, `archive 0` or `hub`."""
    endpoint: str
    """Address that others connect to."""
    bind: str
    """Address that is bound."""
    takes: str
    """Topics of the slice; empty for archives and hubs."""
    state: str
    """`free`, `in use by NAME (PID 17)`, or why no process of this host can listen there."""
    used: bool
    """True if a process listens there."""
    pid: int | None
    """The process that listens; null if none is known."""


def endpoints_of(feed: Feed) -> list[Endpoint]:
    """Return all endpoints of a feed with their state."""
    found = []
    for what, endpoint, bind, takes in _places(feed):
        use = use_of(bind)
        found.append(Endpoint(what, endpoint, bind, takes, use.text, use.is_used, use.pid))
    return found


def check_files(feed: Feed) -> None:
    """Raise ConfigError unless the feed's schema is installed and its key files can be read."""
    load_schema(feed.schema)
    if feed.security is not None:
        from blackbox.transport.security.curve import check_curve, load_pair, load_public

        check_curve()
        load_pair(feed.security.key)
        for path in (*feed.security.server_keys, *feed.security.archive_keys):
            load_public(path)
    for part in feed.slices:
        if part.multicast:
            from blackbox.transport.security.group_key import group_key_of

            group_key_of(feed, part.multicast[0])


def warnings_of(feed: Feed, endpoints: list[Endpoint], outgoing: Path = _OUTGOING) -> list[str]:
    """Return the risks of a feed, each with advice."""
    tcp = [each for each in endpoints if transport_of(each.bind) == "tcp"]
    warnings = []
    is_open = [each.bind for each in tcp if not is_loopback(each.bind)]
    if feed.security is None and is_open:
        warnings.append(
            f"{is_open[0]} is neither encrypted nor authenticated: every host that reaches it can read the feed; "
            "add a table [security], with keys of `blackbox keys new`"
        )
    first, last = _outgoing_ports(outgoing)
    at_risk = [each.bind for each in tcp if first <= int(each.bind.rpartition(":")[2]) <= last]
    if at_risk:
        warnings.append(
            f"the port of {at_risk[0]} is one of those that the system gives to outgoing connections ({first} to "
            f"{last}): choose a port below {first}"
        )
    warnings += [f"{each.what}: {each.state}" for each in endpoints if "is no" in each.state]
    if feed.hub and not feed.archives:
        warnings.append("the feed has a hub and no archives: set `archives`, where the hub answers")
    return warnings


def _places(feed: Feed) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each endpoint its role, the address to connect to, the address bound, and its topics."""
    for slice_id, part in enumerate(feed.slices):
        for letter, endpoint, bind in zip("AB", part.lines, part.bound + part.multicast, strict=False):
            yield f"slice {slice_id} line {letter}", endpoint, bind, _takes(part)
        if part.shared_memory:
            shared = f"shm://{part.shared_memory}"
            yield f"slice {slice_id} shared memory", shared, shared, _takes(part)
    for number, archive in enumerate(feed.archives):
        yield f"archive {number}", archive, feed.bound(archive), ""
    for what, endpoint in (("hub", feed.hub), ("hub backup", feed.hub_backup)):
        if endpoint:
            yield what, endpoint, feed.bound(endpoint), ""


def _takes(part: Slice) -> str:
    if part.share is not None:
        return f"share {part.share[0]} of {part.share[1]}"
    return ", ".join(part.prefixes) or "all topics"


def _outgoing_ports(file: Path) -> tuple[int, int]:
    try:
        first, last = file.read_text().split()
    except (OSError, ValueError):
        return 65_536, 65_536
    return int(first), int(last)
