"""Show how something does while the main thread is busy with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TICK_S = 0.1


@contextmanager
def ticking(show: Callable[[], None]) -> Iterator[None]:
    """Call `show` ten times a second in a thread of its own."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_TICK_S):
            show()

    thread = threading.Thread(target=run, name="blackbox-ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
