from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.measure.contest import Lost
from bench.processes.pair import Pair
from bench.rivals.records import block_rows, blocks
from bench.rivals.rival import need, started, tcp
from bench.rivals.servers import Missing, nats_server
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


def test_block_packed_in_place_equals_one_packed_by_hand() -> None:
    iceoryx2 = pytest.importorskip("bench.rivals.plain_iceoryx2", exc_type=ImportError)
    pack = iceoryx2._packer()
    for rows, block in zip(block_rows(LOAD), blocks(LOAD), strict=True):
        place = ctypes.create_string_buffer(iceoryx2._block_bytes(rows.stop - rows.start))
        pack(ctypes.addressof(place), rows)
        assert place.raw == block


def test_lost_message_voids_the_tally() -> None:
    tally = Tally().begin(MESSAGES)
    for topic, data in many(topics_and_data(POOL), MESSAGES - 1):
        tally.count(topic, data)
    assert not tally.ended
    with pytest.raises(Lost, match=rf"count was {MESSAGES - 1}, expected {MESSAGES}"):
        expect_tally(tally.state(), LOAD)


def test_messages_under_other_topics_void_the_tally() -> None:
    tally = Tally().begin(MESSAGES)
    names = make_pool().topics
    other = dict(zip(names, (*names[1:], names[0]), strict=True))
    for topic, data in many(topics_and_data(POOL), MESSAGES):
        tally.count(other[topic], data)
    with pytest.raises(Lost, match="rows of count, digest, sum by topic was False"):
        expect_tally(tally.state(), LOAD, by_topic=True)


def test_messages_in_another_order_void_the_tally() -> None:
    tally = Tally().begin(MESSAGES)
    messages = list(many(topics_and_data(POOL), MESSAGES))
    topic = messages[0][0]
    second = next(place for place, each in enumerate(messages) if each[0] == topic and each != messages[0])
    messages[0], messages[second] = messages[second], messages[0]
    for topic, data in messages:
        tally.count(topic, data)
    for by_topic in (False, True):
        with pytest.raises(Lost, match="rows of count, digest, sum .* was False"):
            expect_tally(tally.state(), LOAD, by_topic=by_topic)


def test_two_processes_play_rounds() -> None:
    with Pair.rival("plain_pyzmq", address=tcp()) as pair:
        for _ in range(2):
            figure = pair.round(Load(messages=10_000))
            assert figure.value > 0
            assert figure.spent is not None
            assert figure.spent.subscriber_cpu_s
            assert figure.spent.messages == 10_000


def test_contender_that_cannot_start_raises_the_reason() -> None:
    with ExitStack() as stack, pytest.raises(Missing, match="No module named 'bench.rivals.absent'"):
        started(stack, lambda: Pair.rival("absent"))


def test_absent_package_is_named() -> None:
    with pytest.raises(Missing, match=r"no-such-package is not installed \(extra `bench`"):
        need("no-such-package:no_such_package")


def test_server_that_cannot_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nats-server"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(Missing, match=r"nats-server could not be run, .*Exec format error.*extra `bench`"):
        nats_server()


def test_side_ends_with_the_process_that_started_it() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", _ORPHANS, tcp()],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert starter.stdout is not None
        publisher, subscriber = map(int, starter.stdout.readline().split())
    finally:
        starter.kill()
        starter.communicate()
    deadline = time.monotonic() + 10
    while _is_running(publisher) or _is_running(subscriber):
        assert time.monotonic() < deadline, "the subscriber, which waits for messages, is still running"
        time.sleep(0.01)


_ORPHANS = """
import sys, time
from bench.processes.child import Child
from bench.processes.pair import Order
from bench.workload.load import Load

sides = [Child(f"bench.rivals.plain_pyzmq:{side}", address=sys.argv[1]) for side in ("publish", "receive")]
sides[1].ask(Order(Load(messages=1_000)))  # it receives, but no messages are published
print(*(side.pid for side in sides), flush=True)
time.sleep(60)
"""


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # ended, but not yet reaped


def test_absent_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(Missing, match="no nats-server found: extra `bench`"):
        nats_server()
