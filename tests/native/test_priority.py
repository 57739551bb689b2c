"""Threads that give way, as the system itself tells of them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blackbox.native.priority import give_way, giving_way, let_others_go_first

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
    found: list[int] = []

    def note() -> None:
        found.append(slice_ns(threading.get_native_id()))

    def run() -> None:
        note()
        give_way()
        note()
        in_thread(note)

    in_thread(run)
    before_ns, given_way_ns, inherited_ns = found
    assert given_way_ns == inherited_ns
    assert before_ns == 0 or before_ns < given_way_ns < 2 * before_ns


def test_others_go_before_a_thread_that_is_nice() -> None:
    found: list[int] = []

    def run() -> None:
        let_others_go_first()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    in_thread(run)
    assert found == [5]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) < 5


def test_giving_way_ends_with_its_block_also_where_a_thread_has_ended() -> None:
    over = threading.Event()
    waiting, ended = threading.Thread(target=over.wait), threading.Thread(target=int)
    waiting.start()
    ended.start()
    ended.join()
    me = waiting.native_id
    assert me is not None
    before_ns = slice_ns(me)
    try:
        with giving_way([ended, waiting, threading.Thread()]):
            assert before_ns == 0 or slice_ns(me) > before_ns
        assert slice_ns(me) == before_ns
    finally:
        over.set()
        waiting.join()
