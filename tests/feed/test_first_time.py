"""Several sources are ordered by their first times, and closed again after their first messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from blackbox.feed.first_time import by_first_time
from blackbox.feed.source import Chunk
from tests.archive.imports import Made

EARLIEST_NS = 10


class Timed(Made):
    """A source of chunks with these times; two of them are never open at the same time."""

    open: ClassVar[list[Timed]] = []

    def __init__(self, times: list[list[int]]) -> None:
        super().__init__(*([(b"A", b"x", time) for time in chunk] for chunk in times))
        self.times = times

    def chunks(self) -> Iterator[Chunk]:
        assert not Timed.open
        Timed.open.append(self)
        try:
            yield from super().chunks()
        finally:
            Timed.open.remove(self)


def first_ns(chunks: list[list[int]]) -> int | None:
    """Return the first time of each source by a plain loop over all messages."""
    times = [time for chunk in chunks for time in chunk]
    return next((time for time in times if time >= EARLIEST_NS), 0 if times else None)


@given(st.lists(st.lists(st.lists(st.integers(-1, 20), max_size=3), max_size=4), min_size=1, max_size=5))
def test_sources_are_ordered_by_first_time(sources: list[list[list[int]]]) -> None:
    given_sources = [Timed(chunks) for chunks in sources]
    firsts = [(place, first_ns(chunks)) for place, chunks in enumerate(sources)]
    expected = sorted(firsts, key=lambda each: float("inf") if each[1] is None else each[1])
    found = by_first_time(given_sources, EARLIEST_NS)
    assert [(given_sources.index(each.source), each.first_ns) for each in found] == expected  # type: ignore[arg-type]
    if len(found) > 1:
        assert [each.chunks for each in found] == [None] * len(found)
    else:
        assert found[0].chunks is not None
        assert [chunk.ts_event.tolist() for chunk in found[0].chunks] == sources[0]
    assert not Timed.open


def test_times_after_many_messages_without_one_are_not_searched() -> None:
    source = Timed([[0]] * 1_000 + [[EARLIEST_NS]])
    (found,) = by_first_time([source], EARLIEST_NS)
    assert found.first_ns == 0
    assert found.chunks is not None
    assert sum(1 for _ in found.chunks) == 1_001
