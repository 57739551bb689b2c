"""Continue a recording after a restart: find its end, and the archives of other recorders."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from blackbox.archive.serve.archive_days import ArchiveDays
from blackbox.archive.serve.client import ArchiveClient
from blackbox.block.position import Position
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed
from blackbox.receive.slices.catching_up import Since
from blackbox.timestamps import SECOND_NS

log = logging.getLogger("blackbox")

_ANSWER_S: Final = 1.0
"""Time to wait for an answer of one archive before the next one is asked."""
_RECENT_NS: Final = 24 * 3_600 * SECOND_NS
"""An older recording is not continued: a recorder adds what it missed to the current day."""


def own_archive(feed: Feed, serve: bool | str) -> str:
    """Return the endpoint of the archive that is served: `serve`, or the feed's first one if True; empty: none."""
    return serve if isinstance(serve, str) else feed.archives[0] if serve and feed.archives else ""


def other_archives(feed: Feed, serve: bool | str) -> ArchiveClient:
    """Return a client for the feed's archives without the recorder's own. `serve`: see `own_archive`.

    Raises ConfigError if there is none.
    """
    own = own_archive(feed, serve)
    places = [number for number, endpoint in enumerate(feed.archives) if endpoint != own]
    if not places:
        raise ConfigError(
            f"archives of feed {feed.name!r} were {list(feed.archives)}, expected another recorder's to repair from"
        )
    security = feed.security
    if security is not None and len(security.archive_keys) > 1:
        keys = tuple(security.key_of_archive(number) for number in places)
        security = msgspec.structs.replace(security, archive_keys=keys)
    archives = tuple(feed.archives[number] for number in places)
    others = msgspec.structs.replace(feed, archives=archives, archives_bind=(), security=security)
    return ArchiveClient(others, timeout=_ANSWER_S)


def resumption(directory: Path, archives: ArchiveClient) -> Callable[[int], Since | None] | None:
    """Return the position after the last message of each slice; None: begin live, as no archive answers.

    `directory`: of the feed, whose last days were recovered. Slices without a message of the last 24 hours begin live,
    and those whose last day is damaged: an earlier end would record the messages after the damage again.
    """
    days, positions = ArchiveDays(directory), dict[int, Since]()
    recent_ns = time.time_ns() - _RECENT_NS
    open_slices = set(range(len(archives.feed.slices)))
    for name in reversed(days.reload()):
        try:
            ends = {each: days.end_of(name, each) for each in open_slices if each < len(days.known(name).feed.slices)}
        except JournalError as error:
            log.warning("%s", error)
            ends = dict.fromkeys(open_slices)
        damaged = [each for each, end in ends.items() if end is None]
        if damaged:
            text = "%s is damaged: messages of slices %s since the last recorded ones are missing"
            log.warning(text, directory / name, ", ".join(map(str, damaged)))
        found = {each: end for each, end in ends.items() if end is not None and end.position != Position(0, 0)}
        positions |= {each: Since(end.position) for each, end in found.items() if end.last_ns >= recent_ns}
        open_slices -= {*damaged, *found}
        if old := [each for each, end in found.items() if end.last_ns < recent_ns]:
            text = "%s ended more than 24 hours ago: messages of slices %s since then are not fetched"
            log.warning(text, directory / name, ", ".join(map(str, old)))
            break
        if not open_slices:
            break
    if positions and not archives.answers():
        name = archives.feed.name
        log.warning("feed %r: no other archive answers: messages since the last recorded ones are missing", name)
        return None
    return positions.get if positions else None
