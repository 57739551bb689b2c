"""Threads that give way, as the system itself tells of them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blackbox.native.priority import let_others_go_first, patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")


def slice_ns(thread: int) -> int:
    """Return for how long the system runs a thread at a time; 0: it does not tell."""
    lines = Path(f"/proc/self/task/{thread}/sched").read_text().splitlines()
    found = [float(line.split(":")[1]) for line in lines if line.startswith("se.slice")]
    return int(found[0]) if found else 0


def in_thread(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_threads_that_are_started_from_one_that_gives_way_do_so_too() -> None:
    found: list[tuple[int, int]] = []

    def note() -> None:
        me = threading.get_native_id()
        found.append((os.getpriority(os.PRIO_PROCESS, me), slice_ns(me)))

    def give_way() -> None:
        note()
        let_others_go_first()
        note()
        in_thread(note)

    in_thread(give_way)
    (_, before_ns), given_way, inherited = found
    assert given_way == inherited
    assert given_way[0] == 15
    assert before_ns == 0 or given_way[1] > before_ns


def test_patience_ends_with_its_block_also_where_a_thread_has_ended() -> None:
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        over.wait()

    ended, waiting = threading.Thread(target=begun.wait), threading.Thread(target=wait)
    waiting.start()
    ended.start()
    ended.join()
    me = waiting.native_id
    assert me is not None
    before_ns = slice_ns(me)
    try:
        with patience([ended, waiting, threading.Thread()]):
            assert before_ns == 0 or slice_ns(me) > before_ns
        assert slice_ns(me) == before_ns
    finally:
        over.set()
        waiting.join()
