"""Order books of a recorded day at any time, from its snapshots and the depth frames after them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import msgspec

from blackbox.archive.recording import Recording
from blackbox.documents import Decoder

_ANY: Final = Decoder[Any]("json", Any)
_REMEMBERED: Final = 4_096
_REMEMBERED_BYTES: Final = 16 << 20
"""Depth frames before a snapshot that may be newer than it, and their bytes. Without an older one there is no book."""
_CLOCKS_APART_NS: Final = 30_000_000_000
"""Most difference between the clocks of Binance and of the collector, whose time some snapshots have."""
_SNAPSHOT, _DEPTH = b"snapshot", b"depth"


class Book:
    """The price levels of one symbol. Frames may come in the order of receiving, a snapshot after newer frames."""

    def __init__(self) -> None:
        self.update_id = -1
        """Number of the last change; -1 without a snapshot, or after missing frames."""
        self._head: dict[str, Any] = {}
        self._sides: dict[str, dict[str, str]] = {"b": {}, "a": {}}
        self._recent: deque[tuple[int, dict[str, Any]]] = deque()
        self._recent_bytes = 0

    def add(self, frame: bytes) -> None:
        """Apply a depth frame or a snapshot, with or without the name of its stream; ignore others."""
        try:
            document = _ANY.decode(frame)
            document = document.get("data", document)
            if "lastUpdateId" in document:
                self._reset(document)
            elif "U" in document and "u" in document:
                self._remember(len(frame), document)
                self._change(document)
        except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError):
            return

    def _remember(self, size: int, document: dict[str, Any]) -> None:
        self._recent.append((size, document))
        self._recent_bytes += size
        while len(self._recent) > _REMEMBERED or self._recent_bytes > _REMEMBERED_BYTES:
            self._recent_bytes -= self._recent.popleft()[0]

    def _reset(self, document: dict[str, Any]) -> None:
        sides = {"b": dict(document["bids"]), "a": dict(document["asks"])}
        self._head = {name: value for name, value in document.items() if name not in {"bids", "asks"}}
        self._sides, self.update_id = sides, int(document["lastUpdateId"])
        for _, change in self._recent:
            self._change(change)

    def _change(self, document: dict[str, Any]) -> None:
        last, before = document["u"], document.get("pu", document["U"] - 1)
        if self.update_id < 0 or last <= self.update_id:
            return
        if before > self.update_id:
            self.update_id = -1
            return
        for side, levels in self._sides.items():
            for price, size in document[side]:
                if size.strip("0."):
                    levels[price] = size
                else:
                    levels.pop(price, None)
        self.update_id = last
        self._head |= {name: document[name] for name in ("E", "T") if name in self._head and name in document}

    def document(self, levels: int) -> dict[str, Any]:
        """Return the answer that Binance gives to a request, with the best levels of each side."""
        bids, asks = self._sides["b"], self._sides["a"]
        return self._head | {
            "lastUpdateId": self.update_id,
            "bids": [[price, bids[price]] for price in sorted(bids, key=float, reverse=True)[:levels]],
            "asks": [[price, asks[price]] for price in sorted(asks, key=float)[:levels]],
        }


class RecordedBooks:
    """The order books of a day's recordings. Used by one thread."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        # Opened again: a recording is read by one thread.
        self._recordings = [Recording.open(each.path) for each in recordings]
        self._topics: dict[bytes, dict[bytes, list[tuple[Recording, bytes]]]] = {}
        for recording in self._recordings:
            for topic in recording.topics():
                symbol = recording.feed.symbol_rule.symbol_of(topic)
                for kind in (_SNAPSHOT, _DEPTH):
                    if symbol and topic[len(symbol) + 1 :] == kind:
                        self._topics.setdefault(symbol, {}).setdefault(kind, []).append((recording, topic))
        self._books: dict[bytes, tuple[int, Book]] = {}

    @property
    def symbols(self) -> frozenset[bytes]:
        """Symbols with depth frames or snapshots, in lower case."""
        return frozenset(self._topics)

    def answer(self, symbol: bytes, until_ns: int, levels: int) -> bytes | None:
        """Return a symbol's order book after the messages up to a time, as JSON; None if none was recorded by then."""
        since_ns, book = self._books.get(symbol, (0, Book()))
        if not since_ns or until_ns + 1 < since_ns:
            snapshots = chain.from_iterable(self._messages(symbol, _SNAPSHOT, 0, until_ns))
            begin_ns = max((ts for ts, _ in snapshots), default=None)
            if begin_ns is None:
                return None
            since_ns, book = max(1, begin_ns - _CLOCKS_APART_NS), Book()
        changes = (each for kind in (_DEPTH, _SNAPSHOT) for each in self._messages(symbol, kind, since_ns, until_ns))
        for _, frame in merge(*changes, key=itemgetter(0)):
            book.add(frame)
        self._books[symbol] = until_ns + 1, book
        return msgspec.json.encode(book.document(levels)) if book.update_id >= 0 else None

    def _messages(
        self, symbol: bytes, kind: bytes, since_ns: int, until_ns: int
    ) -> Iterator[Iterator[tuple[int, bytes]]]:
        """Yield iterators of (time, frame) of the messages in `[since_ns, until_ns]`, one of each recording."""
        for recording, topic in self._topics.get(symbol, {}).get(kind, ()):
            yield _frames(recording, topic, since_ns, until_ns)


def _frames(recording: Recording, topic: bytes, since_ns: int, until_ns: int) -> Iterator[tuple[int, bytes]]:
    for batch in recording.batches(topic, start=since_ns, stop=until_ns + 1):
        for at, payload, name in zip(
            batch.ts_event.tolist(), batch.payload_list(), batch.topics_per_message(), strict=True
        ):
            if name == topic and payload is not None:
                yield at, bytes(payload).partition(b" ")[2]
