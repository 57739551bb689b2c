"""Feeds with several slices, for tests that publish nothing, and packages with plug-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blackbox.feed.feed import Feed
from blackbox.feed.slice import Slice


def feed_of_prefixes(*prefixes: tuple[str, ...]) -> Feed:
    return feed_of(*({"prefixes": held} for held in prefixes))


def feed_of_shares(*shares: tuple[int, int]) -> Feed:
    return feed_of(*({"share": share} for share in shares))


def feed_of(*slices: dict[str, Any]) -> Feed:
    """Return a feed of slices with these settings."""
    made = (Slice(endpoints=(f"tcp://127.0.0.1:{17_001 + number}",), **each) for number, each in enumerate(slices))
    return Feed(name="test", slices=tuple(made))


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, entry_points: str, name: str = "demo") -> None:
    """Install a distribution that consists of metadata only, and of the modules in `directory`."""
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(directory)
