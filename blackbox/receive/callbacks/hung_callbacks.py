"""Name the function that a thread is running, for the error about a callback that does not return."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

_PACKAGE: Final = f"{Path(__file__).resolve().parents[2]}/"
_LIBRARY: Final = f"{sysconfig.get_path('stdlib')}/"
_MOST_NAMES: Final = 3


def running_function(thread: threading.Thread, candidates: Sequence[str]) -> str:
    """Return the name of the user's function that a thread is running, with file and line.

    A compiled function has no Python frame: then the result lists `candidates`, the callbacks of that thread.
    """
    frames = list(_frames_of(thread))
    depth = next((n for n, frame in enumerate(frames) if _is_users(frame)), None)
    if depth is not None:
        code = frames[depth].f_code
        return f"{code.co_qualname} ({Path(code.co_filename).name}, line {frames[depth].f_lineno})"
    if not candidates:
        return "a callback"
    names = ", ".join(candidates[:_MOST_NAMES])
    more = len(candidates) - _MOST_NAMES
    return names if len(candidates) == 1 else f"one of {names}{f' and {more} more' * (more > 0)}"


def _frames_of(thread: threading.Thread) -> list[FrameType]:
    """Return the frames of a thread, outermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    is_installed = "site-packages" in file or "dist-packages" in file
    return not file.startswith((_PACKAGE, "<frozen")) and (is_installed or not file.startswith(_LIBRARY))
