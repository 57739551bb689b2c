"""Traces of messages that pass relays: the times at each hop, in order and complete."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families as parse

from blackbox import Batch, Publisher, Relay, SlowPolicy, Subscriber
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.services.monitor.serve.collector import Exposition
from blackbox.services.monitor.serve.watched import Watched
from blackbox.services.relay.forward_loop import ITEMS_OF_LINE, SUBSCRIPTIONS, forward_until
from blackbox.testing import wait_until
from tests.callbacks import count_rows
from tests.relay.relays import PATIENCE_S, PLAIN_BEAT_NS, chain, is_traced, relayed

EVERY = 16
COUNT = 25 * EVERY
EARLIER_NS = time.time_ns() - 3_600 * 10**9
"""`ts_in` is a lower bound: events of now could seem later."""
SNIPPETS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).resolve().parents[2] / "docs" / "watching.md").read_text(), re.DOTALL
)


@pytest.mark.parametrize(
    ("settings", "workers", "compiled"),
    [({"lines": 2}, 2, False), ({"transport": "shm"}, 0, False), ({"key_bytes": 1}, 1, True)],
)
def test_hops_of_traced_messages_are_in_order_and_add_up_to_the_age(
    settings: dict[str, Any], workers: int, compiled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    feeds = chain(2, trace_every=EVERY, **settings)
    subscriber = Subscriber(feeds[-1], workers=workers, slow=SlowPolicy(max_lag=3_600))
    blocks: dict[int, tuple[int, list[int]]] = {}

    @subscriber.on_batch(b"")
    def keep(batch: Batch) -> None:
        block = batch.block
        times = [int(block.ts_event[0]), batch.ts_in, batch.ts_out, batch.ts_recv]
        blocks[int(block.sequence)] = int(block.count), times

    if compiled:
        subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
    with relayed(feeds) as relays:
        wait_until(lambda: all(len(line.path) == 2 for line in relays[-1].statistics().lines), what="the path")
        with Publisher(feeds[0], when_full="wait") as publisher:
            subscriber.start(PATIENCE_S)
            publisher.wait_for_subscribers(timeout=PATIENCE_S)
            for number in range(COUNT):
                publisher.publish(b"%c.x" % (65 + number % 3), b"payload", EARLIER_NS + number)
        subscriber.run(until_end=True)
    received = subscriber.statistics().received
    assert (received.messages - received.duplicates, received.gaps, received.faults) == (COUNT, 0, {})

    traces = subscriber.traces()
    expected = [each for each, (count, _) in sorted(blocks.items()) if is_traced(each, count, EVERY)]
    places = sorted({trace.worker for trace in traces})
    assert len(places) == 1 + compiled
    for place in places:
        assert [trace.sequence for trace in traces if trace.worker == place] == expected
    assert {trace.epoch for trace in traces} == {publisher.epoch}
    for trace in traces:
        assert [(hop.name, hop.relay, hop.place) for hop in trace.hops] == [
            *(("venue", "", 0), ("publish", "", 0), ("send", "", 0)),
            *(("relay in", "hop-1", 1), ("relay out", "hop-1", 1)),
            *(("relay in", "hop-2", 2), ("relay out", "hop-2", 2)),
            *(("receive", "", 0), ("match", "", 0), ("callback", "", 0)),
        ]
        at, took = [hop.at_ns for hop in trace.hops], [hop.took_ns for hop in trace.hops]
        ts_event, ts_in, *_ = blocks[trace.sequence][1]
        assert [*at[:3], at[7]] == blocks[trace.sequence][1]
        assert at == sorted(at)
        assert took == [0, *numpy.diff(at).tolist()]
        assert sum(took[2:]) == trace.age_ns == at[-1] - ts_in
        assert sum(took) == at[-1] - ts_event

    (snippet,) = [each for each in SNIPPETS if "traces()" in each]
    exec(compile(snippet, "watching.md", "exec"), {"subscriber": subscriber})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(traces)
    assert re.fullmatch(r"\d+ \d+ \[\('venue', 0\), .*\('relay hop-2 out', \d+\), .*\)\]", shown[0])

    text = Exposition(Watched(subscriber)).text("text/plain")[0].decode()
    name = "blackbox_subscriber_hop_seconds_count"
    samples = [sample for family in parse(text) for sample in family.samples if sample.name == name]
    hops = ["venue", "publish", "send", "relay 1 in", "relay 1 out", "relay 2 in", "relay 2 out", "receive", "match"]
    ends = zip(hops, [*hops[1:], "callback"], strict=True)
    assert {sample.labels["hop"]: sample.value for sample in samples} == {
        f"{before} to {hop}": len(traces) for before, hop in ends
    }


def test_subscriptions_are_read_while_traced_blocks_wait() -> None:
    feeds = chain(transport="inproc", trace_every=1, heartbeat_ns=PLAIN_BEAT_NS)
    (each,) = Relay(*feeds)._slices
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with ExitStack() as stack:
        source, sub = (stack.enter_context(context.socket(kind)) for kind in (zmq.XPUB, zmq.SUB))
        stack.callback(each._close)
        source.linger = sub.linger = 0
        source.bind(feeds[0].slices[0].lines[0])
        each._open(context)
        (line,) = each.lines
        line.upstream.want(b"", 1, time.monotonic())
        line.way.look(is_needed=False)
        while source.poll(0):
            source.recv()
        for number in range(5):
            columns, fields = PayloadColumns(b"x", offsets=[0, 1]), HeaderFields(key_rule=0, sequence=number)
            source.send_multipart(Block.encode([b"T"], [0], columns, fields).frames)
        sub.connect(feeds[1].slices[0].lines[0])
        sub.subscribe(b"")
        addresses = each._addresses(numpy.zeros(2 * (1 + ITEMS_OF_LINE), numpy.int64))
        until = time.monotonic_ns() + 10**11
        assert forward_until(addresses, each.below.readers, line.upstream.keys, until) == SUBSCRIPTIONS
