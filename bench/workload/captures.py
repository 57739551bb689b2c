"""Messages of real captures, stored next to the project."""

from __future__ import annotations

from collections import deque
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from blackbox_feeds.iex import Iex
from blackbox_feeds.itch50 import Itch50

from blackbox import Source

DATA: Final = Path(__file__).resolve().parents[3] / "shared" / "data"
CAPTURES: Final = ("ITCH 5.0", "IEX DEEP")


def source_of(name: str) -> Source:
    """Return the source of one of `CAPTURES`."""
    if name == "ITCH 5.0":
        return Itch50(DATA / "itch50" / "runk_locate-13-10k.bin", date="2020-01-30")
    return Iex(DATA / "iex" / "goiex_DEEP10.pcap.gz")


class Call(NamedTuple):
    """Arguments of `HubClient.put_many`."""

    topics: tuple[bytes, ...]
    topic_index: list[int]
    payloads: bytes
    ts_event: list[int]
    offsets: list[int]


@cache
def calls_of(name: str, messages: int, at_once: int) -> list[Call]:
    """Return the last messages of a capture as calls of `at_once` messages."""
    last = deque[tuple[bytes, bytes, int]](maxlen=messages)
    for chunk in source_of(name).chunks():
        columns = (each.tolist() for each in (chunk.topic_index, chunk.starts, chunk.lengths, chunk.ts_event))
        for index, start, length, event in zip(*columns, strict=True):
            last.append((chunk.topics[index], chunk.payloads[start : start + length].tobytes(), event))
    rows = list(last)
    return [_call(rows[first : first + at_once]) for first in range(0, len(rows), at_once)]


def _call(rows: list[tuple[bytes, bytes, int]]) -> Call:
    topics, payloads, events = zip(*rows, strict=True)
    places = {topic: place for place, topic in enumerate(dict.fromkeys(topics))}
    offsets = [0, *accumulate(map(len, payloads))]
    return Call(tuple(places), [places[each] for each in topics], b"".join(payloads), list(events), offsets)
