"""Messages between clients and hubs: msgpack, one frame per request or answer, puts in columns."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any, Final

import msgspec
import numpy
from numpy.typing import DTypeLike, NDArray

from blackbox.block.form.layout import VERSION
from blackbox.block.position import Number
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, HubError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import Schema

_DIGEST_BYTES: Final = 16
"""Size of the hash of an id in those of later rows."""
MOST_PUTS: Final = 4_096
"""Maximum puts of one request."""
MOST_BYTES: Final = 1 << 20
"""Maximum size of the payloads of one request, hence of one payload."""
MOST_TOPICS: Final = 255
"""Maximum topics of one message."""
MOST_COPIES_BYTES: Final = 16 * MOST_BYTES
"""Maximum size of a message's payload, once for each of its topics."""
MOST_TOPIC_BYTES: Final = 1_024
MOST_ID_BYTES: Final = 64
MOST_TTL_NS: Final = 10 * 366 * 86_400 * 10**9
MOST_REQUEST_BYTES: Final = 8 << 20
MOST_FEED_BYTES: Final = 256 << 10
"""Maximum size of a site's feed as JSON."""
MOST_SITES: Final = 64
_MOST_NAMED: Final = 4 * MOST_SITES
"""Maximum sites in an answer, including the peers of the hub file."""

PLACE: Final = numpy.dtype(
    [("slice", "<u4"), ("is_new", "<u2"), ("is_refused", "<u2"), ("epoch", "<u8"), ("sequence", "<i8")]
)
"""Place of a put. `is_new`: 1 if this request has stored it, not an earlier one with the same id. `is_refused`: 0, or
why it is not stored: see `CONFLICT` and `REFUSED`."""
CONFLICT: Final = 1
"""The put's condition did not hold. Its place is that of the topic's newest message; NOWHERE if there is no value."""
REFUSED: Final = 2
"""The hub refuses the put. This code and all above it are the lines of `Stored.why`. Its place is NOWHERE."""
_RUN: Final = numpy.dtype([("count", "<u4"), ("first", PLACE)])
_ONE: Final = bytes([1, 0, 0, 0])
CONDITION: Final = numpy.dtype([("epoch", "<i8"), ("sequence", "<i8")])
"""Required place of the topic's newest message; NOWHERE: the topic must have no value. Epoch -1: no condition."""
ANYWHERE: Final = (-1, 0)

Places = NDArray[Any]
PlaceRow = tuple[int, int, int, int, int]
"""A row of `Places`."""
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Begin a session, which ends the client's last one, or ask again for the feed's position."""

    client: _Name
    session: Number
    """Random number that each process chooses."""
    feed: str
    number: Number
    """Number that the answer repeats."""
    version: int
    prefix: bytes | None = None
    """Prefix of topics for which the answer must have positions; None: none."""
    replaces: Number = 0
    """The client's last session, which ends now; 0: it has none."""


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Puts in columns, little-endian: message i has topic `topics[index[i]]`."""

    client: _Name
    session: Number
    first: Number
    """Number of the first put. Each client numbers its puts from 1, without gaps, through all its sessions."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_PUTS)]
    synced: bool
    """True to answer once they are on the hub's disk, not only in its page cache."""
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
    """Id of each put, b"" for none; empty: none has one."""
    if_at: bytes = b""
    """CONDITION[count]; empty: none has one."""
    ttl: bytes = b""
    """int64[count], ns after which the topic expires unless it is put again; 0: never; empty: none expires."""
    is_one: bool = False
    """True: one message under `count` topics, with one payload. The hub stores all of its rows, or refuses all."""


class Site(msgspec.Struct, frozen=True, array_like=True):
    """A hub's feed, as its own site has it."""

    feed: Annotated[bytes, msgspec.Meta(max_length=MOST_FEED_BYTES)]
    """As JSON, without `[security]`."""
    keys: Annotated[list[_Name], msgspec.Meta(max_length=2)]
    """Public keys of its publisher, as text: one, or one each for lines A and B; empty: no keys."""


