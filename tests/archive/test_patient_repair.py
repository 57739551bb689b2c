"""A slow archive and paused subscribers: archived messages are never reported as lost."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blackbox import Gap, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveServer
from blackbox.native.awake_clock import awake_s
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import ROW_BYTES, publish_numbered, wait_recorded
from tests.archive.test_repair import Sent, archive_of, listen, send_all
from tests.examples import first_of
from tests.lossy_proxy import LossyProxy
from tests.process_state import linux_only
from tests.support import Script

NIGHT_S = 36_000


@contextmanager
def hung_archive(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Hold back all answers of archives until a call; collect the errors of clients."""
    answers, silences = threading.Event(), list[str]()
    answer, note = ArchiveServer._answer, ArchiveClient._note_silence

    def late(self: ArchiveServer, *arguments: Any) -> int:
        answers.wait()
        return answer(self, *arguments)

    def noted(self: ArchiveClient, asking: Any, error: Any) -> None:
        silences.append(str(error))
        note(self, asking, error)

    monkeypatch.setattr(ArchiveServer, "_answer", late)
    monkeypatch.setattr(ArchiveClient, "_note_silence", noted)
    try:
        yield silences, answers.set
    finally:
        answers.set()


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_repair_waits_for_a_slow_archive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key_bytes: int
) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    blocks = [Sent(b"A", 3, number in (2, 5, 6), True) for number in range(9)]
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=0.1, slow=SlowPolicy("warn", start_grace=0))
    seen = listen(subscriber)
    with archive_of(feed, blocks), RawPublisher(feed) as publisher, hung_archive(monkeypatch) as (silences, answer):
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        publisher.heartbeat()
        wait_until(lambda: len(silences) >= 5, 60, "it asked again, with growing timeouts")
        assert seen == [(number, 0) for number in range(6)]
        answer()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(27)]
    assert subscriber.statistics().received.gaps == 0
    waits = [float(text.split(" within ")[1].split()[0]) for text in silences if " within " in text]
    assert max(waits) >= 4 * min(waits)
    assert "did not answer within" in caplog.text
    assert "but is connected: it is asked again" in caplog.text


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_a_fetch_with_progress_continues(monkeypatch: pytest.MonkeyPatch, key_bytes: int) -> None:
    """Each block arrives in time, but all together take several times as long."""
    feed = archived_feed(key_bytes=key_bytes)
    blocks = [Sent(b"A", 3, 0 < number < 9, True) for number in range(10)]
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=0.1, slow=SlowPolicy("warn"))
    seen = listen(subscriber)
    answer, clock, answers = ArchiveServer._answer, [1.0], list[int]()

    def slow(self: ArchiveServer, socket: Any, reader: Any, request: Any, most_bytes: int) -> int:
        clock[0] += 0.06
        answers.append(answer(self, socket, reader, request, 1))  # one block
        return answers[-1]

    monkeypatch.setattr(ArchiveServer, "_answer", slow)
    monkeypatch.setattr(type(awake_s), "__call__", lambda _: clock[0])
    with archive_of(feed, blocks), RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(30)]
    assert len(answers) > 8


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_more_messages_than_may_wait_are_read_from_a_slow_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_bytes: int
) -> None:
    """No message is lost for lack of room, also with keys."""
    feed = archived_feed(block_bytes=4_096, key_bytes=key_bytes)
    came: dict[bytes, list[bytes]] = {b"A.t": [], b"B.t": []}
    sent: dict[bytes, list[bytes]] = {b"A.t": [], b"B.t": []}
    gaps: list[Gap] = []
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True) as recorder,
        LossyProxy(feed, 0.3) as proxy,
    ):
        subscriber = Subscriber(
            proxy.feed, on_gap="repair", repair_wait=2, slow=SlowPolicy("warn", start_grace=0), hwm_blocks=2
        )
        subscriber.on(b"")(lambda message: came[message.topic].append(message.payload))
        subscriber.on_gap(b"")(gaps.append)
        subscriber.start()
        with hung_archive(monkeypatch) as (silences, answer):
            for number in range(6_000):
                topic = random.choice([b"A.t", b"B.t"])
                sent[topic].append(number.to_bytes(ROW_BYTES, "little"))
                publisher.publish(topic, sent[topic][-1])
                if number % 20 == 0:
                    publisher.flush()
            publisher.flush()
            wait_recorded(recorder, 6_000)
            wait_until(lambda: subscriber.statistics().received.let_go > 0, 60, "it has fallen back")
            wait_until(lambda: len(silences) >= 3, 60, "it asked again")
            answer()
            publisher.close()
            subscriber.run(until_end=True)
    assert gaps == []
    assert came == sent
    assert subscriber.statistics().received.gaps == 0


@linux_only
@pytest.mark.parametrize("key_bytes", first_of([0, 4]))
def test_repair_after_a_night_of_pause_loses_no_archived_message(tmp_path: Path, key_bytes: int) -> None:
    """After SIGSTOP its clock jumps by ten hours, so that every timeout has passed."""
    feed = archived_feed(block_bytes=4_096, key_bytes=key_bytes)
    code = f"""
        passed, monotonic = [0.0], time.monotonic
        time.monotonic = lambda: monotonic() + passed[0]
        signal.signal(signal.SIGCONT, lambda *_: passed.__setitem__(0, passed[0] + {NIGHT_S}))
        numbers, gaps = [], []
        subscriber = Subscriber(feed, on_gap="repair", slow=SlowPolicy("warn", max_lag=1e9), hwm_blocks=4)
        subscriber.on_batch(b"")(lambda batch: numbers.extend(batch.sequence.tolist()))
        subscriber.on_gap(b"")(lambda gap: gaps.append((gap.sequence, gap.count)))
        subscriber.start()
        say("started")
        while True:
            count = int(input())
            wait_until(lambda: len(numbers) + sum(count for _, count in gaps) >= count, 100)
            repaired = subscriber.statistics().received.repaired
            say("came", len(numbers), numbers == list(range(len(numbers))), gaps, repaired > 0)
    """
    with (
        Publisher(feed, when_full="drop") as publisher,
        Recorder(feed, tmp_path, serve=True, hwm_blocks=10_000) as recorder,
        Script(code, feed) as script,
    ):
        script.expect("started")
        count = 0
        for _ in range(2):
            publish_numbered(publisher, count, 500)
            count += 500
            publisher.flush()
            wait_recorded(recorder, count)
            os.kill(script.process.pid, signal.SIGSTOP)
            for _ in range(60):  # more than the publisher and the connection can queue
                publish_numbered(publisher, count, 5_000)
                count += 5_000
                publisher.flush()
                wait_recorded(recorder, count)
            os.kill(script.process.pid, signal.SIGCONT)
            publish_numbered(publisher, count, 500)
            count += 500
            publisher.flush()
            script.tell(str(count))
            script.expect(f"came {count} True [] True")
