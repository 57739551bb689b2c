"""What a client and a hub say to each other: msgpack, one frame a request, one an answer; puts travel in columns."""

from __future__ import annotations

from itertools import compress
from typing import Annotated, Any, Final

import msgspec
import numpy
from numpy.typing import DTypeLike, NDArray

from blackbox.block.layout import VERSION
from blackbox.block.position import Number
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, HubError
from blackbox.feed.feed import Feed
from blackbox.feed.schema import Schema

UNSAID: Final = 2
"""Version of clients and hubs that do not state one."""
MOST_PUTS: Final = 4_096
"""Of one request."""
MOST_BYTES: Final = 1 << 20
"""Of the payloads of one request, hence of one payload."""
MOST_TOPIC_BYTES: Final = 1_024
MOST_ID_BYTES: Final = 64
MOST_TTL_NS: Final = 10 * 366 * 86_400 * 10**9
MOST_REQUEST_BYTES: Final = 8 << 20
MOST_FEED_BYTES: Final = 256 << 10
"""Of a site's feed, as JSON."""
MOST_SITES: Final = 64
_MOST_NAMED: Final = 4 * MOST_SITES
"""Sites in an answer: with those, the peers of the hub file."""

PLACE: Final = numpy.dtype(
    [("slice", "<u4"), ("is_new", "<u2"), ("is_refused", "<u2"), ("epoch", "<u8"), ("sequence", "<i8")]
)
"""Where a put is. `is_new`: this request has brought it, and not one before with the same id. `is_refused`: 0, or it is
not stored: see `CONFLICT` and `REFUSED`."""
CONFLICT: Final = 1
"""Its condition did not hold; its place is where the newest message of its topic is, as NOWHERE if it has no value."""
REFUSED: Final = 2
"""The hub cannot have it; this one and all above stand for the lines of `Stored.why`. Its place is NOWHERE."""
_RUN: Final = numpy.dtype([("count", "<u4"), ("first", PLACE)])
_ONE: Final = bytes([1, 0, 0, 0])
CONDITION: Final = numpy.dtype([("epoch", "<i8"), ("sequence", "<i8")])
"""Where the newest message of a put's topic must be; NOWHERE: the topic must have no value. Epoch -1: anywhere."""
ANYWHERE: Final = (-1, 0)

Places = NDArray[Any]
PlaceRow = tuple[int, int, int, int, int]
"""A row of them."""
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Begin a session, which ends the client's last one, or ask again where the feed is."""

    client: _Name
    session: Number
    """Random number that each process chooses."""
    feed: str
    number: Number
    """Comes back in the answer."""
    prefix: bytes | None = None
    """The answer is to say where topics with this prefix are; None: none."""
    version: int = UNSAID
    replaces: Number = 0
    """The client's last session, which ends now; 0: it has none."""


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Puts in columns, little-endian: message i has topic `topics[index[i]]`."""

    client: _Name
    session: Number
    first: Number
    """The number of the first of them; each client numbers its puts from 1, without a gap, through all its sessions."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_PUTS)]
    synced: bool
    """Answer once they are on the hub's disk, not only with its system."""
    topics: Annotated[list[bytes], msgspec.Meta(max_length=MOST_PUTS)]
    index: bytes
    """int32[count]"""
    offsets: bytes
    """int64[count + 1] into `payloads`"""
    payloads: bytes
    times: bytes
    """int64[count], `ts_event` of each; empty: 0 for all."""
    valid: bytes
    """bool[count], false: the message has no value; empty: all have one."""
    ids: Annotated[list[Annotated[bytes, msgspec.Meta(max_length=MOST_ID_BYTES)]], msgspec.Meta(max_length=MOST_PUTS)]
    """Of each put, b"" for none; empty: none has one."""
    if_at: bytes = b""
    """CONDITION[count]; empty: none has one."""
    ttl: bytes = b""
    """int64[count], after how many ns the topic ends, unless it is put anew; 0: never; empty: none does."""


class Site(msgspec.Struct, frozen=True, array_like=True):
    """A hub's feed, as its own site has it."""

    feed: Annotated[bytes, msgspec.Meta(max_length=MOST_FEED_BYTES)]
    """As JSON, without `[security]`."""
    keys: Annotated[list[_Name], msgspec.Meta(max_length=2)]
    """Public keys of who publishes it, as text: one, or one each for lines A and B; empty: no keys."""