class FindSites(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    """Question of a hub for known sites. It names its own site, so that others find it here."""

    number: Number
    """Number that the answer repeats."""
    asks: Site
    version: int


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """A session has begun or continues."""

    number: int
    last: int
    """The number of the client's last put that the hub has."""
    epoch: int
    following: list[int]
    """Number of each slice's next message. Empty without a prefix, or if the client's key has no right to it."""


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """The hub has judged the puts of a request, and has stored all that it did not refuse. Their numbers are used."""

    first: int
    places: bytes
    """Place of each put, as `pack_places` returns them."""
    why: str = ""
    """Reasons why puts were refused, a line each."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """A request is refused for good, as the hub no longer knows its result."""

    first: int
    why: str


class Expected(msgspec.Struct, frozen=True, array_like=True, tag="expected"):
    """A request is not accepted, as puts before it are missing."""

    first: int
    """Number of the next put."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A request was not understood, or its client or session cannot continue."""

    why: str
    session: int | None = None
    """The client's session, which a new one may replace; None: a new session would not help."""


class Passive(msgspec.Struct, frozen=True, array_like=True, tag="passive"):
    """A request is not accepted: the other hub of the pair is active, or will be."""


class FoundSites(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """The sites that a hub knows, its own first."""

    number: int
    sites: Annotated[list[Site], msgspec.Meta(max_length=_MOST_NAMED)]
    version: int


FIRST: Final = bytes(4)
"""The index of a request of one put."""

REQUESTS: Final = Decoder[Hello | Put | FindSites]("msgpack", Hello | Put | FindSites)
Answer = Welcome | Stored | Refused | Expected | Ended | Passive
_ANSWERS: Final = Decoder[Answer]("msgpack", Answer)
FOUND: Final = Decoder[FoundSites | Ended]("msgpack", FoundSites | Ended)
ENCODER: Final = msgspec.msgpack.Encoder()


class Columns(msgspec.Struct, frozen=True):
    """The columns of a request, checked."""

    index: NDArray[numpy.int32]
    starts: NDArray[numpy.int64]
    """Start of each payload in `data`."""
    stops: NDArray[numpy.int64]
    data: NDArray[numpy.uint8]
    times: NDArray[numpy.int64] | None
    valid: NDArray[numpy.bool_] | None
    if_at: NDArray[Any] | None
    ttl: NDArray[numpy.int64] | None
    is_one: bool
    """True: the puts are one message under several topics."""

    @classmethod
    def of(cls, put: Put) -> Columns:
        """Check a request's columns, except contents of topics and payloads. Raises ConfigError naming the fault."""
        count = put.count
        index = _column("index", put.index, numpy.int32, count)
        offsets = _column("offsets", put.offsets, numpy.int64, 2 if put.is_one else count + 1)
        data = numpy.frombuffer(put.payloads, numpy.uint8) if put.payloads else numpy.empty(0, numpy.uint8)
        if len(data) > MOST_BYTES:
            raise ConfigError(f"payloads had {len(data)} bytes, expected at most {MOST_BYTES}")
        is_single = put.index == FIRST and put.offsets == offsets_of_one(len(data)) and len(put.topics) == 1
        if not is_single and (offsets[0] != 0 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any()):
            raise ConfigError(f"offsets were from {offsets[0]} to {offsets[-1]}, expected 0 to {len(data)}, ascending")
        if not is_single and (index.min() < 0 or index.max() >= len(put.topics)):
            raise ConfigError(f"index was {index.min()} to {index.max()}, expected places of {len(put.topics)} topics")
        if put.ids and len(put.ids) != count:
            raise ConfigError(f"ids were {len(put.ids)}, expected none or {count}")
        if put.is_one and (count > MOST_TOPICS or count * len(data) > MOST_COPIES_BYTES):
            raise ConfigError(why_too_large(count, len(data)))
        times = _column("times", put.times, numpy.int64, count) if put.times else None
        valid = _column("valid", put.valid, numpy.uint8, count) != 0 if put.valid else None
        if_at = _column("if_at", put.if_at, CONDITION, count) if put.if_at else None
        ttl = _column("ttl", put.ttl, numpy.int64, count) if put.ttl else None
        if ttl is not None and (ttl.min() < 0 or ttl.max() > MOST_TTL_NS):
            raise ConfigError(f"ttl was {ttl.min()} to {ttl.max()} ns, expected 0 to {MOST_TTL_NS}")
        starts, stops = offsets[:-1], offsets[1:]
        if put.is_one:
            starts, stops = numpy.repeat(starts, count), numpy.repeat(stops, count)
        return cls(index, starts, stops, data, times, valid, if_at, ttl, put.is_one)

    def last_rows(self, rows: NDArray[numpy.bool_]) -> list[tuple[int, int]]:
        """Return the index of each topic and its last row among `rows`, in order of the rows."""
        last = numpy.full(int(self.index.max()) + 1, -1, numpy.int64)
        last[self.index[rows]] = numpy.flatnonzero(rows)
        order = numpy.argsort(last)  # `topics` may name one twice: the later row wins
        return [(topic, row) for topic, row in zip(order.tolist(), last[order].tolist(), strict=True) if row >= 0]

    def same_of(self, rows: NDArray[numpy.int64]) -> NDArray[numpy.uint8] | None:
        """Return the column `same` of rows to encode together; None: each row is a message."""
        return numpy.arange(len(rows), dtype=numpy.uint8) if self.is_one and len(rows) > 1 else None

    def has_value(self, row: int) -> bool:
        """Return True if a put has a value."""
        return self.valid is None or bool(self.valid[row])


def ids_of(put_id: bytes, count: int) -> list[bytes]:
    """Return the id of each row of a message with `count` topics. All clients derive the same ones."""
    digest = blake2b(put_id, digest_size=_DIGEST_BYTES).digest()
    return [put_id, *(b"\0" + digest + bytes([row]) for row in range(1, count))]


def is_derived(put_id: bytes) -> bool:
    """Return True for the id of a later row of a message, as `ids_of` returns it."""
    return len(put_id) == 1 + _DIGEST_BYTES + 1 and put_id[0] == 0


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
        raise HubError(f"{hub} did not answer as a hub does: {error}") from error


def pack_places(places: Places) -> bytes:
    """Return PLACE[n] as bytes. Rows with consecutive sequences share their other fields."""
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
    """Return the packed places. Raises ConfigError if they are more than a request may have."""
    if packed.startswith(_ONE) and len(packed) == _RUN.itemsize:
        return numpy.frombuffer(packed, PLACE, offset=len(_ONE))
    runs = numpy.frombuffer(packed, _RUN)
    counts = runs["count"].astype(numpy.int64)
    if counts.sum() > MOST_PUTS:
        raise ConfigError(f"places were {counts.sum()}, expected at most {MOST_PUTS}")
    places = numpy.repeat(runs["first"], counts)
    places["sequence"] += numpy.arange(len(places)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    return places


def why_too_large(topics: int, size: int) -> str:
    """Return the error for a message with too many topics, or with too large a payload for them."""
    return (
        f"message had {topics} topics and a payload of {size} bytes, expected at most {MOST_TOPICS} topics, "
        f"and topics * bytes up to {MOST_COPIES_BYTES}"
    )


def offsets_of_one(size: int) -> bytes:
    """Return the offsets of a request of one put, with a payload of `size` bytes."""
    return bytes(8) + size.to_bytes(8, "little")


def _column(name: str, data: bytes, dtype: DTypeLike, count: int) -> NDArray[Any]:
    size = numpy.dtype(dtype).itemsize * count
    if len(data) != size:
        raise ConfigError(f"{name} had {len(data)} bytes, expected {size}")
    return numpy.frombuffer(data, dtype)


def misfits(
    schema: Schema,
    starts: NDArray[numpy.int64],
    stops: NDArray[numpy.int64],
    data: NDArray[numpy.uint8],
    valid: NDArray[numpy.bool_] | None = None,
) -> list[tuple[int, str]]:
    """Return the rows with a payload that is no record of the feed's schema, and why."""
    if not schema.records:
        return []
    sizes = stops - starts
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
    return [(row, schema.misfit(data[starts[row] : stops[row]].tobytes()) or "") for row in rows]


def check_topic_of(feed: Feed, topic: bytes) -> int:
    """Return the slice of a topic. Raises ConfigError if no slice covers it, or it is too long."""
    if len(topic) > MOST_TOPIC_BYTES:
        raise ConfigError(f"topic had {len(topic)} bytes, expected at most {MOST_TOPIC_BYTES}: {topic[:40]!r}...")
    return feed.slice_of(topic)
