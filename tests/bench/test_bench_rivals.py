"""Work of the benchmarks, processes that do it, and steps of the hot path."""

from __future__ import annotations

import pytest

from bench.hot_path.kernels import Subject
from bench.measure.contest import Lost
from bench.processes.pair import Pair
from bench.rivals.records import blocks
from bench.rivals.rival import tcp
from bench.workload.load import POOL, Load, many, topics_and_data
from bench.workload.messages import POOL_MESSAGES, make_pool
from bench.workload.tally import BlockTally, Tally, expect_tally

MESSAGES = POOL_MESSAGES + 3_000  # the pool once, then one and a half blocks of it again
LOAD = Load(messages=MESSAGES)


def test_work_is_the_same_by_message_and_by_block() -> None:
    by_message = Tally().begin(MESSAGES)
    for topic, data in many(topics_and_data(POOL), MESSAGES):
        by_message.count(topic, data)
    by_block = BlockTally().begin(MESSAGES)
    for block in blocks(LOAD):
        by_block.count(None, block)
    expect_tally(by_message.state(), LOAD, by_topic=True)
    expect_tally(by_block.state(), LOAD, by_topic=True)
    assert by_message.ended
    assert by_block.ended


@pytest.mark.parametrize("fault", ["lost", "topics", "order"])
def test_a_lost_message_another_topic_or_order_voids_the_tally(fault: str) -> None:
    messages = list(many(topics_and_data(POOL), MESSAGES))
    names = make_pool().topics
    if fault == "lost":
        messages.pop()
    elif fault == "topics":
        other = dict(zip(names, (*names[1:], names[0]), strict=True))
        messages = [(other[topic], data) for topic, data in messages]
    else:
        topic = messages[0][0]
        second = next(place for place, each in enumerate(messages) if each[0] == topic and each != messages[0])
        messages[0], messages[second] = messages[second], messages[0]
    tally = Tally().begin(MESSAGES)
    for topic, data in messages:
        tally.count(topic, data)
    assert bool(tally.ended) == (fault != "lost")
    with pytest.raises(Lost, match="count was|rows of count, digest, sum by topic was False"):
        expect_tally(tally.state(), LOAD, by_topic=True)
    if fault == "order":
        with pytest.raises(Lost, match="rows of count, digest, sum .* was False"):
            expect_tally(tally.state(), LOAD, by_topic=False)


@pytest.mark.long
def test_two_processes_play_rounds() -> None:
    with Pair.rival("plain_pyzmq", address=tcp()) as pair:
        for _ in range(2):
            figure = pair.round(Load(messages=10_000))
            assert figure.value > 0
            assert figure.spent is not None
            assert figure.spent.subscriber_cpu_s
            assert figure.spent.messages == 10_000


@pytest.mark.long
def test_every_step_of_the_hot_path_runs_repeatedly() -> None:
    with Subject() as kernels:
        for kernel in kernels:
            assert kernel.ns_a_message(20) > 0
