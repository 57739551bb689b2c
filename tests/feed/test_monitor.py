"""The `[monitor]` table of a feed file."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import ConfigError, Feed
from blackbox.feed.feed import as_recorded
from blackbox.feed.monitor import Monitor, check_watched
from blackbox.feed.toml import to_toml

FILE = """
name = "watched"
[[slices]]
endpoints = ["tcp://127.0.0.1:17201"]
[monitor]
console = "tcp://127.0.0.1:9400"
watch = ["http://127.0.0.1:9300", "http://[::1]:9301/status"]
max_peers = 50
"""


def test_a_feed_file_has_a_table_for_monitors(tmp_path: Path) -> None:
    (tmp_path / "feed.toml").write_text(FILE)
    feed = Feed.load(tmp_path / "feed.toml", environment={"BLACKBOX_FEED_MONITOR_CONSOLE": "ipc:///run/console"})
    watch = ("http://127.0.0.1:9300", "http://[::1]:9301/status")
    assert feed.monitor == Monitor(console="ipc:///run/console", watch=watch, max_peers=50)
    assert as_recorded(feed).monitor is None
    (tmp_path / "again.toml").write_text(to_toml(feed))
    assert Feed.load(tmp_path / "again.toml") == feed


def test_pages_to_watch_are_set_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "feed.toml").write_text(FILE)
    watch = {"BLACKBOX_FEED_MONITOR_WATCH": "http://10.0.0.5:9300, day=http://10.0.0.6:9300"}
    monitor = Feed.load(tmp_path / "feed.toml", environment=watch).monitor
    assert monitor is not None
    assert monitor.watch == ("http://10.0.0.5:9300", "day=http://10.0.0.6:9300")
    many = {"BLACKBOX_FEED_MONITOR_WATCH": ",".join(["http://10.0.0.5:9300"] * 257)}
    with pytest.raises(ConfigError, match="MONITOR_WATCH was .*, expected texts separated by commas"):
        Feed.load(tmp_path / "feed.toml", environment=many)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://localhost:9300", ("http://localhost:9300", "", "localhost", 9300, "/status")),
        ("http://10.0.0.5:9300/", ("http://10.0.0.5:9300/", "", "10.0.0.5", 9300, "/status")),
        ("day-2=http://[::1]:80/a=b", ("http://[::1]:80/a=b", "day-2", "::1", 80, "/a=b")),
    ],
)
def test_a_page_to_watch_is_an_http_url_maybe_with_a_name(text: str, parts: tuple[str, str, str, int, str]) -> None:
    assert check_watched(text) == parts


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"console": "inproc://console"}, "console was 'inproc://console', expected tcp:// or ipc://"),
        ({"console": "localhost:9"}, "endpoint was 'localhost:9'"),
        ({"watch": ("https://a:1",)}, "URL to watch was 'https://a:1', expected http://HOST:PORT"),
        ({"watch": ("http://a:99999",)}, "URL to watch was 'http://a:99999'"),
        ({"watch": ("http://a\r\nb:1",)}, "URL to watch was"),
        ({"watch": ("=http://a:1",)}, "URL to watch was '=http://a:1'"),
        ({"watch": ("http://a:1",) * 257}, "watch"),
        ({"max_peers": 0}, "max_peers was 0, expected 1 to"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error.replace("(", r"\(")):
        Monitor(**setting)  # type: ignore[arg-type]
