"""Functions that run in threads next to a `with` block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_threads(*works: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Run functions in threads, and wait for their ends unless the `with` block fails. pytest reports their errors."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join()
