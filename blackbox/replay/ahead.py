"""Read ahead in a thread of its own: pages are mapped and blocks checked on one core while another plays."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

DEPTH: Final = 1
"""Items that wait to be taken, at most."""
_TICK_S: Final = 0.1


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items, made up to `DEPTH` ahead of the one taken; what making them raises is raised in its place."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(DEPTH)
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
        except BaseException as error:  # noqa: BLE001 - it is raised where the items are taken
            put(None, error)

    thread = threading.Thread(target=make, name="blackbox-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        given_up.set()
        thread.join()
