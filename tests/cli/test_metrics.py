"""`--metrics` of the long-running commands, and what they send to systemd."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse

from blackbox import Feed, Publisher, Subscriber
from blackbox.cli.ui.monitored import METRICS_VARIABLE
from blackbox.cli.ui.status import Status
from blackbox.services.monitor.serve.status import decode_statuses
from blackbox.services.monitor.serve.systemd import Notifier
from blackbox.services.monitor.serve.watched import Watched
from blackbox.testing import wait_until
from tests.cli.commands import Command, Place, invoke, write_feed
from tests.cli.test_program import COMMANDS, command_of

LONG_RUNNING = {"publish", "subscribe", "record", "serve", "replay", "relay", "hub", "bridge"}


def test_every_long_running_command_serves_metrics() -> None:
    having = {command for command in COMMANDS if any("--metrics" in each.opts for each in command_of(command).params)}
    assert having == LONG_RUNNING


def url_of(command: Command) -> str:
    assert command.process.stderr is not None
    for line in command.process.stderr:
        if found := re.search(r"metrics are at (http://\S+)/metrics", line):
            return found[1]
    raise AssertionError("the command reported no address")


def roles(url: str) -> list[str]:
    with urlopen(f"{url}/status", timeout=200) as answer:
        return [each.role for each in decode_statuses(answer.read()) if each.ready]


def test_metrics_of_a_recorder_and_a_relay_while_they_run(place: Place, tmp_path: Path) -> None:
    feed = replace(place.feed, slices=Feed.local("cli").slices)
    below = write_feed(feed, tmp_path / "below.toml")
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(place.feed))
        words = ("--metrics", "127.0.0.1:0")
        record = stack.enter_context(Command("record", "--feed", place.path, "--out", tmp_path / "days", *words))
        relay = stack.enter_context(Command("relay", place.path, below, "--json", *words))
        recorder_at, relay_at = url_of(record), url_of(relay)
        wait_until(lambda: roles(recorder_at) == ["recorder"], 200, "the recorder")
        wait_until(lambda: roles(relay_at) == ["relay"], 200, "the relay")
        publisher.wait_for_subscribers()  # else messages are not wanted, and not sent
        for _ in range(5):
            publisher.publish(b"A.t", b"1")

        def recorded() -> float:
            with urlopen(f"{recorder_at}/metrics", timeout=200) as answer:
                families = parse(answer.read().decode())
            return sum(
                each.value
                for family in families
                for each in family.samples
                if each.name == "blackbox_recorder_messages_total"
            )

        wait_until(lambda: recorded() == 5, what="the recorded messages")
        assert record.interrupt(signal.SIGHUP).status == 129
        ended = relay.interrupt(signal.SIGTERM)
        assert (ended.status, len(json.loads(ended.out)["lines"])) == (143, len(feed.slices))
        with pytest.raises(OSError, match="refused"):
            urlopen(f"{recorder_at}/metrics", timeout=200)


def test_an_address_in_use_or_malformed_ends_the_command_before_its_work(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        arguments = ("subscribe", "--feed", place.path, "--metrics")
        ended = invoke(*arguments, where)
        assert (ended.status, ended.errors.splitlines()[-1]) == (
            Status.ERROR,
            f"error: metrics address {where} is in use",
        )
        assert "expected HOST:PORT" in invoke(*arguments, "somewhere").errors
        monkeypatch.setenv(METRICS_VARIABLE, where)
        assert f"metrics address {where} is in use" in invoke(*arguments[:-1]).errors


class ServiceManager:
    """The socket of a service manager, in an abstract address."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0blackbox-test-{os.getpid()}-{id(self)}")
        self.socket.settimeout(60)
        self.address = "@" + self.socket.getsockname()[1:].decode()

    def read(self) -> list[str]:
        return self.socket.recv(1 << 16).decode().splitlines()


def test_systemd_hears_when_a_subscriber_has_begun_is_alive_and_stops() -> None:
    feed = Feed.local("service", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    manager = ServiceManager()
    with manager.socket, Publisher(feed):
        environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
        watched = Watched(subscriber)
        notifier = Notifier(watched, environment)
        notifier.look()
        assert manager.read() == ["STATUS=The subscriber is new, and not yet running.", "WATCHDOG=1"]
        with subscriber:
            wait_until(lambda: watched.look().is_ready, what="readiness")
            notifier.look()
            assert manager.read() == ["READY=1", "STATUS=ready", "WATCHDOG=1"]
            lost = Notifier(watched, environment | {"NOTIFY_SOCKET": f"{manager.address}-not-there"})
            lost.look()  # it does not arrive
            lost._address = manager.address
            lost.look()
            assert manager.read() == ["READY=1", "STATUS=ready", "WATCHDOG=1"]
            lost.look()
            assert manager.read() == ["WATCHDOG=1"]
            subscriber._supervisor.error = RuntimeError("broken")  # type: ignore[assignment]
            wait_until(lambda: not watched.look().is_healthy, what="the fault")
            notifier.look()
            assert manager.read() == ["STATUS=It has ended with an error: broken."]
            subscriber._supervisor.error = None
        notifier.start()
        assert "WATCHDOG=1" in manager.read()
        notifier.stop()
        wait_until(lambda: manager.read() == ["STOPPING=1"], what="the last message")
        Notifier(watched, {}).start()
        Notifier(watched, environment | {"WATCHDOG_PID": "1"}).look()
        assert "WATCHDOG=1" not in manager.read()
