"""Too few file descriptors or threads raise an error that names the limit; libzmq alone would end the process."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from blackbox import Feed, Publisher, Subscriber
from blackbox.publish.send.slice_sender import needs_of as needs_of_sender
from blackbox.receive.slices.slice_thread import needs_of as needs_of_receiver
from blackbox.testing import wait_until
from tests.cli.commands import write_feed
from tests.cli.days import recorded_day
from tests.examples import first_of
from tests.process_state import held, linux_only
from tests.support import ROOT
from tests.torture.limits import Limits

pytestmark = linux_only
NAMES = {"descriptors": "RLIMIT_NOFILE", "threads": "RLIMIT_NPROC"}


def run_limited(words: list[str], what: int, limit: int) -> subprocess.CompletedProcess[str]:
    """Run a command under system limits."""
    return subprocess.run(
        [sys.executable, "-m", "blackbox.cli", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds"},
        preexec_fn=lambda: resource.setrlimit(what, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.fixture(scope="module")
def limits() -> Iterator[Limits]:
    with Limits(slices=2) as made:
        yield made


# Thread limits do not apply to root, and another user cannot write a recorder's compiled kernels.
@pytest.mark.parametrize(
    ("kind", "what"),
    first_of(
        [
            ("publisher", "threads"),
            ("subscriber", "descriptors"),
            ("processes", "descriptors"),
            ("replay_to_the_wire", "threads"),
            ("recorder", "descriptors"),
            ("replay_to_callbacks", "descriptors"),
            ("publisher", "descriptors"),
            ("subscriber", "threads"),
            ("processes", "threads"),
            ("replay_to_callbacks", "threads"),
            ("replay_to_the_wire", "descriptors"),
        ],
        keep=4,
    ),
)
def test_too_few_descriptors_or_threads_are_reported(limits: Limits, kind: str, what: str) -> None:
    said = [limits.attempt(kind, what, more) for more in (2, 5, 9, 14, 20, 27, 60)]
    refused = [line for line in said if line != "worked"]
    assert said == refused + ["worked"] * (len(said) - len(refused))
    assert len(refused) < len(said)
    for line in refused:
        assert line.startswith("LimitError: ")
        assert NAMES[what] in line


MEMORY_MIB = (250, 600)


@pytest.mark.parametrize("command", first_of(["replay", "publish", "subscribe", "record", "stat"]))
def test_a_command_without_memory_reports_it_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "recordings").mkdir()
    feed = str(write_feed(Feed.local("memory", slices=2), tmp_path / "feed.toml"))
    day = recorded_day(tmp_path / "day").path
    words = {
        "publish": "synthetic:10 --wait-for 0",
        "subscribe": "--timeout 0.1",
        "record": f"--out {tmp_path / 'recordings'} --timeout 0.1",
        "replay": f"{day} --timeout 0.1",
        "stat": "--timeout 0.1 --once",
    }[command]
    refused = []
    for limit in MEMORY_MIB:
        ended = run_limited([command, *words.split(), "--feed", feed], resource.RLIMIT_AS, limit << 20)
        assert ended.returncode in (0, 1), (limit, ended.stderr)
        assert "Traceback" not in ended.stderr, limit
        errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == ended.returncode, (limit, ended.stderr)
        if errors and not re.search("no publisher|too few subscribers", errors[0]):
            assert "RLIMIT_AS" in errors[0], limit
            refused.append(limit)
    assert refused[:1] == [250]


@pytest.mark.own_process
def test_checked_needs_equal_opened_resources() -> None:
    feed = Feed.local("limits", slices=2, lines=2)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    before = held()
    with Publisher(feed) as publisher, subscriber:
        wait_until(lambda: publisher.statistics().subscribers == 1)
        now = held()
        options = subscriber._options
        needs = [
            need for part in feed.slices for need in chain(needs_of_sender(part), needs_of_receiver(part, options))
        ]
        threads = sum(need.threads for need in needs) + 1  # one more: the supervisor
        wait_until(lambda: held()[0] - before[0] <= threads, what="threads of the warm-up have ended")
    descriptors = sum(need.descriptors for need in needs)
    assert 0.8 * descriptors < now[1] - before[1] <= descriptors


@pytest.mark.parametrize(
    ("words", "limit"),
    first_of(
        [
            ("publish synthetic:10", 9),
            ("record --out {dir}", 26),
            ("stat", 16),
            ("subscribe", 26),
            ("replay {dir}/local", 9),
            ("publish synthetic:10", 26),
            ("subscribe", 9),
            ("record --out {dir}", 9),
        ],
    ),
)
def test_a_command_without_descriptors_reports_it_in_one_line(tmp_path: Path, words: str, limit: int) -> None:
    ended = run_limited(words.format(dir=tmp_path).split(), resource.RLIMIT_NOFILE, limit)
    assert ended.returncode == 1
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert re.search(r"free file descriptors were \d+, expected \d+", line)
    assert "RLIMIT_NOFILE" in line
    assert "Traceback" not in ended.stderr
