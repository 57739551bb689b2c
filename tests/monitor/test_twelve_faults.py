"""Twelve faults, planted in real processes and sockets: the console names each correctly, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from blackbox import Feed, Publisher, Relay, SlowPolicy, Subscriber
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.monitor import Monitor
from blackbox.services.monitor.console.console import Console
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.services.monitor.serve.metrics import server_of
from blackbox.services.monitor.serve.watched import Watched
from blackbox.services.monitor.watch.conditions import Condition
from blackbox.services.monitor.watch.watcher import Watcher
from blackbox.testing import RawPublisher, wait_until
from tests.clock_steps import STEP_CLOCK, words_before
from tests.gate import Gate
from tests.hub.hubs import hub_feed
from tests.keyring import Keyring
from tests.lossy_proxy import LossyProxy
from tests.process_state import linux_only
from tests.support import Script

PATIENCE_S = 60.0
HEARTBEAT_NS = 2_000_000_000
FULL = 2 << 20
HERE = socket.gethostname()
SERVE = """
from blackbox.services.monitor.serve.metrics import server_of
from blackbox.services.monitor.serve.watched import Watched
def serve(thing):
    server = server_of(Watched(thing), "127.0.0.1:0")
    server.start()
    say(server.url)
    input()
"""
ARCHIVE = """
from blackbox.archive.serve.server import ArchiveServer
with ArchiveServer(input(), feed.archives, feed=feed) as archive:
    serve(archive)
"""
HUB = """
with Hub(feed, input()) as hub:
    serve(hub)
"""
CONSUMER = """
subscriber = Subscriber(feed)
subscriber.on(b"")(lambda message: None)
with subscriber:
    serve(subscriber)
"""
RECORD = """
recorder = Recorder(feed, input()).start()
say("started")
try:
    recorder.run()
except Exception as error:
    say("ended")
input()
"""
STEPPED = """
subscriber = Subscriber(feed, slow=SlowPolicy("warn", max_lag=3_600))
subscriber.on(b"")(lambda message: None)
server = server_of(Watched(subscriber), "127.0.0.1:0")
with subscriber:
    server.start()
    say(server.url)
    input()
    step_clock(20)
    say("stepped")
    input()
