"""What archive and reader say to each other: msgpack, in one frame; blocks in three frames each behind an answer."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from blackbox.archive.consumer_positions import SECRET_BYTES
from blackbox.block.layout import VERSION
from blackbox.block.position import KeyPosition, Number, Position
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ArchiveError

MOST_REQUEST_BYTES: Final = 65_536 * 2
"""Of one frame of a request: two topics, and some numbers, or MOST_RANGES."""
MOST_RANGES: Final = 1_024
MOST_PREFIXES: Final = 256
"""Of one request for an image."""
MOST_ENDS: Final = 8_192
"""Keys of runs in one answer."""
FRAMES_OF_BLOCK: Final = 3

UNSAID: Final = 2
"""Version of archives that do not say it."""

_Time = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Name = Annotated[bytes, msgspec.Meta(max_length=65_535)]


class Range(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Messages of one key, of one run of its publisher."""

    key: _Name
    """b"" where the feed has no keys."""
    epoch: Number
    first: Number
    """The first of their sequence numbers."""
    stop: Number
    """The number behind the last one."""


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """Messages that were asked for and are not in the archive."""

    epoch: int
    """The publisher's run; 0: not known."""
    first: int
    """The first of their sequence numbers; -1: not known, a part of a file cannot be read."""
    count: int
    """How many; 0: not known."""
    why: str
    """Why they are not there."""
    key: bytes = b""
    """Their key; b"" where `first` is not known."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far an archive has read. Only the archive that made it understands it, until it ends."""

    archive: Number
    """Drawn by each archive when it starts."""
    day: Annotated[str, msgspec.Meta(max_length=255)]
    segment: Number
    offset: Number


class Request(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A request; its name is in the key `do`."""


class AskAbout(Request, frozen=True, tag="about"):
    """Ask what the archive holds."""

    day: str | None = None
    """The day that `slices` shall tell of; None: the last one."""
    back: Annotated[dict[Number, Number], msgspec.Meta(max_length=65_536)] = {}
    """By slice, how many of its last messages that day to tell the beginning of."""


class AskBlocks(Request, frozen=True, tag="blocks", kw_only=True, omit_defaults=True):
    """Ask for the next piece of the blocks of a slice."""

    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = msgspec.field(name="slice")
    prefix: _Name = b""
    """Blocks with a topic that begins with this."""
    key: _Name | None = None
    """Blocks of this key alone."""
    start: Position | None = None
    """Where to begin. Needs a key."""
    stop: Position | None = None
    """Where to end; not asked for itself. Needs a key."""
    ranges: Annotated[list[Range], msgspec.Meta(max_length=MOST_RANGES)] = []
    """Blocks that hold some of these; then none of what else narrows them."""
    epoch: Number = 0
    """Blocks of this run of the publisher, or later ones."""
    sent_ns: _Time = 0
    """Those of that run that were sent at this time or later, by the publisher's clock, ns since 1970."""
    start_ns: _Time | None = None
    """Blocks received at this time or later, ns since 1970."""
    stop_ns: _Time | None = None
    """End before the first block received at this time or later, ns since 1970."""
    may_narrow: bool = False
    """Whether to leave out topics that the reader's key has no right to; else a prefix that holds some is an error."""
    cursor: Cursor | None = None
    """Where the piece before this one ended; None: this is the first one."""


class AskEnds(Request, frozen=True, tag="ends", kw_only=True, omit_defaults=True):
    """Ask how far publishers have told that runs had come, key by key, as far as records fell short."""

    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = msgspec.field(name="slice")
    first: Number
    """The first run."""
    stop: Number
    """Runs before this one."""
    prefix: _Name = b""
    """Keys with topics that begin with this."""
    behind: tuple[Number, _Name] | None = None
    """Go on behind this run and key, the last ones of the answer before."""


Snapshot = Literal["latest", "books"]
"""The latest message of each topic, or all resting orders of the order books."""


class AskImage(Request, frozen=True, tag="image", kw_only=True, omit_defaults=True):
    """Ask for an image of a slice, or for the next piece of that."""

    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = msgspec.field(name="slice")
    prefixes: Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=MOST_PREFIXES)]
    """Topics that begin with one of these."""
    of: Snapshot = "latest"
    may_narrow: bool = False
    """As in `AskBlocks`."""
    image: Number = 0
    """The one to go on with; 0: a new one."""
    first: Number = 0
    """The first of its blocks that is wanted."""


class TellConsumer(Request, frozen=True, tag="consumer", kw_only=True, omit_defaults=True):
    """Report the positions of a named consumer: the archive keeps the days that it still needs, within its bounds."""

    name: Annotated[str, msgspec.Meta(max_length=255)]
    secret: Annotated[bytes, msgspec.Meta(max_length=SECRET_BYTES)] = b""
    """Proof that the name is the sender's, where its connection has no key: 32 bytes. Ignored where it has one."""
    slices: Annotated[dict[Number, Position], msgspec.Meta(max_length=65_536)] = {}
    """By slice of a feed without keys."""
    keys: Annotated[dict[Number, KeyPosition], msgspec.Meta(max_length=65_536)] = {}
    """By slice of a feed with keys. Only `epoch`, `done_ns` and `since_ns` count."""


class Noted(msgspec.Struct, frozen=True, tag_field="is", tag="noted"):
    """What was told is kept."""


