"""What the two hubs of a feed say to each other, and how they are set: see "Two hubs" in docs/hub-pairs-and-sites.md.

Each asks the other again and again by `Follow`; the answer is a `Lead`. Both tell how its sender stands. The answers of
the active one carry what was put, and what follows the passive one has it: that is the only way in which it is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy

from blackbox.block.position import Number
from blackbox.documents import Decoder
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.endpoint import check_archive
from blackbox.feed.feed import Feed
from blackbox.feed.toml import check_types
from blackbox.hub.protocol import UNSAID
from blackbox.native.xxh3 import xxh3

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


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Note and blocks of a turn for one slice."""

    slice_id: int
    sequence: int
    """Sequence of the first message."""
    note: bytes
    checksum: int
    """XXH3_64 of the note, its upper 63 bits."""
    blocks: list[tuple[bytes, bytes]]
    """Header and body of each block, which have checksums of their own."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A turn."""

    number: int
    epoch: int
    """Epoch of its messages; 0: it has none."""
    parts: list[Part]


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """How a hub stands."""

    feed: str
    role: Literal["primary", "backup"]
    run: Number
    """Of its process; a later one has a greater one."""
    term: Number
    """Grows whenever one of the two becomes active; those of the primary are odd."""
    newest: Number
    """The last turn that its journals have completely, with all turns before."""
    is_active: bool
    is_armed: bool
    """It is passive, and has all that the active one has answered: it may take over."""
    version: int = UNSAID
    damaged: Number = 0
    """The last turn that its journals had before they were damaged, until it is repaired; 0: they are whole."""
    part: Number = 0
    """Number of notes and messages that its journals have of the turn after `newest`; subscribers may have got some."""

    @property
    def had(self) -> int:
        """The last turn that its journals have, or had."""
        return max(self.newest, self.damaged)

    @property
    def rank(self) -> tuple[int, int, int, bool, bool]:
        """Of two that are passive, and neither of which may take over, the one with the higher one becomes active."""
        return self.term, self.had, self.part, not self.damaged, self.role == "primary"


class Follow(msgspec.Struct, frozen=True, array_like=True, tag="follow"):
    """Ask the other hub how it stands, and for what it has that this one lacks."""

    number: Number
    """Comes back in the answer."""
    standing: Standing
    done: Number
    """The last batch of the one that is asked that is in this one's journals, if `leader` is that one's run."""
    leader: Number
    """The run that this one follows; 0: none."""
    digest: bytes
    """Digest of its newest turn."""


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


class Kept(msgspec.Struct, frozen=True):
    """State of a hub of two, in a file next to its journals."""

    role: Literal["primary", "backup"]
    run: Number = 0
    """Term of the last process."""
    term: Number = 0
    """The last that it knows of."""
    is_alone: bool = False
    """No other hub may be active."""
    epoch: Number = 0
    """In which it publishes; 0: it has published nothing yet."""
    damaged: Number = 0
    """As of `Standing`."""
    damage: str = ""
    """Sentences that name the damage and the files that were set aside."""


_KEPT: Final = Decoder[Kept]("json", Kept)


def encode_kept(kept: Kept) -> bytes:
    """Return the content of the file, with its checksum."""
    text = msgspec.json.encode(kept)
    return b"%016x %s\n" % (checksum_of(text), text)


def read_kept(path: Path) -> Kept:
    """Read the file. Raises JournalError when it is damaged."""
    checksum, _, text = path.read_bytes().rstrip(b"\n").partition(b" ")
    try:
        if int(checksum, 16) == checksum_of(text):
            return _KEPT.decode(text)
    except ValueError:
        pass
    raise JournalError(f"{path} is damaged: copy the directory of the other hub")


def checksum_of(data: bytes) -> int:
    """Return the upper 63 bits of XXH3_64."""
    memory = numpy.frombuffer(data, numpy.uint8)
    return int(numpy.uint64(xxh3(memory.ctypes.data, len(memory)))) >> 1


def next_term(before: int, role: Literal["primary", "backup"]) -> int:
    """Return a term above all before that no other hub begins: the primary's are odd, the backup's even."""
    term = before + 1
    return term if term % 2 == (role == "primary") else term + 1
