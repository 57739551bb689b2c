"""Path of relays that a block passes from the source: hops are counted, loops are rejected, times are sent below."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.encode import Origin
from blackbox.block.form.format import (
    MOST_RELAY_NAME_BYTES,
    MOST_RELAYS,
    PATH_KEY,
    RELAY_ID_BYTES,
    TRACE_KEY,
)
from blackbox.block.position import End
from blackbox.errors import BlockError, RelayError


class Hop(NamedTuple):
    """One relay of a path."""

    id: bytes
    """Random id of one run of the relay."""
    name: str

    @property
    def topic(self) -> bytes:
        """The hop as a topic of a control block."""
        return self.id + self.name.encode()[:MOST_RELAY_NAME_BYTES]


def new_hop(name: str) -> Hop:
    """Return a new hop for a relay."""
    return Hop(secrets.token_bytes(RELAY_ID_BYTES), name)


def encode_path(hops: tuple[Hop, ...], origin: Origin) -> Block:
    """Return the block in which a relay sends its path: topics are the relays, starting at the source."""
    ends = {hop.topic: End(place, 0) for place, hop in enumerate(hops, start=1)}
    _, slice_id, key_rule, epoch = origin
    return Block.encode_ends(
        PATH_KEY, ends, HeaderFields(slice_id=slice_id, key_rule=key_rule, epoch=max(1, epoch), ts_out=0)
    )


def encode_times(me: Hop, place: int, block: HeaderFields) -> Block:
    """Return the block in which a relay sends when it had a traced block. `place`: its place in the path, from 1.

    `block`: slice, key rule and epoch of the traced block, its line as a flag, the sequence after it as `sequence`, and
    when the relay received and sent it as `ts_in` and `ts_out`.
    """
    return Block.encode_ends(TRACE_KEY, {me.topic: End(place, 0)}, block)


def decode_path(header: bytes, body: bytes) -> tuple[Hop, ...] | None:
    """Return the path in such a block; None if it is unreadable."""
    try:
        topics = list(Block.decode(PATH_KEY, header, body).ends())
    except (BlockError, ValueError):
        return None
    return tuple(Hop(topic[:RELAY_ID_BYTES], topic[RELAY_ID_BYTES:].decode(errors="replace")) for topic in topics)


def check_path(me: Hop, above: tuple[Hop, ...]) -> None:
    """Raise RelayError, naming the relays, for a loop or for a path that is too long."""
    ids = [hop.id for hop in above]
    if me.id in ids:
        names = [hop.name for hop in above[ids.index(me.id) :]] + [me.name]
        raise RelayError(f"relay {me.name!r} is its own source: {' -> '.join(names)}")
    if len(above) >= MOST_RELAYS:
        names = [hop.name for hop in above] + [me.name]
        raise RelayError(f"relay {me.name!r} is hop {len(names)}, expected at most {MOST_RELAYS}: {' -> '.join(names)}")
