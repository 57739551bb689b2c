"""Messages between archive and reader: msgpack in one frame. Each block of an answer follows in three frames."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from blackbox.archive.consumer_positions import SECRET_BYTES
from blackbox.block.form.layout import VERSION
from blackbox.block.position import Number, Position
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ArchiveError
from blackbox.transport.security.hidden import hides

MOST_REQUEST_BYTES: Final = 65_536 * 2
"""Maximum size of one frame of a request."""
MOST_PREFIXES: Final = 256
"""Maximum number of prefixes in one request."""
FRAMES_OF_BLOCK: Final = 3
BEGINNING_NS: Final = -(1 << 63)
"""Time before every block. Unit: ns since 1970."""

UNSAID: Final = 2
"""Version of archives that do not report one."""

_Time = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Name = Annotated[bytes, msgspec.Meta(max_length=65_535)]


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """Requested messages that are not in the archive."""

    epoch: Number
    """The publisher's epoch."""
    first: Number
    """First missing sequence."""
    stop: Number
    """Sequence after the last missing one; equal to `first` if the number of missing messages is not known."""
    why: str
    """Reason for the gap."""


class EndOfEpoch(msgspec.Struct, frozen=True, array_like=True):
    """End of an epoch that is over, as its publisher reported it to the recorder."""

    epoch: Number
    stop: Number
    """Sequence after the last message that was recorded or reported."""
    following: Number
    """Next sequence of the slice at the time of `ends`."""
    ends: dict[_Name, tuple[Number, Number]]
    """End and number of messages of each key whose records do not reach its end."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Offset up to which an archive has read. Valid only at the archive that made it, until it stops."""

    archive: Number
    """Random number that each archive draws when it starts."""
    day: Annotated[str, msgspec.Meta(max_length=255)]
    segment: Number
    offset: Number


class Request(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A request. The key `do` has its name."""


class AskAbout(Request, frozen=True, tag="about"):
    """Request the contents of the archive."""

    day: str | None = None
    """Day that `slices` describes; None: the last one."""


_Prefixes = Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=MOST_PREFIXES)]


class AskBlocks(Request, frozen=True, tag="blocks", kw_only=True, omit_defaults=True):
    """Request the next piece of the blocks of a slice."""

    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = msgspec.field(name="slice")
    prefixes: _Prefixes = (b"",)
    """Prefixes of wanted topics."""
    of_keys: bool = False
    """True if they are prefixes of wanted keys."""
    topics: _Prefixes = (b"",)
    """With `of_keys`: messages that were dropped of topics without one of these prefixes are not reported as gone."""
    start: Position
    """First wanted position; in later requests, `passed` of the previous piece."""
    stop: Position | None = None
    """Position after the last wanted message."""
    stop_ns: _Time | None = None
    """End before the first block received at this time or later, ns since 1970."""
    may_narrow: bool = False
    """True to leave out topics without a right of the reader's key. Otherwise a prefix with such topics is an error."""
    cursor: Cursor | None = None
    """Cursor of the previous piece; None: this is the first one."""


class AskPosition(Request, frozen=True, tag="position", kw_only=True):
    """Request the position of the first block received at a time or later."""

    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = msgspec.field(name="slice")
    start_ns: _Time
    """Time of receipt, ns since 1970."""


Snapshot = Literal["latest", "books"]
"""The latest message of each topic, or all resting orders of the order books."""


class AskImage(Request, frozen=True, tag="image", kw_only=True, omit_defaults=True):
    """Request an image of a slice, or the next piece of one."""

    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = msgspec.field(name="slice")
    prefixes: _Prefixes
    """Topics that begin with one of these."""
    of: Snapshot = "latest"
    may_narrow: bool = False
    """As in `AskBlocks`."""
    image: Number = 0
    """Image to continue; 0: a new one."""
    first: Number = 0
    """Index of the first wanted block."""


@hides("secret")
class TellConsumer(Request, frozen=True, tag="consumer", kw_only=True, omit_defaults=True):
    """Report the positions of a named consumer: the archive keeps the days that it still needs, within its bounds."""

    name: Annotated[str, msgspec.Meta(max_length=255)]
    secret: Annotated[bytes, msgspec.Meta(max_length=SECRET_BYTES)] = b""
    """Proof that the name is the sender's, where its connection has no key: 32 bytes. Ignored where it has one."""
    slices: Annotated[dict[Number, Position], msgspec.Meta(max_length=65_536)] = {}
    """By slice. Empty: the consumer has ended, and the archive deletes its positions."""
    prefixes: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=MOST_PREFIXES)] = ()
    """The consumer's topics begin with one of these. Empty: not known."""


