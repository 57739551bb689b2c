"""A replay to nobody, so that everything is compiled before the time is taken."""

from __future__ import annotations

from collections.abc import Sequence

from blackbox.recording import Recording
from blackbox.replay.replay import Replay
from blackbox.replay.scenes import Scene

_SPEED = 1e6


class _Nobody:
    """Takes blocks and does nothing with them."""

    reads_ahead = False
    looks = False

    def play(self, _scene: Scene, _start: int, _stop: int) -> None:
        pass

    def jump(self, *, is_back: bool) -> None:
        pass


def rehearse(recordings: Sequence[Recording], start: int | None, stop: int | None) -> None:
    """Play a moment of recordings, paced but very fast."""
    Replay(recordings, speed=_SPEED, start=start, stop=stop).run(_Nobody())
