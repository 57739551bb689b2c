"""Messages and settings of the two hubs of a feed: see "Two hubs" of `hub-pairs-and-sites` in the docs.

Each hub asks the other repeatedly with `Follow`, and answers with `Lead`. Both messages have the sender's standing.
The answers of the active hub have the puts. Only the passive hub's next questions confirm that it has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy

from blackbox.block.position import Number
from blackbox.documents import Decoder
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.endpoint import check_service
from blackbox.feed.feed import Feed
from blackbox.feed.toml import check_types
from blackbox.native.tables.xxh3 import xxh3

MOST_SILENCE_NS: Final = 600 * 10**9
LEAST_SILENCE_NS: Final = 100_000_000


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a hub of a pair: the table `[pair]` of its hub file."""

    role: Literal["primary", "backup"]
    """Role of this hub: the primary is at the feed's `hub`, the backup at its `hub_backup`. No default."""

    link: str
    """Endpoint where this hub answers the other one, `tcp://HOST:PORT` or `ipc://PATH`. No default."""

    peer: str
    """Endpoint where the other hub answers this one: the `link` of its hub file. No default."""

    silence_ns: int = 2_000_000_000
    """Silence of the active hub after which the passive one takes over, once a client asks. Unit: ns.
    Default: 2 s; 0.1 s to 10 minutes."""

    when_cut: Literal["wait", "go_on"] = "wait"
    """Action of an active hub while a peer that may take over is silent. Default: `wait`, it answers no client.

    `go_on`: after `silence_ns` it continues alone. If only the link was cut, the other hub may continue, too, and the
    puts that one of the two has answered are lost when the link heals."""

    def __post_init__(self) -> None:
        """Check each setting; ConfigError names it and its value."""
        check_types(self)
        for name in ("link", "peer"):
            check_service(getattr(self, name), name)
        if not LEAST_SILENCE_NS <= self.silence_ns <= MOST_SILENCE_NS:
            raise ConfigError(f"silence_ns was {self.silence_ns}, expected {LEAST_SILENCE_NS} to {MOST_SILENCE_NS}")

    @property
    def line(self) -> int:
        """Index of this hub's line in each slice, and of its archive."""
        return 0 if self.role == "primary" else 1

    def endpoint(self, feed: Feed) -> str:
        """Return the endpoint where this hub takes puts."""
        return feed.hub if self.role == "primary" else feed.hub_backup

    def check_feed(self, feed: Feed) -> None:
        """Raise ConfigError if a feed lacks what two hubs need."""
        if not feed.hub_backup:
            raise ConfigError(
                f"feed {feed.name!r} had no hub_backup, expected the endpoint where the backup takes puts"
            )
        if len(feed.archives) < 2:
            raise ConfigError(f"feed {feed.name!r} had {len(feed.archives)} archives, expected one for each hub")
        for number, part in enumerate(feed.slices):
            if len(part.sockets) != 2 or part.shared_memory:
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
    """State of a hub of a pair, for its peer."""

    feed: str
    role: Literal["primary", "backup"]
    run: Number
    """Number of its process; a later process has a greater number."""
    term: Number
    """Number that grows whenever a hub of the pair becomes active; odd for the primary."""
    newest: Number
    """The last turn that its journals have completely, with all turns before."""
    is_active: bool
    is_armed: bool
    """True if it is passive and has all that the active hub has answered, so that it may take over."""
    version: int
    damaged: Number = 0
    """The last turn that its journals had before they were damaged, until it is repaired; 0: they are whole."""
    part: Number = 0
    """Number of notes and messages that its journals have of the turn after `newest`; subscribers may have got some."""
    epoch: Number = 0
    """The last epoch that its journals have; 0: none."""

    @property
    def had(self) -> int:
        """The last turn that its journals have, or had."""
        return max(self.newest, self.damaged)

    @property
    def rank(self) -> tuple[int, int, int, bool, bool]:
        """Rank between two passive hubs that are not armed: the hub with the higher rank becomes active."""
        return self.term, self.had, self.part, not self.damaged, self.role == "primary"


class Follow(msgspec.Struct, frozen=True, array_like=True, tag="follow"):
    """Question to the other hub for its standing, and for turns that this hub lacks."""

    number: Number
    """Number that the answer repeats."""
    standing: Standing
    done: Number
    """The last batch of the asked hub that this hub's journals have, if `leader` is the asked hub's run."""
    leader: Number
    """The run that this hub follows; 0: none."""
    digest: bytes
    """Digest of its newest turn."""


class Lead(msgspec.Struct, frozen=True, array_like=True, tag="lead"):
    """Answer to a `Follow`."""

    number: int
    standing: Standing
    epoch: Number
    """Epoch in which the active hub publishes now."""
    batch: int
    """Number of the batch whose clients wait for answers."""
    is_synced: bool
    """True if the peer must have the batch on its disk before it confirms it."""
    is_in_step: bool
    """True if the peer has all turns, and may take over once this hub is silent."""
    entries: list[Entry]
    why: str
    """Reason why the peer cannot follow; empty: it can."""


FOLLOWS: Final = Decoder[Follow]("msgpack", Follow)
LEADS: Final = Decoder[Lead]("msgpack", Lead, most_bytes=1 << 40)
"""Their size is limited by the link's socket."""


class Kept(msgspec.Struct, frozen=True):
    """State of a hub of a pair, in a file next to its journals."""

    role: Literal["primary", "backup"]
    run: Number = 0
    """Run of the last process."""
    term: Number = 0
    """The last term that it knows of."""
    is_alone: bool = False
    """True if the other hub cannot be active."""
    is_cut: bool = False
    """True if it was alone and lost power: the other hub may have turns that it has lost."""
    epoch: Number = 0
    """Epoch in which it publishes; 0: it has published nothing yet."""
    damaged: Number = 0
    """As in `Standing`."""
    damage: str = ""
    """Sentences that name the damage and the files that were set aside."""


_KEPT: Final = Decoder[Kept]("json", Kept)


def encode_kept(kept: Kept) -> bytes:
    """Return the content of the file, with its checksum."""
    text = msgspec.json.encode(kept)
    return b"%016x %s\n" % (checksum_of(text), text)


def read_kept(path: Path) -> Kept:
    """Read the file. Raises JournalError if it is damaged."""
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
    """Return the first term of a role above `before`: terms of the primary are odd, those of the backup are even."""
    term = before + 1
    return term if term % 2 == (role == "primary") else term + 1