PieceState = Literal["more", "later", "done"]
"""Whether to ask on at once, or later, as it is still being written; or nothing follows."""


class Piece(msgspec.Struct, frozen=True, tag_field="is", tag="blocks", kw_only=True):
    """Some blocks of an answer; they stand in the frames behind it, key, header and body of each."""

    blocks: list[tuple[int, int]]
    """(`ts_recv`, first row) of each block: rows before the first one are no part of the recording."""
    gone: list[tuple[int, Gone]]
    """What is missing, and before which of the blocks."""
    state: PieceState
    cursor: Cursor
    """For the next request."""
    start: Position | None = None
    """For the next request, where a start was asked for, or a block of the key that was asked for has come."""
    ranges: list[Range] = []
    """For the next request, where ranges were asked for: what is left of them."""
    epoch: int = 0
    """With `later`, the publisher's last run of which the recorder has heard; 0: none, as far as is known."""


class Ends(msgspec.Struct, frozen=True, tag_field="is", tag="ends", kw_only=True):
    """How far runs had come, as their publisher has told."""

    ends: list[tuple[int, bytes, int]]
    """Run, key and the number behind the last message told of, in order; a key may have come so far meanwhile."""
    has_more: bool
    """Whether there are more: ask on."""


class Image(msgspec.Struct, frozen=True, tag_field="is", tag="image", kw_only=True):
    """An image; some of its blocks stand in the frames behind it, as those of a `Piece`."""

    image: Number
    """For the next request; 0: the archive has more to read before, ask once more."""
    blocks: Number = 0
    """How many there are in all."""
    epoch: Number = 0
    """The last run of the publisher that is recorded; 0: none is."""
    next_sequences: dict[_Name, Number] = {}
    """By key, what follows the image in that run; others begin there. Where the feed has no keys, of b""."""
    ts_out: int = 0
    """The largest `ts_out` of that run."""
    unreadable: int = 0
    """Places of the archive's files that could not be read: what they held may be missing."""
    is_unsure: bool = False
    """Whether order books may lack something, as the archive has not all messages of the run."""


class RunAbout(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run of the publisher has come, as far as a day of a slice tells."""

    epoch: int
    last_sequence: int
    """The largest sequence number over all keys, recorded or told by the publisher; -1: none."""
    has_ended: bool
    """Whether the publisher has said that nothing follows: `last_sequence` is its last."""
    heard_ns: int
    """When the publisher last told how far it is, by the recorder's clock, ns since 1970; 0: it never did."""


class Outage(NamedTuple):
    """A time in which nobody recorded, ns since 1970."""

    start_ns: int
    """When something was recorded last; 0: nothing of this day was, before."""
    stop_ns: int
    """When the publisher was heard again; 0: not on this day."""


class SliceAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What a slice holds of a day, by its indexes; messages that are still in the recorder's memory are not in it."""

    messages: int
    epochs: list[int]
    """The publisher's runs, in the order of their first blocks."""
    first_sequences: list[int]
    """Of each epoch, the least sequence number over all keys."""
    last_sequences: list[int]
    """Of each epoch, the largest sequence number over all keys."""
    first_ns: int
    """The least `ts_recv`, 0: there is no message."""
    last_ns: int
    """The largest `ts_recv`."""
    back_ns: int
    """Of the last messages that were asked for, the least `ts_recv`; some more may have come then."""
    is_closed: bool
    """Whether its recorder has closed the journal: nothing follows."""
    runs: list[RunAbout]
    """What is known of the publisher's runs, also of those of which nothing was recorded."""
    outages: list[Outage]


class About(msgspec.Struct, frozen=True, tag_field="is", tag="about", kw_only=True):
    """What an archive holds."""

    version: int = UNSAID
    """Version of the archive's formats."""
    feed: str
    key_bytes: int
    schema: dict[str, Any]
    """Of the day's payloads, as the manifest has it."""
    days: list[str]
    """All days, in order."""
    day: str
    """The one that `slices` tells of."""
    slices: dict[int, SliceAbout]
    """Empty for a key with rights to some topics: it must not learn how many others there are."""
    deleted: str
    """All days up to this one were deleted; empty: none."""
    live_epoch: int | None
    """The publisher's latest run, when a journal of the last day is not closed; else None."""


class Refusal(msgspec.Struct, frozen=True, tag_field="is", tag="error"):
    """A request that was not answered."""

    why: str
    is_stale: bool = False
    """Whether only its cursor is not of this archive: ask again without it."""


class _Opening(msgspec.Struct, tag_field="is", tag="about"):
    """The part of `About` that is the same in all versions."""

    version: int = UNSAID


def check_version(text: bytes | memoryview) -> None:
    """Raise ArchiveError if this is an `About` of an archive of another version."""
    try:
        version = _OPENING.decode(text).version
    except DecodeError:
        return
    if version != VERSION:
        raise ArchiveError(
            f"archive version was {version}, expected {VERSION}: use the same release of blackbox on both sides"
        )


Asked = AskAbout | AskBlocks | AskEnds | AskImage | TellConsumer
Answer = Piece | About | Ends | Image | Noted | Refusal
REQUESTS: Final = Decoder[Asked]("msgpack", Asked)
ANSWERS: Final = Decoder[Answer]("msgpack", Answer)
_OPENING: Final = Decoder[_Opening]("msgpack", _Opening)
ENCODER: Final = msgspec.msgpack.Encoder()
