"""The operator console: alerts, history on disk, forwarding, and its commands."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
import zmq

from blackbox import ConfigError, Feed
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import free_endpoints
from blackbox.receive.alerts import Alert
from blackbox.services.monitor.console import forward
from blackbox.services.monitor.console.console import Console
from blackbox.services.monitor.console.history import Event, History, HistoryError
from blackbox.services.monitor.watch.conditions import Condition
from blackbox.services.monitor.watch.watcher import Watcher
from blackbox.testing import RawPublisher, wait_until
from tests.cli.commands import Command, invoke, write_feed

ALERT = Alert(
    kind="slow_callback",
    severity="error",
    feed="watched",
    slice_id=1,
    host="desk",
    pid=7,
    role="subscriber",
    text="slow subscriber: it lags",
    since_ns=5,
)


def event(number: int, change: str = "raised") -> Event:
    condition = Condition(
        kind="gap", severity="warning", who=f"subscriber {number}", feed="f", where="", why="w" * 50, since_ns=number
    )
    return Event(at_ns=number, change=change, condition=condition)  # type: ignore[arg-type]


@contextmanager
def pusher(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 60_000
        socket.connect(endpoint)
        yield socket


def test_history_is_bounded_and_survives_a_cut_last_line(tmp_path: Path) -> None:
    history = History(tmp_path, file_bytes=1_000, files=3)
    for number in range(30):
        history.append(event(number))
    with pytest.raises(HistoryError, match="expected no other console"):
        History(tmp_path)
    history.close()
    files = sorted(tmp_path.glob("history.jsonl*"))
    assert len(files) == 3
    assert all(file.stat().st_size <= 1_000 for file in files)
    with files[0].open("ab") as newest:
        newest.write(b'{"at_ns":99,"change":"rai')
    again = History(tmp_path, file_bytes=1_000, files=3)
    again.append(event(30))
    found = [each.at_ns for each in again.events()]
    assert found == list(range(found[0], 31))
    assert 10 <= len(found) < 30
    again.append(event(30, "cleared"))
    assert [each.since_ns for each in again.still_raised()] == found[:-1]
    again.close()


@pytest.mark.parametrize("step", ["replace", "open"])
def test_a_history_that_cannot_begin_a_file_loses_nothing_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The number of a closed descriptor would soon be that of another file or socket."""
    history = History(tmp_path, file_bytes=100, files=3)  # a file for each event

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    for number in range(3):
        history.append(event(number))
        with monkeypatch.context() as patch:
            patch.setattr(*((Path, "replace", fail) if step == "replace" else (history, "_open", fail)))
            for _ in range(2 * (number < 2)):
                with pytest.raises(HistoryError, match="Permission denied"):
                    history.append(event(9))
                os.fstat(history._file)
    assert [each.at_ns for each in history.events()] == [0, 1, 2]
    history.close()


def test_with_a_full_disk_earlier_events_stay_and_a_console_goes_on_to_report(tmp_path: Path) -> None:
    history, said = History(tmp_path), list[Event]()
    history.append(event(1))
    limited = os.open("/dev/full", os.O_WRONLY)
    os.dup2(limited, history._file)
    with pytest.raises(HistoryError, match="No space left on device"):
        history.append(event(2))
    console = Console(Watcher([]), history=history, say=said.append)
    console._report(event(2))
    assert (said, console.report().unwritten) == ([event(2)], 1)
    os.close(limited)
    assert [each.at_ns for each in history.events()] == [1]
    history.close()