class FindSites(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    """A hub asks which sites there are; it says which one it is, so that others find it here."""

    number: Number
    """Comes back in the answer."""
    asks: Site
    version: int = UNSAID


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """A session has begun, or goes on."""

    number: int
    last: int
    """The number of the client's last put that the hub has."""
    epoch: int
    following: list[int]
    """The number of the next message of each slice. Empty if it was not asked for, or the client's key has no right to
    what it asked for."""


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """The hub has judged the puts of a request, and has all that it did not refuse; their numbers are used up."""

    first: int
    places: bytes
    """Of each put, as `pack_places` returns them."""
    why: str = ""
    """Reasons why puts were refused, a line each."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """A request is not taken, and never will be: nobody knows any more what became of it."""

    first: int
    why: str


class Expected(msgspec.Struct, frozen=True, array_like=True, tag="expected"):
    """A request is not taken, as puts before it are missing."""

    first: int
    """The number that comes next."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A request is not understood, or of a client or session that cannot go on."""

    why: str
    session: int | None = None
    """The client's session, which a new one may replace; None: a new session would not help."""


class Passive(msgspec.Struct, frozen=True, array_like=True, tag="passive"):
    """A request is not taken: the other one of two hubs is the active one, or will be."""


class FoundSites(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """The sites that a hub knows, first its own."""

    number: int
    sites: Annotated[list[Site], msgspec.Meta(max_length=_MOST_NAMED)]
    version: int = UNSAID


class _OldWelcome(msgspec.Struct, array_like=True, tag="welcome"):
    """First fields of a `Welcome` of version 2."""

    number: int
    last: int
    epoch: int
    at_ns: int


FIRST: Final = bytes(4)
"""The index of a request of one put."""

REQUESTS: Final = Decoder[Hello | Put | FindSites]("msgpack", Hello | Put | FindSites)
Answer = Welcome | Stored | Refused | Expected | Ended | Passive
_ANSWERS: Final = Decoder[Answer]("msgpack", Answer)
FOUND: Final = Decoder[FoundSites | Ended]("msgpack", FoundSites | Ended)
_OLD_WELCOME: Final = Decoder[_OldWelcome]("msgpack", _OldWelcome)
ENCODER: Final = msgspec.msgpack.Encoder()


class Columns(msgspec.Struct, frozen=True):
    """The columns of a request, checked."""

    index: NDArray[numpy.int32]
    offsets: NDArray[numpy.int64]
    data: NDArray[numpy.uint8]
    times: NDArray[numpy.int64] | None
    valid: NDArray[numpy.bool_] | None
    if_at: NDArray[Any] | None
    ttl: NDArray[numpy.int64] | None

    @classmethod
    def of(cls, put: Put) -> Columns:
        """Check a request's columns, but not what topics and payloads are. Raises ConfigError saying what is wrong."""
        count = put.count
        index = _column("index", put.index, numpy.int32, count)
        offsets = _column("offsets", put.offsets, numpy.int64, count + 1)
        data = numpy.frombuffer(put.payloads, numpy.uint8) if put.payloads else numpy.empty(0, numpy.uint8)
        is_one = put.index == FIRST and put.offsets == offsets_of_one(len(data)) and len(put.topics) == 1
        if not is_one and (offsets[0] != 0 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any()):
            raise ConfigError(f"offsets were from {offsets[0]} to {offsets[-1]}, expected 0 to {len(data)}, ascending")
        if not is_one and (index.min() < 0 or index.max() >= len(put.topics)):
            raise ConfigError(f"index was {index.min()} to {index.max()}, expected places of {len(put.topics)} topics")
        if put.ids and len(put.ids) != count:
            raise ConfigError(f"ids were {len(put.ids)}, expected none or {count}")
        times = _column("times", put.times, numpy.int64, count) if put.times else None
        valid = _column("valid", put.valid, numpy.uint8, count) != 0 if put.valid else None
        if_at = _column("if_at", put.if_at, CONDITION, count) if put.if_at else None
        ttl = _column("ttl", put.ttl, numpy.int64, count) if put.ttl else None
        if ttl is not None and (ttl.min() < 0 or ttl.max() > MOST_TTL_NS):
            raise ConfigError(f"ttl was {ttl.min()} to {ttl.max()} ns, expected 0 to {MOST_TTL_NS}")
        return cls(index, offsets, data, times, valid, if_at, ttl)

    def last_rows(self, rows: NDArray[numpy.bool_]) -> list[tuple[int, int]]:
        """Return the last row of each topic, of some of them, in order: place of the topic, and row."""
        last = numpy.full(int(self.index.max()) + 1, -1, numpy.int64)
        last[self.index[rows]] = numpy.flatnonzero(rows)
        order = numpy.argsort(last)  # `topics` may name one twice: the later row of the two holds
        return [(topic, row) for topic, row in zip(order.tolist(), last[order].tolist(), strict=True) if row >= 0]

    def topics_of(self, topics: list[bytes], rows: NDArray[numpy.int64]) -> list[bytes]:
        """Return the topics that some rows have."""
        used = numpy.zeros(len(topics), numpy.bool_)
        used[self.index[rows]] = True
        return list(compress(topics, used.tolist()))

    def has_value(self, row: int) -> bool:
        """Whether a put has a value."""
        return self.valid is None or bool(self.valid[row])


def wrong_version(peer: str, version: int) -> str:
    """Return an error about the version of a peer, or "" if it is the same."""
    if version == VERSION:
        return ""
    return f"{peer} version was {version}, expected {VERSION}: use the same release of blackbox on both sides"


def decode_answer(hub: str, text: bytes) -> Answer:
    """Decode the answer of a hub. Raises HubError."""
    try:
        return _ANSWERS.decode(text)
    except DecodeError as error:
        try:
            _OLD_WELCOME.decode(text)
        except DecodeError:
            raise HubError(f"{hub} did not answer as a hub does: {error}") from error
        raise HubError(wrong_version(f"hub {hub}", UNSAID)) from None


def pack_places(places: Places) -> bytes:
    """Return PLACE[n] as bytes: rows that follow each other share what they have in common."""
    if len(places) == 1:
        return _ONE + places.tobytes()
    same, number = numpy.ones(max(0, len(places) - 1), numpy.bool_), places["sequence"]
    for name in ("slice", "is_new", "is_refused", "epoch"):
        same &= places[name][1:] == places[name][:-1]
    begins = numpy.flatnonzero(numpy.concatenate([[len(places) > 0], ~(same & (number[1:] == number[:-1] + 1))]))
    runs = numpy.empty(len(begins), _RUN)
    runs["count"], runs["first"] = numpy.diff(begins, append=len(places)), places[begins]
    return runs.tobytes()


def unpack_places(packed: bytes) -> Places:
    """Return what was packed. Raises ConfigError for more than a request may have."""
    if packed.startswith(_ONE) and len(packed) == _RUN.itemsize:
        return numpy.frombuffer(packed, PLACE, offset=len(_ONE))
    runs = numpy.frombuffer(packed, _RUN)
    counts = runs["count"].astype(numpy.int64)
    if counts.sum() > MOST_PUTS:
        raise ConfigError(f"places were {counts.sum()}, expected at most {MOST_PUTS}")
    places = numpy.repeat(runs["first"], counts)
    places["sequence"] += numpy.arange(len(places)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    return places


def offsets_of_one(size: int) -> bytes:
    """Return the offsets of a request of one put, of a payload of so many bytes."""
    return bytes(8) + size.to_bytes(8, "little")


def _column(name: str, data: bytes, dtype: DTypeLike, count: int) -> NDArray[Any]:
    size = numpy.dtype(dtype).itemsize * count
    if len(data) != size:
        raise ConfigError(f"{name} had {len(data)} bytes, expected {size}")
    return numpy.frombuffer(data, dtype)


def misfits(
    schema: Schema,
    offsets: NDArray[numpy.int64],
    data: NDArray[numpy.uint8],
    valid: NDArray[numpy.bool_] | None = None,
) -> list[tuple[int, str]]:
    """Return the rows whose payloads are no records of the feed's schema, and why."""
    if not schema.records:
        return []
    starts, sizes = offsets[:-1], numpy.diff(offsets)
    expected = numpy.zeros(256, numpy.int64)
    for kind, dtype in schema.records.items():
        expected[ord(kind)] = dtype.itemsize
    is_short = sizes <= schema.type_offset
    kinds = numpy.zeros(len(sizes), numpy.uint8)
    kinds[~is_short] = data[starts[~is_short] + schema.type_offset]
    is_wrong = is_short | (expected[kinds] != sizes)
    if valid is not None:
        is_wrong &= valid
    rows = numpy.flatnonzero(is_wrong).tolist()
    return [(row, schema.misfit(data[offsets[row] : offsets[row + 1]].tobytes()) or "") for row in rows]


def check_topic_of(feed: Feed, topic: bytes) -> int:
    """Return the slice of a topic. Raises ConfigError for one that no slice covers, or that is too long."""
    if len(topic) > MOST_TOPIC_BYTES:
        raise ConfigError(f"topic had {len(topic)} bytes, expected at most {MOST_TOPIC_BYTES}: {topic[:40]!r}...")
    return feed.slice_of(topic)
