"""A proxy between a publisher and its subscribers that drops or delays blocks like a bad line."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec
import zmq

from blackbox import Feed
from blackbox.transport.wakeup import Pipe


class LossyProxy:
    """Forwards all lines of each slice and drops a share of the data blocks, at random by a seed.

    The share `lags` of a line's blocks waits for the next block that does not lag, or for a control block, so that
    lines overtake each other. Subscribers use `feed`. Heartbeats and confirmations pass.
    """

    def __init__(self, feed: Feed, share: float, seed: int = 1, lags: float = 0.0) -> None:
        lines = len(feed.slices[0].lines)
        fresh = Feed.local(feed.name, slices=len(feed.slices), key_bytes=feed.key_bytes, lines=lines)
        self.feed = msgspec.structs.replace(feed, slices=fresh.slices)
        self.lost = 0
        self._above, self._share, self._lags, self._random = feed, share, lags, random.Random(seed)
        self._waiting: dict[zmq.Socket[bytes], list[list[bytes]]] = {}
        self._end = Pipe()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lossy-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(200)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.poke()
        self._thread.join()

    def _run(self) -> None:
        with zmq.Context() as context:
            pairs = []
            for above, below in self._lines():
                xsub, xpub = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
                xsub.rcvhwm = xpub.sndhwm = 0
                xpub.setsockopt(zmq.XPUB_VERBOSER, 1)
                xsub.connect(above)
                xpub.bind(below)
                self._waiting[xpub] = []
                pairs.append((xsub, xpub))
            self._bound.set()
            poller = zmq.Poller()
            for socket in (self._end.reader, *(socket for pair in pairs for socket in pair)):
                poller.register(socket, zmq.POLLIN)
            while self._end.reader not in (ready := dict(poller.poll())):
                for xsub, xpub in pairs:
                    if xpub in ready:
                        xsub.send_multipart(xpub.recv_multipart())
                    if xsub in ready:
                        self._forward(xpub, xsub.recv_multipart())
            for pair in pairs:
                for socket in pair:
                    socket.close(linger=0)

    def _lines(self) -> Iterator[tuple[str, str]]:
        for above, below in zip(self._above.slices, self.feed.slices, strict=True):
            yield from zip(above.lines, below.lines, strict=True)

    def _forward(self, xpub: zmq.Socket[bytes], frames: list[bytes]) -> None:
        is_data = not frames[0].startswith(b"\0")
        if is_data and self._random.random() < self._share:
            self.lost += 1
            return
        waiting = self._waiting[xpub]
        waiting.append(frames)
        if is_data and self._random.random() < self._lags:
            return
        for each in waiting:
            xpub.send_multipart(each)
        waiting.clear()