class _Hook(BaseHTTPRequestHandler):
    got: list[bytes] = []  # noqa: RUF012 - one server per test
    answer = 200

    def do_POST(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(type(self).answer)
        self.send_header("Location", "/moved")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_events_are_posted_to_a_webhook_and_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_WEBHOOK_S", 60.0)
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        hook = forward.webhook(f"http://127.0.0.1:{server.server_port}/alerts?token=1")
        hook.put(event(1))
        wait_until(lambda: hook.counts.sent == 1)
        for number, answer in enumerate((500, 301, 302, 303, 307), 2):  # after a redirect, a GET would have no event
            _Hook.answer = answer
            hook.put(event(number))
            wait_until(lambda: sum(msgspec.structs.astuple(hook.counts)) == number)
        hook.close()
        assert hook.counts == forward.Forwarded(sent=1, failed=5)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [msgspec.json.decode(each, type=Event) for each in _Hook.got] == [event(number) for number in range(1, 7)]


def test_a_command_gets_each_event_and_a_slow_one_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "events"
    script = tmp_path / "script.py"
    script.write_text(f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read() + chr(10))")
    monkeypatch.setattr(forward, "_END_S", 60.0)
    monkeypatch.setattr(forward, "_COMMAND_S", 60.0)
    runner = forward.command(f"{sys.executable} {script}")
    runner.put(event(1))
    runner.put(event(2))
    runner.close()
    assert [json.loads(line)["at_ns"] for line in out.read_text().splitlines()] == [1, 2]
    assert runner.counts == forward.Forwarded(sent=2)
    monkeypatch.setattr(forward, "_QUEUE_EVENTS", 3)
    monkeypatch.setattr(forward, "_END_S", 0.01)
    gate, begun = threading.Event(), threading.Event()

    def wait(_: bytes) -> None:
        begun.set()
        gate.wait(200)

    stuck = forward.Forwarder("a stuck one", wait)
    stuck.put(event(0))
    assert begun.wait(200)
    for number in range(10):
        stuck.put(event(number))
    assert stuck.counts == forward.Forwarded(dropped=7)
    assert "a stuck one is too slow, and an event was dropped" in caplog.text
    stuck.close()
    assert stuck.counts == forward.Forwarded(dropped=11)
    assert "a stuck one did not take the last 4 events in time" in caplog.text
    gate.set()


def test_waits_at_the_end_of_a_forwarder_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = forward.Forwarder("a slow one", lambda _: None)
    put, limits = slow._queue.put, list[float]()

    def put_late(item: None, timeout: float) -> None:
        time.sleep(0.2)
        put(item, timeout=timeout)

    monkeypatch.setattr(slow._queue, "put", put_late)
    monkeypatch.setattr(slow._thread, "join", limits.append)
    slow.close()
    assert limits[0] <= forward._END_S - 0.2


@pytest.mark.parametrize(
    ("make", "text", "error"),
    [
        (forward.command, "", "command was empty"),
        (forward.command, "'", 'command was "\'": '),
        (forward.webhook, "ftp://host/secret", r"webhook was ftp://\.\.\., expected http"),
        (forward.webhook, "https://host/alerts?token=a b", "webhook on host had a space or a letter beyond ASCII, exp"),
    ],
)
def test_a_wrong_target_is_an_error(make: Callable[[str], forward.Forwarder], text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make(text)


def test_alerts_are_shown_kept_and_restored(tmp_path: Path) -> None:
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    words = ("console", "--listen", endpoint, "--watch", "http://127.0.0.1:9", "--history", tmp_path / "kept", "--json")
    with pusher(endpoint) as socket, Command(*words) as console:
        console.read_error(f"alerts at {endpoint}")
        for frame in (b"no alert", ALERT.encode()):
            socket.send(frame)
        assert console.process.stdout is not None
        found = [json.loads(console.process.stdout.readline()) for _ in range(2)]
        console.process.send_signal(signal.SIGKILL)
        console.process.wait()
    by_kind = {each["condition"]["kind"]: each for each in found}
    assert by_kind.keys() == {"slow_callback", "unreachable"}
    shown = by_kind["slow_callback"]
    assert shown["change"] == "raised"
    assert shown["condition"] == {
        "kind": "slow_callback",
        "severity": "error",
        "who": "subscriber 7 on desk",
        "feed": "watched",
        "where": "feed watched slice 1",
        "why": "slow subscriber: it lags",
        "since_ns": 5,
    }
    history = History(tmp_path / "kept")
    assert [each.kind for each in history.still_raised()] == [each["condition"]["kind"] for each in found]
    history.close()


def test_once_exits_with_a_status_for_scripts(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("watched", slices=1), heartbeat_ns=60_000_000_000)
    path = write_feed(feed, tmp_path / "feed.toml")
    with RawPublisher(feed):
        fine = invoke("console", path, "--once", "--timeout", 0.1)
    assert (fine.status, fine.out) == (Status.OK, "")
    assert "nothing is wrong" in fine.errors
    path = write_feed(msgspec.structs.replace(feed, heartbeat_ns=10_000_000), tmp_path / "feed.toml")
    silent = invoke("console", path, "--once", "--timeout", 1.5)
    assert silent.status == Status.ERROR
    assert "error   late publisher: publisher of watched: no publisher has been heard since" in silent.out
    report = invoke("console", path, "--once", "--json", "--timeout", 1.5)
    assert report.status == Status.ERROR
    assert [each["kind"] for each in json.loads(report.out)["conditions"]] == ["late_publisher"]