"""


def new_feed(lines: int = 1, console: str = "", max_peers: int = 1_000) -> Feed:
    feed = Feed.local("planted", slices=1, lines=lines)
    monitor = Monitor(console=console, max_peers=max_peers)
    return msgspec.structs.replace(feed, heartbeat_ns=HEARTBEAT_NS, monitor=monitor, max_lag_ns=1_000_000_000)


@contextmanager
def served(*things: Any) -> Iterator[str]:
    """Serve the status of parts of this process; yield the URL."""
    server = server_of(Watched(*things), "127.0.0.1:0")
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def consoled(*feeds: Feed, urls: tuple[str, ...] = (), endpoint: str = "") -> Iterator[Console]:
    """Run a console that has read each page; nothing may be wrong at first."""
    with Console(Watcher(feeds, urls), endpoint) as console:
        for _ in range(4):
            console.look(0.1)
        began = time.monotonic()
        while not all(page.answered_ns or page.failure for page in console.watch.installation.now.pages):
            assert time.monotonic() < began + PATIENCE_S, f"{urls} were not read"
            console.look(0.1)
        assert console.report().conditions == ()
        yield console


def named(console: Console, kind: str, *, only: bool = True) -> Condition:
    """Look until a condition of a kind is present; return it. No other kind may be present then."""
    began = time.monotonic()
    while True:
        console.look(0.1)
        found = console.report().conditions
        if mine := [each for each in found if each.kind == kind]:
            assert not only or {each.kind for each in found} == {kind}, found
            print(f"{kind}: named after {time.monotonic() - began:.1f} s: {mine[0].why}")
            return mine[0]
        assert time.monotonic() < began + PATIENCE_S, f"{kind} was not named, but {found}"


@contextmanager
def repeated(work: Callable[[], object], every_s: float = 0.05) -> Iterator[None]:
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(every_s):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def own(role: str) -> str:
    return f"{role} {os.getpid()} on {HERE}"


def test_a_slow_callback() -> None:
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    feed, gate = new_feed(console=endpoint), Gate()
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy("warn", 3, start_grace=0))
    subscriber.on_batch(b"")(gate.batch)
    with RawPublisher(feed) as publisher, consoled(endpoint=endpoint) as console, subscriber:
        with repeated(lambda: publisher.send(publisher.encode([(b"T", b"")]))):
            condition = named(console, "slow_callback")
        gate.open.set()
    assert condition.who == own("subscriber")
    assert "Gate.batch" in condition.why or "Gate.wait" in condition.why
    assert condition.where == "feed planted slice 0"


@linux_only
def test_a_full_disk(tmp_path: Path) -> None:
    mount = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={FULL} tmpfs "$0" && exec "$@"', str(tmp_path)]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    [[endpoint]] = free_endpoints("tcp", "console", 1, 1)
    feed = new_feed(console=endpoint)
    with RawPublisher(feed) as publisher, Script(RECORD, feed, mount) as script:
        script.tell(str(tmp_path))
        script.expect("started")
        with consoled(endpoint=endpoint) as console:
            for _ in range(2 * FULL // 50_000):
                publisher.send(publisher.encode([(b"T", bytes(50_000))]))
            condition = named(console, "full_disk")
        script.expect("ended")
        assert condition.who == f"recorder {script.process.pid} on {HERE}"
        assert "No space left on device" in condition.why
        script.tell("")


def test_loss_above_a_relay() -> None:
    feed = new_feed()
    with Publisher(feed) as publisher, LossyProxy(feed, share=0.3) as proxy:
        below = msgspec.structs.replace(proxy.feed, slices=Feed.local("planted", slices=1).slices)
        subscriber = Subscriber(below, slow=SlowPolicy("warn", 60))
        subscriber.on(b"")(lambda message: None)
        with Relay(proxy.feed, below, name="london") as relay, subscriber, served(relay, subscriber) as url:
            with consoled(feed, urls=(url,)) as console, repeated(lambda: publisher.publish(b"T", b"x"), 0.01):
                condition = named(console, "loss_above_relay")
                for _ in range(20):
                    console.look(0.1)
                assert {each.kind for each in console.report().conditions} == {"loss_above_relay"}

            def agree() -> bool:
                lost = subscriber.statistics().received.gaps
                return relay.statistics().lines[0].gaps in range(lost - 5, lost + 1)

            wait_until(agree, PATIENCE_S, "both counts agree")
    assert condition.who == own("relay")
    assert "lost above relay 'london', on line A of slice 0" in condition.why


def test_a_clock_step(tmp_path: Path) -> None:
    feed, code = new_feed(), SERVE + STEP_CLOCK.replace("        ", "") + STEPPED
    with RawPublisher(feed) as publisher, Script(code, feed, words_before(tmp_path)) as script:
        url = script.read()
        sending = repeated(lambda: publisher.send(publisher.encode([(b"T", b"")])), 0.02)
        with sending, consoled(urls=(url,)) as console:
            script.tell("")
            script.expect("stepped")
            condition = named(console, "clock_step")
        script.tell("")
    assert condition.who == f"subscriber {script.process.pid} on {HERE}"
    assert "1 clock step" in condition.why


@pytest.mark.parametrize(
    ("code", "ends", "kind", "role"),
    [
        (ARCHIVE, signal.SIGKILL, "dead_archive", "archive"),
        (CONSUMER, signal.SIGKILL, "lost_consumer", "subscriber"),
        (HUB, signal.SIGSTOP, "stuck_hub", "hub"),
    ],
)
def test_a_process_that_ends_or_hangs(code: str, ends: signal.Signals, kind: str, role: str, tmp_path: Path) -> None:
    feed = hub_feed("planted", slices=1)
    (tmp_path / feed.name).mkdir()
    with ExitStack() as stack:
        if role == "subscriber":
            stack.enter_context(RawPublisher(feed))
        script = stack.enter_context(Script(SERVE + code, feed))
        if role != "subscriber":
            script.tell(str(tmp_path / feed.name if role == "archive" else tmp_path))
        url = script.read()
        console = stack.enter_context(consoled(*([feed] if role == "hub" else []), urls=(url,)))
        script.process.send_signal(ends)
        condition = named(console, kind, only=False)
        for _ in range(40):
            console.look(0.1)
        assert {each.kind for each in console.report().conditions} == {kind}
    assert condition.who == f"{role} {script.process.pid} on {HERE}"
    assert condition.where == f"feed planted, {url}"


def test_a_crowd_of_peers() -> None:
    feed = new_feed(max_peers=40)
    with (
        Publisher(feed) as publisher,
        served(publisher) as url,
        consoled(feed, urls=(url,)) as console,
        zmq.Context() as context,
        ExitStack() as stack,
    ):
        for _ in range(60):
            peer = stack.enter_context(context.socket(zmq.SUB))
            peer.linger = 0
            peer.connect(feed.slices[0].lines[0])
            peer.subscribe(b"T")
        condition = named(console, "crowd_of_peers")
    assert condition.who == own("publisher")
    assert "connections, limit 40" in condition.why


def test_a_wrong_key(tmp_path: Path) -> None:
    keyring, feed = Keyring(tmp_path, "exchange", "desk", "stranger"), new_feed()
    keyring.allow("exchange", "desk")
    with (
        Publisher(keyring.feed(feed, "exchange")) as publisher,
        served(publisher) as url,
        consoled(keyring.feed(feed, "desk", "exchange"), urls=(url,)) as console,
        Heartbeats(keyring.feed(feed, "stranger", "exchange")),
    ):
        condition = named(console, "wrong_key")
    assert condition.who == own("publisher")
    assert "refused because of a wrong or missing key" in condition.why


def test_a_silent_line() -> None:
    feed = msgspec.structs.replace(new_feed(lines=2), heartbeat_ns=500_000_000)
    lines = [0, 1]
    with (
        RawPublisher(feed) as publisher,
        repeated(lambda: publisher.heartbeat(lines=lines)),
        consoled(feed) as console,
    ):
        lines.remove(1)
        condition = named(console, "silent_line")
    assert condition.who == "line B of planted slice 0"
    assert "expected one every 500 ms" in condition.why


def test_a_late_publisher() -> None:
    feed = new_feed()
    subscriber = Subscriber(feed, slow=SlowPolicy("warn", 60))
    subscriber.on(b"")(lambda message: None)
    late_ns = [0]

    def send() -> None:
        publisher.send(publisher.encode([(b"T", b"")], ts_in=time.time_ns() - late_ns[0]))

    with (
        RawPublisher(feed) as publisher,
        subscriber,
        served(subscriber) as url,
        repeated(send),
        consoled(urls=(url,)) as console,
    ):
        late_ns[0] = 3_000_000_000
        condition = named(console, "late_publisher")
    assert condition.who == "publisher of planted"
    assert "in the publisher of planted before they were sent, limit 1.00 s" in condition.why


def test_a_full_queue() -> None:
    feed = new_feed()
    publisher = Publisher(feed, when_full="wait", hwm_blocks=2)
    ending = threading.Event()

    def publish() -> None:
        while not ending.is_set():
            publisher.publish(b"T", bytes(100_000))

    thread = threading.Thread(target=publish)
    with publisher, served(publisher) as url, consoled(urls=(url,)) as console, zmq.Context() as context:
        with context.socket(zmq.SUB) as peer:
            peer.linger, peer.rcvhwm, peer.rcvbuf = 0, 1, 4_096
            peer.connect(feed.slices[0].lines[0])
            peer.subscribe(b"")
            thread.start()
            condition = named(console, "full_queue")
            ending.set()
        thread.join()
    assert condition.who == own("publisher")
    assert "of the time for" in condition.why or "has taken next to nothing for" in condition.why
