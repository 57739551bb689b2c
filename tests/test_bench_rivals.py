from __future__ import annotations

from pathlib import Path

import pytest

from bench.contest import Lost
from bench.rivals.pair import Missing, Pair, need
from bench.rivals.records import BlockTally, Tally, blocks, many, messages_of_pool
from bench.rivals.servers import free_port, nats_server
from bench.workload import POOL_MESSAGES, expect_tally

MESSAGES = POOL_MESSAGES + 3_000  # the pool once, and a block and a half of it again


def test_work_is_the_same_by_message_and_by_block() -> None:
    by_message = Tally().begin(MESSAGES)
    for topic, data in many(messages_of_pool(), MESSAGES):
        by_message.count(topic, data)
    by_block = BlockTally().begin(MESSAGES)
    for block in blocks(MESSAGES):
        by_block.count(None, block)
    expect_tally(by_message.state(), MESSAGES)
    expect_tally(by_block.state(), MESSAGES)
    assert by_message.ended
    assert by_block.ended


def test_lost_message_voids_the_tally() -> None:
    tally = Tally().begin(MESSAGES)
    for topic, data in many(messages_of_pool(), MESSAGES - 1):
        tally.count(topic, data)
    assert not tally.ended
    with pytest.raises(Lost, match=rf"count was {MESSAGES - 1}, expected {MESSAGES}"):
        expect_tally(tally.state(), MESSAGES)


def test_two_processes_play_rounds() -> None:
    with Pair("plain_pyzmq", address=f"tcp://127.0.0.1:{free_port()}") as pair:
        for _ in range(2):
            figure = pair.round(10_000)
            assert figure.value > 0
            assert figure.spent is not None
            assert figure.spent.subscriber_cpu_s
            assert figure.spent.messages == 10_000


def test_contender_that_cannot_start_tells_why() -> None:
    with pytest.raises(Missing, match="No module named 'bench.rivals.nobody'"):
        Pair("nobody")


def test_absent_package_is_named() -> None:
    with pytest.raises(Missing, match=r"nobody-has-this is not installed \(extra `bench`"):
        need("nobody-has-this:nobody_has_this")


def test_absent_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(Missing, match="no nats-server found: extra `bench`"):
        nats_server()
