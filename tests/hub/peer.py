"""A client without the library's decisions: it sends any request, and receives the answer."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy
import zmq

from blackbox import Feed
from blackbox.block.form.layout import VERSION
from blackbox.services.hub.protocol import ENCODER, Hello, Put, Stored, decode_answer, unpack_places


class Peer:
    """A simulated client that sends requests and receives answers. Its `with` block begins its session."""

    def __init__(
        self, feed: Feed, name: str = "peer", session: int = 1, replaces: int = 0, *, greets: bool = True
    ) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger, self.socket.rcvhwm = 0, 1
        self.socket.connect(feed.hub)
        self.feed, self.name, self.session, self.replaces = feed, name, session, replaces
        self._greets = greets

    def ask(self, request: Any) -> Any:
        self.socket.send(request if isinstance(request, bytes) else ENCODER.encode(request))
        return self.answer()

    def answer(self) -> Any:
        assert self.socket.poll(60_000), "the hub did not answer"
        return decode_answer(self.feed.hub, self.socket.recv())

    def hello(self) -> Any:
        return self.ask(Hello(self.name, self.session, self.feed.name, 7, VERSION, replaces=self.replaces))

    def puts(self, first: int, *payloads: bytes, **changes: Any) -> Put:
        index = numpy.zeros(len(payloads), numpy.int32)
        offsets = numpy.cumsum([0, *map(len, payloads)]).astype(numpy.int64)
        put = Put(
            *(self.name, self.session, first, len(payloads), False, [b"A.x"], index.tobytes(), offsets.tobytes()),
            *(b"".join(payloads), b"", b"", []),
        )
        return msgspec.structs.replace(put, **changes)

    def __enter__(self) -> Peer:
        if self._greets:
            self.hello()
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.context.term()


def places_of(answer: Any) -> list[tuple[int, int, int]]:
    """Return slice, epoch and sequence of each put of a request."""
    assert isinstance(answer, Stored)
    places: list[tuple[int, int, int]] = unpack_places(answer.places)[["slice", "epoch", "sequence"]].tolist()
    return places


def refused_of(answer: Any) -> list[bool]:
    """Return for each put of a request whether it was refused."""
    assert isinstance(answer, Stored)
    return [bool(each) for each in unpack_places(answer.places)["is_refused"]]
