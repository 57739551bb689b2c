"""The command line, each command as a process of its own: what it does, prints, and exits with."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import pytest
import zmq
from typer.testing import CliRunner

from blackbox import ConfigError, Feed, Publisher
from blackbox.cli import app, publish, subscription
from blackbox.cli.feeds import LOCAL, feed_for, open_with_options
from blackbox.cli.status import Status
from blackbox.cli.symbols import SymbolOf
from blackbox.slice_memory import EXIT_SLOW
from blackbox.testing import RawPublisher, wait_until

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("demo", "publish", "subscribe", "record", "replay", "stat", "steer")
HEARTBEAT_NS = 50_000_000


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    errors: str

    def value(self, name: str) -> int:
        """A number of a table of names and values."""
        found = re.search(rf"│ {name} +│ +([\d,]+) │", self.out)
        assert found is not None, f"no {name!r} in\n{self.out}{self.errors}"
        return int(found[1].replace(",", ""))


class Command:
    """A `blackbox` process; killed when the `with` block is left."""

    def __init__(
        self,
        *words: object,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        stdin: int | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "blackbox.cli", *map(str, words)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def read_error(self, text: str) -> None:
        """Wait until a line on stderr contains `text`."""
        self._read(self.process.stderr, text)

    def read_out(self, text: str) -> None:
        """Wait until a line on stdout contains `text`."""
        self._read(self.process.stdout, text)

    def _read(self, lines: IO[str] | None, text: str) -> None:
        assert lines is not None
        for line in lines:
            if text in line:
                return
        raise AssertionError(f"the command ended without saying {text!r}")

    def end(self, timeout: float = 60.0) -> Ended:
        """Wait for its end."""
        out, errors = self.process.communicate(timeout=timeout)
        return Ended(self.process.returncode, out or "", errors or "")

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> Ended:
        """Send a signal, wait for its end."""
        self.process.send_signal(number)
        return self.end()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Place(NamedTuple):
    """A feed on free ports, and the file that says so."""

    feed: Feed
    path: Path


def write_feed(feed: Feed, path: Path) -> Path:
    """The feed as TOML."""
    lines = [f'name = "{feed.name}"', f'schema = "{feed.schema}"', f"heartbeat_ns = {feed.heartbeat_ns}"]
    for part in feed.slices:
        lines += ["[[slices]]", f"endpoints = {list(part.endpoints)}", f"share = {list(part.share or ())}"]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    feed = msgspec.structs.replace(Feed.local("cli"), heartbeat_ns=HEARTBEAT_NS)
    return Place(feed, write_feed(feed, tmp_path / "feed.toml"))


def receive(place: Place, source: str, options: Sequence[str] = ()) -> tuple[Ended, Ended]:
    """Publish a source to `subscribe --until-end`: how publisher and subscriber ended."""
    with (
        Command("subscribe", "--feed", place.path, "--until-end", *options) as subscriber,
        Command("publish", source, "--feed", place.path) as publisher,
    ):
        return publisher.end(), subscriber.end()


def invoke(*words: object) -> Ended:
    """Run a command in this process: for what opens no socket."""
    result = CliRunner().invoke(app, list(map(str, words)))
    return Ended(result.exit_code, result.stdout, result.stderr)


def assert_one_line(ended: Ended, pattern: str) -> None:
    """Exactly one line on stderr is an error, of this form, and there is no traceback."""
    errors = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.errors
    assert re.search(pattern, errors[0]), errors[0]
    assert "Traceback" not in ended.errors


# What the commands do


def test_what_is_published_is_received_shown_and_counted(place: Place) -> None:
    publisher, subscriber = receive(place, "synthetic:20000", ["--show", "3"])
    assert (publisher.status, subscriber.status) == (0, 0), publisher.errors + subscriber.errors
    assert publisher.value("messages") == subscriber.value("received") == subscriber.value("delivered") == 20_000
    assert publisher.value("symbols") == subscriber.value("symbols") == 999
    assert publisher.value("topics") == subscriber.value("topics")
    assert [publisher.value(name) for name in ("unwanted", "discarded")] == [0, 0]
    assert [subscriber.value(name) for name in ("lost", "duplicated", "dropped", "malformed")] == [0, 0, 0, 0]
    for side in (publisher, subscriber):
        assert re.search(r"│ schema +│ +itch50 │", side.out)
    assert "waiting for the publishers of feed 'cli' (2 slices)\n" in subscriber.errors
    shown = [line for line in subscriber.out.splitlines() if " message_type=" in line]
    assert len(shown) == 3
    assert all(re.match(r"2026-01-05T\d\d:\d\d:\d\d\.\d{9}Z \S+\.\w message_type=\w ", line) for line in shown)


def test_prefixes_and_processes(place: Place) -> None:
    publisher, subscriber = receive(place, "synthetic:20000", ["AAPL.", "MSFT.", "--processes", "--show", "2"])
    assert (publisher.status, subscriber.status) == (0, 0), publisher.errors + subscriber.errors
    assert subscriber.value("symbols") == 2
    assert re.search(r"│ schema +│ +itch50 │", subscriber.out)
    assert 0 < subscriber.value("delivered") < 1_000
    shown = re.findall(r"^\S+Z (AAPL|MSFT)\.", subscriber.out, re.MULTILINE)
    assert len(shown) == 2


def test_a_real_day_is_received_without_a_gap(place: Place, shared_data: Path) -> None:
    publisher, subscriber = receive(place, f"iex:{shared_data / 'iex' / 'goiex_DEEP10.pcap.gz'}")
    assert (publisher.status, subscriber.status) == (0, 0), publisher.errors + subscriber.errors
    assert publisher.value("messages") == subscriber.value("delivered") == 391_999
    assert publisher.value("symbols") == subscriber.value("symbols") == 7_802
    assert subscriber.value("lost") == 0
    assert re.search(r"^warning: the source ended early: .* inside the pcap record", publisher.errors, re.MULTILINE)


def test_count_ends_a_subscription(place: Place) -> None:
    with Command("subscribe", "--feed", place.path, "--count", "500") as subscriber, Publisher(place.feed) as publisher:
        publisher.wait_for_subscribers(timeout=30.0)
        for number in range(500):
            publisher.publish(b"S%d.t" % (number % 7), b"payload")
        ended = subscriber.end()
    assert ended.status == 0, ended.errors
    assert ended.value("delivered") == 500


def test_publish_without_waiting_for_anybody(place: Place) -> None:
    with Command("publish", "synthetic:1000", "--feed", place.path, "--wait-for", "0") as publisher:
        ended = publisher.end()
    assert ended.status == 0, ended.errors
    assert (ended.value("messages"), ended.value("unwanted")) == (0, 1_000)
    assert "warning: nobody had subscribed: all 1,000 messages were unwanted, and none was sent" in ended.errors


def test_a_publisher_that_waits_names_the_slices_that_lack_subscribers(place: Place) -> None:
    with Command("publish", "synthetic:1000", "--feed", place.path) as publisher:
        publisher.read_error(
            "feed 'cli' (2 slices): slice 0 has 0, slice 1 has 0; to publish without them: --wait-for 0"
        )
        with Command("subscribe", "AAPL.", "--feed", place.path) as subscriber:
            subscriber.read_error("subscribed")
            other = 1 - place.feed.slice_of(b"AAPL.t")
            publisher.read_error(f"feed 'cli' (2 slices): slice {other} has 0; to publish without them: --wait-for 0")


def test_tables_explain_their_words(place: Place) -> None:
    publisher, subscriber = receive(place, "synthetic:1000")
    assert re.search(r"│ unwanted +│ +0 │ not sent: nobody had subscribed", publisher.out)
    assert re.search(r"│ discarded +│ +0 │ not sent: a subscriber did not take them", publisher.out)
    assert re.search(r"│ delivered +│ +1,000 │ to callbacks: counted once for each PREFIX", subscriber.out)
    assert re.search(r"│ lag p50 +│ .* │ lag: time from the publisher's sending to the callback", subscriber.out)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_live_tables_on_a_terminal(place: Place, terminal: tuple[int, int]) -> None:
    reader, writer = terminal
    with (
        Publisher(place.feed) as publisher,
        Command("subscribe", "AAPL.", "--feed", place.path, "--until-end", stderr=writer) as subscriber,
    ):
        publisher.wait_for_subscribers(b"AAPL.", timeout=30.0)
        publisher.publish(b"AAPL.trade", b"1")
        seen = ""
        while not re.search(r"slices.*callbacks.*AAPL\..* 1 ", seen, re.DOTALL):
            seen += os.read(reader, 65_536).decode(errors="replace")
        publisher.close()
        assert subscriber.end().status == 0


def test_progress_is_lines_where_there_is_no_terminal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(subscription, "LINE_EVERY_S", 0.0)
    with Publisher(place.feed) as publisher, ThreadPoolExecutor(1) as pool:

        def publish_one() -> None:
            publisher.wait_for_subscribers(timeout=30.0)
            publisher.publish(b"AAPL.t", b"payload")
            publisher.close()

        published = pool.submit(publish_one)
        received = invoke("subscribe", "--feed", place.path, "--until-end")
        published.result()
    assert received.status == 0
    assert re.search(r"^received [01] messages, .*/s, \d+ MB/s, lost 0, lag p99 ", received.errors, re.MULTILINE)
    ended = invoke("publish", "synthetic:300000", "--feed", place.path, "--wait-for", "0")
    assert re.search(r"^published 131,072 messages, .*/s, 0 MB/s$", ended.errors, re.MULTILINE)


# stat


def test_stat_tells_what_heartbeats_tell(place: Place) -> None:
    with Publisher(place.feed) as publisher:
        publisher.publish_many((b"A.t", b"B.t"), [0, 1, 0], b"abc", offsets=[0, 1, 2, 3])
        with Command("stat", "--feed", place.path, "--once", "--json", "--timeout", "30") as stat:
            ended = stat.end()
        epoch = f"{publisher.epoch:016x}"
    assert ended.status == 0, ended.errors
    lines = msgspec.json.decode(ended.out)
    assert [(line["slice_id"], line["line"], line["epoch"]) for line in lines] == [(0, "A", epoch), (1, "A", epoch)]
    assert sum(line["messages"] for line in lines) == 3
    assert all(line["is_alive"] and line["messages_per_second"] == 0.0 for line in lines)
    assert all(0 < line["heartbeat_lag_ns"] < 10**9 and line["last_heard_ns"] > 0 for line in lines)


def test_stat_is_no_subscriber_and_prints_a_table(place: Place) -> None:
    with Publisher(place.feed) as publisher, Command("stat", "--feed", place.path, "--once") as stat:
        ended = stat.end()
        assert publisher.statistics().subscribers == 0
    assert ended.status == 0, ended.errors
    assert re.search(r"│ 0 +│ A +│ tcp://127.0.0.1:\d+ +│ alive +│", ended.out)


def test_stat_without_a_publisher_is_an_error(place: Place) -> None:
    ended = invoke("stat", "--feed", place.path, "--once", "--timeout", "0.2")
    assert ended.status == Status.ERROR
    assert_one_line(ended, r"feed 'cli': no publisher was heard in 0\.2 s at tcp://")


def test_stat_that_runs_on_without_a_publisher_ends(place: Place, terminal: tuple[int, int]) -> None:
    reader, writer = terminal
    for options in ([], ["--json"]):
        with Command("stat", "--feed", place.path, "--timeout", "0.2", *options) as stat:
            ended = stat.end()
        assert ended.status == Status.ERROR
        assert_one_line(ended, r"feed 'cli': no publisher was heard in 0\.2 s at tcp://")
    with Command("stat", "--feed", place.path, "--timeout", "0.2", stdout=writer) as stat:
        assert stat.end().status == Status.ERROR
    assert "tcp://" in os.read(reader, 65_536).decode(errors="replace")


def test_stat_ends_when_the_publisher_closes(place: Place) -> None:
    with (
        Publisher(place.feed) as publisher,
        Command("stat", "--feed", place.path, "--json", "--timeout", "30") as stat,
    ):
        stat.read_out('"is_alive":true')
        publisher.close()
        ended = stat.end()
    assert ended.status == 0, ended.errors
    assert "feed 'cli' (2 slices): the publisher has closed" in ended.errors
    assert all(line["closed"] for line in msgspec.json.decode(ended.out.splitlines()[-1]))


def test_stat_ends_when_the_publisher_was_killed(place: Place) -> None:
    with (
        Command("publish", "synthetic:1000", "--feed", place.path) as publisher,
        Command("stat", "--feed", place.path, "--json", "--timeout", "2") as stat,
    ):
        stat.read_out('"is_alive":true')
        publisher.process.kill()
        ended = stat.end()
    assert ended.status == Status.ERROR
    assert_one_line(ended, r"feed 'cli': the publisher fell silent 2 s ago at tcp://")


# Exit statuses


def test_slow_subscriber_exits_with_its_own_status(place: Place) -> None:
    with (
        Publisher(place.feed) as publisher,
        Command("subscribe", "--feed", place.path, "--max-lag", "0.000001") as subscriber,
    ):
        publisher.wait_for_subscribers(timeout=30.0)
        publisher.publish(b"AAPL.t", b"payload")
        ended = subscriber.end()
    assert ended.status == Status.SLOW
    assert ended.status == EXIT_SLOW
    assert_one_line(ended, "slow subscriber: feed 'cli' slice . lags .* policy terminate")


def test_lost_messages_have_their_own_status(place: Place) -> None:
    with RawPublisher(place.feed) as raw, Command("subscribe", "--feed", place.path, "--until-end") as subscriber:
        for slice_id in range(2):
            wait_until(lambda at=slice_id: len(raw.subscriptions(at)) == 3, 30.0, "the subscription")  # type: ignore[misc]
        for sequence in (0, 5):
            raw.send(raw.encode([(b"AAPL.t", b"payload")], slice_id=place.feed.slice_of(b"AAPL.t"), sequence=sequence))
        raw.heartbeat(end=True)
        ended = subscriber.end()
    assert ended.status == Status.LOST, ended.errors
    assert (ended.value("delivered"), ended.value("lost")) == (2, 4)
    assert "lost: 4 messages never came" in ended.errors


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_subscriber_with_its_statistics(place: Place, number: signal.Signals, status: int) -> None:
    with Publisher(place.feed) as publisher, Command("subscribe", "--feed", place.path) as subscriber:
        subscriber.read_error("subscribed")
        publisher.publish(b"AAPL.t", b"payload")
        ended = subscriber.interrupt(number)
    assert ended.status == status, ended.errors
    assert ended.value("lost") == 0
    assert "Traceback" not in ended.errors


def test_interrupt_ends_a_publisher_that_waits(place: Place) -> None:
    with Command("publish", "synthetic:1000", "--feed", place.path) as publisher:
        publisher.read_error("waiting for 1 subscriber")
        ended = publisher.interrupt()
    assert (ended.status, ended.out) == (Status.INTERRUPTED, ""), ended.errors


def test_interrupt_ends_a_publisher_whose_subscriber_hangs(place: Place) -> None:
    with (
        Command("publish", "synthetic:3000000", "--feed", place.path) as publisher,
        zmq.Context() as context,
        context.socket(zmq.SUB) as hung,
    ):
        hung.rcvhwm = 1
        for part in place.feed.slices:
            hung.connect(part.endpoints[0])
        hung.subscribe(b"")
        while hung.recv_multipart()[0]:
            pass  # heartbeats; the key of data is empty
        ended = publisher.interrupt()
    assert ended.status == Status.INTERRUPTED, ended.errors
    assert 0 < ended.value("messages") < 3_000_000


def test_nobody_subscribes(place: Place) -> None:
    with Command("publish", "synthetic:1000", "--feed", place.path, "--timeout", "0.1") as publisher:
        ended = publisher.end()
    assert ended.status == Status.ERROR
    pattern = r"feed 'cli' \(2 slices\): too few subscribers after 0\.1 s: slice 0 has 0, slice 1 has 0, expected 1"
    assert_one_line(ended, pattern)


def test_nobody_publishes(place: Place) -> None:
    with Command("subscribe", "--feed", place.path, "--timeout", "0.1") as subscriber:
        ended = subscriber.end()
    assert (ended.status, ended.out) == (Status.ERROR, "")
    assert_one_line(ended, "slice 0: no publisher at tcp://.* confirmed the subscription in 0.1 s")


def test_port_in_use(place: Place) -> None:
    with Publisher(place.feed), Command("publish", "synthetic:1000", "--feed", place.path) as publisher:
        ended = publisher.end()
    assert ended.status == Status.ERROR
    assert_one_line(ended, r"slice 0: endpoint tcp://127\.0\.0\.1:\d+ is in use")


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ("itch50:DIR/20200130.itch", r"DIR/20200130\.itch: cannot be read: No such file .* expected an ITCH 5\.0 file"),
        ("itch50:DIR/day.itch", r"DIR/day\.itch: cannot be read: No such file .* expected an ITCH 5\.0 file"),
        ("itch50:DIR", r"DIR: cannot be read: Is a directory, expected an ITCH 5\.0 file"),
        ("itch50:/proc/self/mem", r"/proc/self/mem: cannot be read: Input/output error, expected an ITCH 5\.0 file"),
        ("itch50:DIR/text", r"text: the file name tells no one date .* e\.g\. `--option date=2019-12-30`"),
        ("itch50:DIR/text_20200130", r"text_20200130: no valid message starts at byte 0: .* expected one of"),
        ("itch50:DIR/empty_20200130", r"empty_20200130 .*holds no message, expected at least one"),
        ("iex:DIR/day.pcap", r"DIR/day\.pcap: cannot be read: No such file .* expected a pcap or pcapng capture"),
        ("iex:DIR", r"DIR: cannot be read: Is a directory, expected a pcap or pcapng capture"),
        ("iex:DIR/text", r"DIR/text: the first 4 bytes were .* expected those of a pcap or pcapng capture"),
    ],
)
def test_a_wrong_source_is_told_before_anything_is_bound(
    source: str, pattern: str, place: Place, tmp_path: Path
) -> None:
    for name in ("text", "text_20200130"):
        (tmp_path / name).write_text("no market data")
    (tmp_path / "empty_20200130").touch()
    spec = source.replace("DIR", str(tmp_path))
    # The ports are taken: to bind them would be another error.
    with Publisher(place.feed), Command("publish", spec, "--feed", place.path) as publisher:
        ended = publisher.end()
    assert ended.status == Status.ERROR
    assert_one_line(ended, pattern.replace("DIR", re.escape(str(tmp_path))))


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["publish", "synthetic"], "source was 'synthetic', expected NAME:ARGUMENT"),
        (["publish", "itch:x"], "source was 'itch', expected one of: .*itch50"),
        (["publish", "synthetic:10", "-o", "seed"], "option was 'seed', expected NAME=VALUE"),
        (["publish", "synthetic:10", "-o", "sead=1"], "option was 'sead', expected one of: seed"),
        (["publish", "itch50:nothing.bin", "-o", "date=2020-01-30", "--wait-for", "0"], "nothing.bin"),
        (["publish", "synthetic:10", "--feed", "no.toml"], "feed file 'no.toml' was not found"),
        (["subscribe", "--feed", "no.toml"], "feed file 'no.toml' was not found"),
        (["stat", "--feed", "no.toml"], "feed file 'no.toml' was not found"),
        (["demo", "--source", "iex:nothing.pcap"], "nothing.pcap"),
        (["steer", "ipc:///nobody/here", "pause", "--timeout", "0"], "no replay answered at ipc:///nobody/here"),
        (["steer", "localhost:17300"], "endpoint was 'localhost:17300', expected tcp://"),
    ],
)
def test_each_error_is_one_line_and_status_1(words: list[str], pattern: str, tmp_path: Path) -> None:
    if words[0] == "publish" and "--feed" not in words:
        words = [*words, "--feed", str(write_feed(Feed.local("errors"), tmp_path / "feed.toml"))]
    ended = invoke(*words)
    assert ended.status == Status.ERROR
    assert_one_line(ended, pattern)


@pytest.mark.parametrize(
    "words",
    [
        ["publish"],
        ["publish", "synthetic:10", "--when-full", "block"],
        ["subscribe", "--workers", "0"],
        ["subscribe", "--on-slow", "ignore"],
        ["stat", "--twice"],
        ["demo", "--messages", "0"],
        ["replay"],
        ["steer"],
        ["steer", "tcp://127.0.0.1:1", "jump"],
        ["steer", "tcp://127.0.0.1:1", "pause", "10"],
        ["steer", "tcp://127.0.0.1:1", "seek"],
        ["steer", "tcp://127.0.0.1:1", "speed"],
        ["steer", "tcp://127.0.0.1:1", "speed", "0"],
        ["steer", "tcp://127.0.0.1:1", "speed", "nan"],
        ["steer", "tcp://127.0.0.1:1", "step", "0"],
        ["steer", "tcp://127.0.0.1:1", "step", "half"],
        ["steer", "tcp://127.0.0.1:1", "step", "9" * 30],
    ],
)
def test_wrong_usage_is_status_2(words: list[str]) -> None:
    assert invoke(*words).status == Status.USAGE


# Help, and what needs no process


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_examples_and_names_the_exit_statuses(command: str) -> None:
    ended = invoke(command, "--help")
    assert ended.status == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", ended.out).split())
    assert "For example" in text
    assert text.count(f"blackbox {command}") >= 3
    assert "Exit status: 0 fine, 1 error" in text
    assert "130 Ctrl-C" in text


def test_the_program_lists_its_commands_and_version() -> None:
    assert all(command in invoke("--help").out for command in COMMANDS)
    assert re.fullmatch(r"blackbox \d+\.\d+\.\d+\n", invoke("--version").out)


def test_help_needs_nothing_heavy() -> None:
    script = "import sys, blackbox.cli; assert not {'numba', 'zmq', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_built_in_feed_is_that_of_the_configuration_file() -> None:
    assert Feed.load(ROOT / "configs" / "local.toml") == LOCAL


def test_the_source_decides_the_schema_of_a_raw_feed_only() -> None:
    source = open_with_options("synthetic:10", ["seed=3"], LOCAL)
    assert feed_for(LOCAL, source, "synthetic:10").schema == "itch50"
    tops = msgspec.structs.replace(LOCAL, schema="iex_tops16")
    with pytest.raises(
        ConfigError, match="feed 'local' has schema 'iex_tops16' but source 'synthetic:10' has 'itch50'"
    ):
        feed_for(tops, source, "synthetic:10")


def test_topics_are_made_as_the_feed_says() -> None:
    feed = msgspec.structs.replace(LOCAL, topic="x.{type}.{symbol}")
    (chunk,) = open_with_options("synthetic:10", None, feed).chunks()
    assert all(topic.startswith(b"x.") for topic in chunk.topics)


@pytest.mark.parametrize(
    ("template", "topic", "symbol"),
    [
        ("{symbol}.{type}", b"BRK.A.P", b"BRK.A"),
        ("{symbol}.{type}", b"AAPL.\n", b"AAPL"),
        ("{symbol}.{type}", b"BRK.A.trade", b"BRK.A"),
        ("{symbol}.{type}", b"strange", b"strange"),
        ("{type}/{symbol}/{locate}", b"P/BRK.A/13", b"BRK.A"),
        ("{type}.{symbol}", b"trade.BRK.A", b"BRK.A"),
        ("{symbol}", b"AAPL", b"AAPL"),
        ("{type}", b"P", b"P"),
    ],
)
def test_symbol_of_a_topic(template: str, topic: bytes, symbol: bytes) -> None:
    assert SymbolOf(template)(topic) == symbol


def test_symbols_are_counted_without_the_market_itself() -> None:
    assert SymbolOf("{symbol}.{type}").count([b"A.P", b"A.E", b"B.P", b"#system.S"]) == 2