class Noted(msgspec.Struct, frozen=True, tag_field="is", tag="noted"):
    """The positions were stored, or deleted."""


PieceState = Literal["more", "later", "done"]
"""When to request the next piece: at once, later because the recording is still being written, or not at all."""


class Piece(msgspec.Struct, frozen=True, tag_field="is", tag="blocks", kw_only=True):
    """Some blocks of an answer, all of one epoch. Key, header and body of each are in the frames that follow."""

    blocks: list[tuple[int, int]]
    """(`ts_recv`, first row) of each block. Rows before the first row are not part of the recording."""
    gone: list[tuple[int, Gone]]
    """Each gap, with the index of the block after it."""
    state: PieceState
    cursor: Cursor
    """For the next request."""
    passed: Position
    """Position before which every wanted message was sent or is `gone`."""
    ended: EndOfEpoch | None = None
    """End of the requested epoch, if it is over. `passed` is then the start of the next known epoch."""


class FoundPosition(msgspec.Struct, frozen=True, tag_field="is", tag="position", kw_only=True):
    """Position of the first block received at the requested time or later."""

    position: Position | None = None
    """None: not all days were searched yet, ask again."""
    is_end: bool = False
    """True if there is no such block: `position` is the end of the slice."""


class Image(msgspec.Struct, frozen=True, tag_field="is", tag="image", kw_only=True):
    """An image, with some of its blocks in the frames that follow, as in a `Piece`."""

    image: Number
    """Image to name in the next request; 0: it is not ready, ask again."""
    blocks: Number = 0
    """Total number of blocks."""
    position: Position = Position(0, 0)
    """Position after the image, in the last recorded epoch; epoch 0: nothing is recorded."""
    ts_out: int = 0
    """Largest `ts_out` of that epoch."""
    unreadable: int = 0
    """Number of places in the archive's files that could not be read. Their messages may be missing."""
    is_unsure: bool = False
    """True if order books may lack orders because the archive lacks messages of the epoch."""


class RunAbout(msgspec.Struct, frozen=True, kw_only=True):
    """End of an epoch of the publisher, as known from one day of a slice."""

    epoch: int
    last_sequence: int
    """Last sequence, recorded or reported by the publisher; -1: none."""
    has_ended: bool
    """True if the publisher has closed, so that `last_sequence` is final."""
    heard_ns: int
    """Time of the publisher's last heartbeat, by the recorder's clock, ns since 1970; 0: none."""


class Outage(NamedTuple):
    """Period without a recorder."""

    start_ns: int
    """Time of the last record before it, ns since 1970; 0: none on this day."""
    stop_ns: int
    """Time at which the publisher was received again, ns since 1970; 0: not on this day."""


class SliceAbout(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a slice in one day, from its indexes. Messages still in the recorder's memory are not included."""

    messages: int
    epochs: list[int]
    """The publisher's epochs, in the order of their first blocks."""
    first_sequences: list[int]
    """First sequence of each epoch."""
    last_sequences: list[int]
    """Last sequence of each epoch."""
    first_ns: int
    """The lowest `ts_recv`; 0: there is no message."""
    last_ns: int
    """The highest `ts_recv`."""
    is_closed: bool
    """True if the recorder has closed the journal, so that nothing follows."""
    runs: list[RunAbout]
    """All epochs of the publisher, even those without recorded messages."""
    outages: list[Outage]


class About(msgspec.Struct, frozen=True, tag_field="is", tag="about", kw_only=True):
    """Contents of an archive."""

    version: int = UNSAID
    """Version of the archive's formats."""
    feed: str
    key_rule: int
    schema: dict[str, Any]
    """Id of the payloads' schema, from the day's manifest."""
    days: list[str]
    """All days, in order."""
    day: str
    """The day that `slices` describes."""
    slices: dict[int, SliceAbout]
    deleted: str
    """All days up to this one were deleted; empty: none."""
    live_epoch: int | None
    """The publisher's latest epoch, if a journal of the last day is not closed; else None."""


class Refusal(msgspec.Struct, frozen=True, tag_field="is", tag="error"):
    """A request that was not answered."""

    why: str
    is_stale: bool = False
    """True if the cursor is of another archive: send the request again without it."""


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


Asked = AskAbout | AskBlocks | AskImage | AskPosition | TellConsumer
Answer = Piece | About | FoundPosition | Image | Noted | Refusal
REQUESTS: Final = Decoder[Asked]("msgpack", Asked)
ANSWERS: Final = Decoder[Answer]("msgpack", Answer)
_OPENING: Final = Decoder[_Opening]("msgpack", _Opening)
ENCODER: Final = msgspec.msgpack.Encoder()
