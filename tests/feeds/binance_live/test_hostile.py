"""Random, truncated, repeated and forged frames: no crash, and the counts of a plain model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from blackbox_feeds.binance.live import client as client_module
from blackbox_feeds.binance.live.source import BinanceWs
from websockets.exceptions import ConnectionClosedError

from tests.feeds.binance_live.test_sequences import Model
from tests.feeds.binance_live.venue import Received
from tests.feeds.hostile import Enemy

E_MS = 1_723_161_255_343
STREAMS = "a@trade/a@aggTrade/a@bookTicker/a@depth/a@depth@100ms/a@kline_1m"


def combined(stream: str, **data: Any) -> bytes:
    return json.dumps({"stream": stream, "data": data}, separators=(",", ":")).encode()


class Frames(Enemy):
    """Makes frames, each with True if it is a valid event."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.number = dict.fromkeys("tuadp", 1_000)

    def new(self) -> bytes:
        """The next frame of a stream, or a forged one."""
        pick, number = self.random.random(), self.number
        jump = self.random.choice((1, 1, 1, 1, 1, 1, 1, 1, 2, 50, -3, 1 << 40)) if pick < 0.9 else 1
        kind = self.random.choice("tuadpk")
        if kind != "k":
            number[kind] = max(0, number[kind] + jump) if abs(number[kind] + jump) < 1 << 61 else 1_000
        if kind == "t":
            return combined("a@trade", e="trade", E=E_MS, t=number["t"], p="1.5")
        if kind == "a":
            return combined("a@aggTrade", e="aggTrade", E=E_MS, a=number["a"], p="1.5")
        if kind == "u":
            return combined("a@bookTicker", u=number["u"], s="A", b="1", B="2", a="3", A="4")
        if kind == "d":
            first = number["d"]
            number["d"] += self.random.randrange(5)
            return combined("a@depth", e="depthUpdate", E=E_MS, U=first, u=number["d"], b=[["1", "2"]], a=[])
        if kind == "p":
            before = number["p"]
            number["p"] += self.random.randrange(-1, 9)
            data = {"U": before + 3, "u": number["p"], "pu": before, "b": [], "a": [["1", "0"]]}
            return combined("a@depth@100ms", e="depthUpdate", E=E_MS, **data)
        return combined("a@kline_1m", e="kline", E=E_MS, k={"n": self.random.random()})

    def hostile(self) -> bytes:
        choose, whole = self.random, self.random.choice(self.earlier)
        return choose.choice(
            (
                choose.randbytes(choose.randrange(60)),
                whole[: choose.randrange(len(whole))],
                whole + b"}",
                whole[:-1] + b"\n}",
                b'{"result":null,"id":%d}' % choose.randrange(9),
                b'{"error":{"code":2,"msg":"x"}}',
                combined("a@trade", e="trade", E=5, t=7),
                combined("\0a@trade", e="trade", E=E_MS, t=7),
                b'{"stream":"a@trade","data":' + b"[" * choose.randrange(70, 200),
            )
        )


class Connection:
    """A connection that has received these frames, and then breaks."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = iter(frames)
        self.transport = self

    async def recv(self, decode: bool) -> bytes:
        assert not decode
        for frame in self._frames:
            return frame
        await asyncio.sleep(0)
        raise ConnectionClosedError(None, None)

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_hostile_frames_are_counted_as_by_a_plain_model(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    frames: list[bytes] = []
    bad = 0
    for frame, is_valid in Frames(count).packets(count):
        frames.append(frame)
        bad += not is_valid
        if is_valid:
            model.add(b"1723161256172216566 " + frame)
    connections = [Connection(frames)]

    async def connect(client: client_module.Client, *, is_first: bool) -> Connection | None:
        if connections:
            return connections.pop()
        while source._client.inbox._items:  # noqa: ASYNC110 - frames that were not taken would be discarded
            await asyncio.sleep(0.01)
        source.stop()
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(client_module.Client, "_connect", connect)
    source = BinanceWs(f"127.0.0.1:1/stream?streams={STREAMS}&rest=http://127.0.0.1:9")
    monkeypatch.setattr(source._client, "want", lambda symbols: None)
    received = Received(source)
    received.run()
    assert received.error is None
    got, gaps, now = received.frames, received.gaps, source.statistics()
    assert got == [text.partition(b" ")[2] for text in model.kept]
    assert gaps == model.gaps
    assert now.packets == count
    assert now.malformed == bad
    assert now.duplicates == count - bad - len(got)
    assert (now.messages, now.gaps, now.missing) == (len(got), len(gaps), sum(missing for _, missing in gaps))
