"""Record at full wire speed while readers read the recording.

ours    PUB process ==blocks, TCP loopback==> recorder process ==write==> journal
                                              its archive thread ==blocks, TCP loopback==> reader processes

Each reader repeatedly reads an earlier day and then the current one up to its present end, as fast as it can. It checks
that no sequence number is missing. A round is void if a message was lost or the readers received nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import WAITS, Contest, Figure, Lost, expect
from bench.processes.child import Child
from bench.processes.pair import Pair
from bench.rivals.rival import tcp
from bench.workload.load import Load
from bench.workload.recorded import publish_columns, record
from blackbox import Feed

MESSAGES = 6_000_000
EARLIER = 2_000_000
READERS = 8


def _record(pair: Pair, load: Load, readers: list[Child], given: list[float]) -> Figure:
    for reader in readers:
        reader.ask({})
    try:
        figure = pair.round(load)
    finally:
        found = [reader.ask({}) for reader in readers]
    for each in found:
        expect("error of a reader", each["lost"], "")
    given.append(sum(each["messages"] for each in found) / load.messages)
    if readers and not given[-1]:
        raise Lost("readers received no messages")
    return Figure(pair.heard.stored_bytes / (pair.heard.ended - pair.sent.began), figure.spent)


def test_record_while_reading(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """GB/s of journal."""
    alone = Feed.local("alone", slices=1)
    served = msgspec.structs.replace(Feed.local("served", slices=1), archives=(tcp(),))
    before = record(served, EARLIER, partial(publish_columns, Load(messages=EARLIER)))
    contest = Contest("Recording while others read it, one slice", "GB/s of journal", topology=__doc__)
    given: dict[int, list[float]] = {0: [], 1: [], READERS: []}
    with ExitStack() as stack:
        pair = stack.enter_context(
            Pair(
                partial(Child, "bench.processes.sender:publish", feeds=[alone, served], when_full="wait"),
                partial(
                    Child,
                    "bench.processes.recorder:receive",
                    directory=str(tmp_path),
                    fsync="never",
                    before=str(before),
                ),
            )
        )
        readers = [
            stack.enter_context(Child("bench.processes.archive_reader:read", feed=served)) for _ in range(READERS)
        ]
        load = Load(feed=alone, messages=MESSAGES)
        contest.add("recording alone", partial(_record, pair, load, [], []), promise=WAITS)
        load = msgspec.structs.replace(load, feed=served)
        for count, each in given.items():
            name = f"answering, {count} reader{'s' * (count != 1)}"
            contest.add(name, partial(_record, pair, load, readers[:count], each), promise=WAITS)
        contest.run(benchmark)
    for count in (1, READERS):
        contest.show(f"messages sent to {count} readers / messages recorded", [round(each, 2) for each in given[count]])
