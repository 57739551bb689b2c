"""A recorder's life: used once, one per directory, ended by stop, a signal, an error or a failed keeper."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import Publisher
from blackbox.archive.journal_writer import JournalWriter
from blackbox.archive.journals import JournalsLife
from blackbox.archive.recorder import Recorder
from blackbox.errors import JournalError
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import feed_of, numbers_of, one_slice, payloads, publish_numbered, records, wait_recorded
from tests.support import Script


def test_another_feed_of_the_same_name_is_rejected(tmp_path: Path) -> None:
    with one_slice(tmp_path):
        pass
    other = feed_of(key_bytes=2)
    with pytest.raises(JournalError, match="holds a feed whose key_bytes is 0, expected 2"):
        Recorder(other, tmp_path).start()


@pytest.mark.parametrize("where", ["tend", "sync"])
def test_a_failed_keeper_ends_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more")

    with pytest.raises(JournalError, match="its keeper failed: no more"), one_slice(tmp_path) as (_, __, recorder):
        monkeypatch.setattr(JournalWriter, where, fail)
        wait_until(lambda: recorder.state is SubscriberLife.ENDED)
        monkeypatch.undo()


def test_a_second_recorder_is_rejected_with_the_owner(tmp_path: Path) -> None:
    feed = feed_of()
    script = Script("recorder = Recorder(feed, input()).start()\nsay('started')\nrecorder.run()", feed)
    with RawPublisher(feed), script:
        script.tell(str(tmp_path))
        script.expect("started")
        with pytest.raises(JournalError, match=f"is being recorded by process {script.process.pid},"):
            Recorder(feed, tmp_path).start()
        with Recorder(feed, tmp_path / "elsewhere"):
            pass
        script.kill()
        with Recorder(feed, tmp_path):
            pass


def test_a_recorder_is_used_once(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        with pytest.raises(JournalError, match="start was called when running"):
            recorder.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
        recorder.stop()
        recorder.stop()
        with pytest.raises(JournalError, match="start was called when ended"):
            recorder.start()
    assert payloads(tmp_path, feed) == [b"0"]
    assert recorder.state is SubscriberLife.ENDED


def test_invalid_transitions_of_journals_raise(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (_, __, recorder):
        with pytest.raises(RuntimeError, match="journals of feed .* was to be open when it was open, expected closing"):
            recorder._journals.open()
        with pytest.raises(RuntimeError, match="was to be closed when it was open, expected closing"):
            recorder._journals._enter(JournalsLife.CLOSED)
    assert recorder._journals.life is JournalsLife.CLOSED


def test_stop_before_start_opens_nothing(tmp_path: Path) -> None:
    recorder = Recorder(feed_of(), tmp_path)
    recorder.stop()
    assert recorder.statistics().messages == 0
    with pytest.raises(JournalError, match="start was called when ended"):
        recorder.start()
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_with_block_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), one_slice(tmp_path) as (feed, publisher, recorder):
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
        raise ZeroDivisionError
    assert recorder.state is SubscriberLife.ENDED
    assert payloads(tmp_path, feed) == [b"0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_run_without_loss(tmp_path: Path, number: signal.Signals) -> None:
    feed = feed_of()
    script = Script(
        """
        recorder = Recorder(feed, input())
        threading.Thread(target=lambda: (wait_until(lambda: recorder.statistics().messages >= 1), say("some")),
                         daemon=True).start()
        try:
            recorder.run()
        except SystemExit as ended:  # after SIGTERM
            say("ended", ended.code)
        else:
            say("ended 0")
        now = recorder.statistics()
        say(now.messages, now.lost, now.received.messages)
        """,
        feed,
    )
    with Publisher(feed, when_full="wait") as publisher, script:
        script.tell(str(tmp_path))
        publisher.wait_for_subscribers(timeout=60)
        publish_numbered(publisher, 0, 50_000)
        script.expect("some")
        script.process.send_signal(number)
        script.expect("ended 143" if number == signal.SIGTERM else "ended 0")
        messages, lost, received = map(int, script.read().split())
        assert script.finish()[0] == 0
    assert lost == 0
    assert messages == received
    assert numpy.concatenate([numbers_of(record) for record in records(tmp_path, feed)]).tolist() == [*range(messages)]


def test_stop_in_one_thread_ends_run_in_another(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        thread = threading.Thread(target=recorder.run)
        thread.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
        recorder.stop()
        thread.join()
    assert payloads(tmp_path, feed) == [b"0"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"segment_bytes": 5}, "segment_bytes was 5, expected 1048576 to"),
        ({"fsync_interval": 0}, "fsync_interval was 0, expected 0.001 to 3600 seconds"),
        ({"fsync": "often"}, "fsync was 'often', expected never, interval or block"),
        ({"compression": "rar"}, "compression was 'rar', expected none, lz4 or zstd"),
    ],
)
def test_invalid_settings_are_rejected(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Recorder(feed_of(), tmp_path, **settings)
