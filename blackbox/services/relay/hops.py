"""Path of relays that a block passes from the source: hops are counted, and loops are rejected."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.encode import Origin
from blackbox.block.form.format import PATH_KEY
from blackbox.block.position import End
from blackbox.errors import BlockError, RelayError

MOST_HOPS: Final = 16
"""Most relays between the source and a subscriber."""
_ID_BYTES: Final = 8
_MOST_NAME_BYTES: Final = 64


class Hop(NamedTuple):
    """One relay of a path."""

    id: bytes
    """Random id of one run of the relay."""
    name: str


def new_hop(name: str) -> Hop:
    """Return a new hop for a relay."""
    return Hop(secrets.token_bytes(_ID_BYTES), name)


def encode_path(hops: tuple[Hop, ...], origin: Origin) -> Block:
    """Return the block in which a relay sends its path: topics are the relays, starting at the source."""
    names = [hop.id + hop.name.encode()[:_MOST_NAME_BYTES] for hop in hops]
    ends = {name: End(place, 0) for place, name in enumerate(names, start=1)}
    _, slice_id, key_rule, epoch = origin
    return Block.encode_ends(
        PATH_KEY, ends, HeaderFields(slice_id=slice_id, key_rule=key_rule, epoch=max(1, epoch), ts_out=0)
    )


def decode_path(header: bytes, body: bytes) -> tuple[Hop, ...] | None:
    """Return the path in such a block; None if it is unreadable."""
    try:
        topics = list(Block.decode(PATH_KEY, header, body).ends())
    except (BlockError, ValueError):
        return None
    return tuple(Hop(topic[:_ID_BYTES], topic[_ID_BYTES:].decode(errors="replace")) for topic in topics)


def check_path(me: Hop, above: tuple[Hop, ...]) -> None:
    """Raise RelayError, naming the relays, for a loop or for a path that is too long."""
    ids = [hop.id for hop in above]
    if me.id in ids:
        names = [hop.name for hop in above[ids.index(me.id) :]] + [me.name]
        raise RelayError(f"relay {me.name!r} is its own source: {' -> '.join(names)}")
    if len(above) >= MOST_HOPS:
        names = [hop.name for hop in above] + [me.name]
        raise RelayError(f"relay {me.name!r} is hop {len(names)}, expected at most {MOST_HOPS}: {' -> '.join(names)}")
