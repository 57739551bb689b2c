"""Process of our recorder, and one that replays a recorded day to callbacks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from bench.measure.contest import Lost, expect
from bench.measure.cost import cpu_seconds
from bench.processes.child import answer, orders
from bench.processes.forms import FORMS
from bench.processes.pair import Heard, Order, Work
from bench.workload.recorded import wait_until_recorded
from blackbox import Recorder, Recording, Subscriber

_LOOK_S = 0.001


def receive(directory: str) -> None:
    """Record the ordered runs into `directory`; read each back after timing, and remove it."""
    told = orders()
    for said in told:
        try:
            heard = _record(msgspec.convert(said, Order), told, directory)
        except Lost as lost:
            heard = Heard(lost=str(lost))
        answer(**msgspec.structs.asdict(heard))


def _record(order: Order, told: Iterator[Any], directory: str) -> Heard:
    load = order.load
    assert load.feed is not None
    with TemporaryDirectory(dir=directory) as place:
        recorder = Recorder(load.feed, place)
        try:
            with recorder:
                began_s = cpu_seconds()
                answer()
                wait_until_recorded(recorder, load.messages, every_s=_LOOK_S)
                ended, cpu_s = time.time_ns(), cpu_seconds() - began_s
        finally:
            next(told)
        statistics = recorder.statistics()
        (day,) = (path for path in Path(recorder.directory).iterdir() if path.is_dir())
        found = (statistics.messages, statistics.lost, statistics.received.gaps)
        expect("messages recorded, lost, missing", found, (load.messages, 0, 0))
        recording = Recording.open(day)
        expect("damage and gaps in the journals", recording.examine()[:2], ([], []))
        _replay(recording, msgspec.structs.replace(order, work=Work(form="compiled")))
    return Heard(ended=ended, cpu_s=cpu_s, messages=load.messages)


def _replay(recording: Recording, order: Order) -> None:
    """Replay to the ordered callbacks as sent, because times repeat. Raises Lost unless their results match."""
    subscriber = Subscriber(recording.feed)
    findings = FORMS[order.work.form](subscriber, order)
    subscriber.replay(recording, order="sent")
    findings(0)


def replay(day: str) -> None:
    """Replay a recorded day to the ordered callbacks as fast as possible."""
    for said in orders():
        order = msgspec.convert(said, Order)
        before, began = cpu_seconds(), time.time_ns()
        subscriber = Subscriber((recording := Recording.open(day)).feed)
        findings = FORMS[order.work.form](subscriber, order)
        subscriber.replay(recording)
        ended, cpu_s = time.time_ns(), cpu_seconds() - before
        lost = ""
        try:
            findings(began)
        except Lost as why:
            lost = str(why)
        answer(**msgspec.structs.asdict(Heard(began=began, ended=ended, cpu_s=cpu_s, lost=lost)))
