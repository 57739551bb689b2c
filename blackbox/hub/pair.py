"""What the two hubs of a feed say to each other, and how they are set: see "Two hubs" in docs/hub-pairs-and-sites.md.

Each asks the other again and again by `Follow`; the answer is a `Lead`. Both tell how its sender stands. The answers of
the active one carry what was put, and what follows the passive one has it: that is the only way in which it is told.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from blackbox.block.position import Number
from blackbox.documents import Decoder
from blackbox.errors import ConfigError
from blackbox.feed.endpoint import check_archive
from blackbox.feed.feed import Feed
from blackbox.feed.toml import check_types
from blackbox.hub.protocol import UNSAID

MOST_SILENCE_NS: Final = 600 * 10**9
LEAST_SILENCE_NS: Final = 100_000_000


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hub's part in a pair: the table `[pair]` of its hub file."""

    role: Literal["primary", "backup"]
    """Which of the two it is: the one at the feed's `hub`, or the one at its `hub_backup`. No default."""

    link: str
    """Where this hub answers the other one, `tcp://HOST:PORT` or `ipc://PATH`. No default."""

    peer: str
    """Where the other one answers this hub: the `link` of its hub file. No default."""

    silence_ns: int = 2_000_000_000
    """How long nothing came from the active hub when the passive one takes over, once a client asks. Unit: ns.
    Default: 2 s; 0.1 s to 10 minutes."""

    when_cut: Literal["wait", "go_on"] = "wait"
    """What an active hub does that hears nothing of one that may take over. Default: `wait`, it answers nobody.

    `go_on`: after `silence_ns` it goes on alone. If only the link was cut, the other one may do so, too, and what one
    of the two has answered is lost when the link heals."""

    def __post_init__(self) -> None:
        """Check each setting; ConfigError names it and its value."""
        check_types(self)
        for name in ("link", "peer"):
            check_archive(getattr(self, name), name)
        if not LEAST_SILENCE_NS <= self.silence_ns <= MOST_SILENCE_NS:
            raise ConfigError(f"silence_ns was {self.silence_ns}, expected {LEAST_SILENCE_NS} to {MOST_SILENCE_NS}")

    @property
    def line(self) -> int:
        """Which line of each slice, and which archive, are this hub's."""
        return 0 if self.role == "primary" else 1

    def endpoint(self, feed: Feed) -> str:
        """Return where this hub takes what clients put."""
        return feed.hub if self.role == "primary" else feed.hub_backup

    def check_feed(self, feed: Feed) -> None:
        """Raise ConfigError when a feed lacks what two hubs need."""
        if not feed.hub_backup:
            raise ConfigError(
                f"feed {feed.name!r} had no hub_backup, expected where the other one of two hubs takes puts"
            )
        if len(feed.archives) < 2:
            raise ConfigError(f"feed {feed.name!r} had {len(feed.archives)} archives, expected one of each of two hubs")
        for number, part in enumerate(feed.slices):
            if len(part.lines) != 2 or part.shared_memory:
                raise ConfigError(
                    f"slice {number} of feed {feed.name!r} had endpoints {part.endpoints}, expected line A of the "
                    "first and line B of the second hub, and no shared memory"
                )


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A row of the put log: a request and its answer, or the begin of a client's session."""

    number: int
    client: str | None
    first: int
    """Of a session the number of that, below 0."""
    places: bytes
    why: str
    request: bytes | None
    taken_ns: int
    """When the hub took it that has numbered it, by that one's clock."""


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """How a hub stands."""

    feed: str
    role: Literal["primary", "backup"]
    run: Number
    """Of its process; a later one has a greater one."""
    term: Number
    """Grows whenever one of the two becomes active; those of the primary are odd."""
    newest: Number
    """The last row of its put log."""
    synced: Number
    """Up to here its outbox has it on the disk."""
    is_active: bool
    is_armed: bool
    """It is passive, and has all that the active one has answered: it may take over."""
    version: int = UNSAID

    @property
    def rank(self) -> tuple[int, int, bool]:
        """Of two that are passive, and neither of which may take over, the one with the higher one becomes active."""
        return self.term, self.newest, self.role == "primary"


class Follow(msgspec.Struct, frozen=True, array_like=True, tag="follow"):
    """Ask the other hub how it stands, and for what it has that this one lacks."""

    number: Number
    """Comes back in the answer."""
    standing: Standing
    done: Number
    """The last batch of the one that is asked that is in this one's log, if `leader` is that one's run."""
    leader: Number
    """The run that this one follows; 0: none."""
    digest: bytes
    """Of the last row of its put log."""


class Lead(msgspec.Struct, frozen=True, array_like=True, tag="lead"):
    """The answer."""

    number: int
    standing: Standing
    epoch: Number
    """In which the active one publishes what it takes now."""
    batch: int
    """What waits to be answered."""
    is_synced: bool
    """Have it on the disk before you say that you have it."""
    is_in_step: bool
    """You have all, and may take over once this one is silent."""
    entries: list[Entry]
    why: str
    """Why it cannot go on with the one that asks; empty: it can."""


FOLLOWS: Final = Decoder[Follow]("msgpack", Follow)
LEADS: Final = Decoder[Lead]("msgpack", Lead)


def next_term(before: int, role: Literal["primary", "backup"]) -> int:
    """Return a term above all before that no other hub begins: the primary's are odd, the backup's even."""
    term = before + 1
    return term if term % 2 == (role == "primary") else term + 1
