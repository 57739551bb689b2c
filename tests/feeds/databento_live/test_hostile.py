"""Broken and forged DBN streams in a session: complete pieces before the fault arrive, and nothing crashes."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import databento_dbn
import pytest
from blackbox_feeds.dbn.live.protocol import RecordProtocol
from blackbox_feeds.live.inbox import Inbox

from tests.feeds.databento_live.gateway import KEY, mapping, trade
from tests.feeds.test_dbn import START, metadata_of

HEAD = metadata_of(schema=None, start=START)
MOST_BYTES = 3_000
"""More than any piece of a stream."""
RECORDS = [mapping("ESH4", 7, START), *(trade(number) for number in range(200))]


class Client:
    """Takes what a session takes."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.metadata: list[bytes] = []
        self.records: list[bytes] = []

    def take_metadata(self, content: bytes) -> None:
        self.metadata.append(content)

    def take_record(self, content: bytes) -> None:
        self.records.append(content)


class Transport(asyncio.Transport):
    """A transport whose other end has sent everything."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: Any) -> None:
        pass


async def session(stream: bytes, sizes: random.Random) -> tuple[Client, Transport]:
    """Feed a stream in pieces of random sizes, as sockets do, until the protocol ends the connection."""
    client, transport = Client(), Transport()
    protocol = RecordProtocol(KEY, "GLBX.MDP3", 10, cast("Any", client))
    protocol.connection_made(transport)
    protocol.authenticated.set_result("1")
    at = 0
    while at < len(stream) and not transport.is_closed:
        piece = stream[at : at + sizes.randrange(1, MOST_BYTES)]
        protocol.get_buffer(len(piece))[: len(piece)] = piece
        protocol.buffer_updated(len(piece))
        at += len(piece)
    return client, transport


def expected_of(stream: bytes) -> list[bytes]:
    """Return the records by Databento's own decoder, fed at once; those before a fault."""
    policy: Any = databento_dbn.VersionUpgradePolicy.UPGRADE_TO_V3
    decoder = databento_dbn.DBNDecoder(upgrade_policy=policy)
    decoder.write(stream)
    return [bytes(each) for each in decoder.decode() if not isinstance(each, databento_dbn.Metadata)]


def test_a_stream_in_any_pieces_arrives_whole() -> None:
    client, transport = asyncio.run(session(HEAD + b"".join(RECORDS), random.Random(1)))
    assert client.records == RECORDS == expected_of(HEAD + b"".join(RECORDS))
    assert client.metadata == [HEAD]
    assert not transport.is_closed


@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=pytest.mark.long)])
def test_pieces_before_a_fault_arrive_unchanged_and_the_rest_never_crashes(count: int) -> None:
    """With 201 records each, the long run sends a million records."""
    chance = random.Random(count)
    whole = b"".join(RECORDS)
    for _ in range(count):
        at = chance.randrange(len(whole))
        kind = chance.randrange(4)
        fault = bytes((0,)) if kind == 0 else chance.randbytes(chance.randrange(1, 200))
        stream = (
            whole[:at] + fault + (whole[at:] if kind == 1 else b"")
            if kind < 3
            else whole[:at] + bytes((whole[at] ^ 1 << chance.randrange(8),)) + whole[at + 1 :]
        )
        client, transport = asyncio.run(session(HEAD + stream, chance))
        before = [RECORDS[0]] if at >= len(RECORDS[0]) else []
        before += RECORDS[1 : 1 + max(0, at - len(RECORDS[0])) // len(RECORDS[1])]
        came = min(len(before), len(client.records))
        assert client.records[:came] == before[:came]
        # Databento's decoder drops the records in the piece with the fault. The next session replays them.
        assert len(b"".join(before[came:])) < (MOST_BYTES if transport.is_closed else 1)
