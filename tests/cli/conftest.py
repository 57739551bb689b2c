"""A feed on free ports, a terminal, and a recorded day with a gap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed
from tests.cli.commands import Place, Screen, write_feed
from tests.cli.days import recorded_day
from tests.journals import Day

HEARTBEAT_NS = 50_000_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    feed = msgspec.structs.replace(Feed.local("cli"), heartbeat_ns=HEARTBEAT_NS)
    return Place(feed, write_feed(feed, tmp_path / "feed.toml"))


@pytest.fixture
def screen() -> Iterator[Screen]:
    with closing(Screen()) as screen:
        yield screen


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return recorded_day(tmp_path / "recordings" / "recorded" / "2026-11-20")
