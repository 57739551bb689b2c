"""Compile everything that a replay needs, before its time is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blackbox.archive.recording import Recording
from blackbox.replay.replay import Replay
from blackbox.replay.tables.block_table import BEGINNING, BlockTable

_SPEED = 1e6


class _Nobody:
    """A target that ignores blocks."""

    in_sequence = True
    reads_ahead = False
    checks_blocks = False

    def play(self, _table: BlockTable, _start: int, _stop: int) -> None:
        pass

    def begin(
        self, skipped: frozenset[tuple[int, int]], before: Iterable[BlockTable] | None = None, start_ns: int = BEGINNING
    ) -> None:
        pass

    def jump(self, *, is_back: bool) -> None:
        pass

    def finish(self, stop_ns: int) -> None:
        pass


def warm_up(recordings: Sequence[Recording], start: int | None, stop: int | None) -> None:
    """Replay recordings from `start` to `stop` at full speed without a target."""
    Replay(recordings, speed=_SPEED, start=start, stop=stop).run(_Nobody())
