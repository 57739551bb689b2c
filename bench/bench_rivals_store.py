"""Store a stream: ours and a server that stores streams.

    ours        PUB process ==blocks, TCP==> Recorder process ==> journal
    JetStream   nats-py --publish--> nats-server ==> files

The same records, none lost. All are in the page cache when the clock stops; ours syncs every second, JetStream every 2
minutes.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from bench.measure.contest import Contest
from bench.processes.child import Child
from bench.processes.pair import Pair, Single
from bench.rivals.rival import NATS, jetstream, optional
from bench.workload.load import Load
from blackbox import Feed

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchmark.fixture import BenchmarkFixture

_ONE_BY_ONE: Final = "publish() one by one, Recorder"
_RIVAL_MESSAGES: Final = 8_000


def test_store(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s from the first call until all are stored."""
    contest = Contest("Recording a stream at full speed", "M messages/s", topology=__doc__)
    with ExitStack() as stack:
        for name, at_once, messages in (("publish_many(), Recorder", 0, 6_000_000), (_ONE_BY_ONE, 1, 400_000)):
            feed = Feed.local(f"bench-store-{at_once}", slices=1)
            pair = stack.enter_context(
                Pair(
                    partial(Child, "bench.processes.sender:publish", feeds=[feed], when_full="wait"),
                    partial(Child, "bench.processes.recorder:receive", directory=str(tmp_path)),
                )
            )
            load = Load(feed=feed, messages=messages, at_once=at_once)
            contest.add(name, partial(pair.round, load), "ours", "nothing lost; synced every second")
        with optional(contest, "NATS JetStream, nats-server", *NATS):
            server = stack.enter_context(jetstream(tmp_path))
            single = Single("bench.rivals.nats_jetstream:record", server_pid=server.pid, address=server.url)
            run = partial(stack.enter_context(single).round, Load(messages=_RIVAL_MESSAGES))
            name = f"NATS JetStream, nats-server {server.version}"
            contest.add(name, run, "rival", "acknowledged; synced every 2 minutes", versus=_ONE_BY_ONE)
        contest.run(benchmark)
