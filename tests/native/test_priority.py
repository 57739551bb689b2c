"""Threads that give way, as reported by the system."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blackbox.native.system.priority import give_way, giving_way, let_others_go_first
from tests.support import Script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")


def slice_ns(thread: int) -> int:
    """Return a thread's time slice in ns; 0: the system does not report it."""
    lines = Path(f"/proc/self/task/{thread}/sched").read_text().splitlines()
    found = [float(line.split(":")[1]) for line in lines if line.startswith("se.slice")]
    return int(found[0]) if found else 0


def in_thread(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_threads_inherit_giving_way() -> None:
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


def test_other_threads_go_before_a_nice_thread() -> None:
    found: list[int] = []

    def run() -> None:
        for _ in range(2):
            let_others_go_first()
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    in_thread(run)
    assert found == [min(before + 5, 19)] * 2
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_a_nice_process_has_threads_that_are_nicer() -> None:
    code = """
import os, threading
from blackbox.native.system.priority import let_others_go_first
def run():
    let_others_go_first()
    print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    for more in (3, 19):
        with Script(code, before=["nice", "-n", str(more)]) as script:
            assert script.read() == str(min(before + more + 5, 19))


def test_giving_way_ends_with_its_block_even_if_a_thread_has_ended() -> None:
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
