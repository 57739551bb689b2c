"""Make items ahead in another thread, so that one core reads and checks while another uses the items."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import Final, TypeVar

from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import join, take

T = TypeVar("T")

DEPTH: Final = 1
"""Default number of items that may wait."""
_TICK_S: Final = 0.1


def read_ahead(items: Iterator[T], depth: int = DEPTH) -> Generator[T, None, None]:
    """Yield the same items, made up to `depth` ahead. Errors are raised at the position of their item."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    given_up = threading.Event()

    def put(item: T | None, error: BaseException | None = None) -> None:
        while not given_up.is_set():
            try:
                ready.put((item, error), timeout=_TICK_S)
            except queue.Full:
                continue
            return

    def make() -> None:
        try:
            for item in items:
                put(item)
                if given_up.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by the consumer
            put(None, error)

    thread = threading.Thread(target=make, name="blackbox-read-ahead", daemon=True)
    start_thread(thread)
    try:
        while True:
            item, error = take(ready)
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        given_up.set()
        join(thread)
