"""Settings from the environment: each kind of value, unknown names, and which feed files they apply to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Feed
from blackbox.cli.ui.feeds import LOCAL, load_feed
from blackbox.errors import ConfigError
from blackbox.feed.environment import PREFIX, override
from blackbox.feed.monitor import Monitor
from tests.support import ROOT

FILE = """
name = "local"
archives = ["tcp://127.0.0.1:17100"]
[[slices]]
endpoints = ["tcp://127.0.0.1:17101"]
share = [0, 2]
[[slices]]
endpoints = ["tcp://127.0.0.1:17102"]
share = [1, 2]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "feed.toml"
    path.write_text(FILE)
    return path


def load(file: Path, **variables: str) -> Feed:
    return Feed.load(file, environment={f"{PREFIX}{name}": value for name, value in variables.items()})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MAX_LAG_NS": "5_000_000"}, {"max_lag_ns": 5_000_000}),
        ({"BLOCK_BYTES": "65536", "KEY_BYTES": "4"}, {"block_bytes": 65_536, "key_bytes": 4}),
        ({"CHECKSUM": "false"}, {"checksum": False}),
        ({"CHECKSUM": "1"}, {"checksum": True}),
        ({"NAME": "17"}, {"name": "17"}),
        ({"SEPARATOR": ",", "TIME_ZONE": "UTC"}, {"separator": ",", "time_zone": "UTC"}),
        ({"ARCHIVES": "tcp://10.0.0.7:1, tcp://10.0.0.8:1"}, {"archives": ("tcp://10.0.0.7:1", "tcp://10.0.0.8:1")}),
        ({"ARCHIVES": ""}, {"archives": ()}),
    ],
)
def test_variables_override_settings_of_the_file(
    file: Path, variables: dict[str, str], expected: dict[str, object]
) -> None:
    feed = load(file, **variables)
    assert feed == msgspec.structs.replace(load(file), **expected)


def test_variables_override_settings_of_one_slice(file: Path) -> None:
    feed = load(file, SLICES_1_ENDPOINTS="tcp://10.0.0.7:5,shm://x", SLICES_1_CPUS="2,3", SLICES_1_BIND="tcp://*:5")
    first, second = feed.slices
    assert first == load(file).slices[0]
    assert second.endpoints == ("tcp://10.0.0.7:5", "shm://x")
    assert (second.cpus, second.bind, second.share) == ((2, 3), "tcp://*:5", (1, 2))


def test_a_table_that_the_file_lacks_is_made(file: Path) -> None:
    security = load(file, SECURITY_KEY="me.key_secret", SECURITY_SERVER_KEYS="a.key,b.key").security
    assert security is not None
    assert security.key == str(file.parent / "me.key_secret")
    assert security.server_keys == (str(file.parent / "a.key"), str(file.parent / "b.key"))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MAX_LAG", "1", "BLACKBOX_FEED_MAX_LAG is not a setting of a feed: did you mean BLACKBOX_FEED_MAX_LAG_NS?"),
        ("SLICES_0_CONNECT", "x", "BLACKBOX_FEED_SLICES_0_CONNECT is not a setting of a feed: expected one of "),
        ("SLICES_0_ENDPOINT", "x", "did you mean BLACKBOX_FEED_SLICES_0_ENDPOINTS?"),
        ("SLICE_0_BIND", "x", "did you mean BLACKBOX_FEED_SLICES_0_BIND?"),
        ("SLICES", "x", "BLACKBOX_FEED_SLICES is not a setting of a feed: "),
        ("SECURITY_KEYS", "x", "did you mean BLACKBOX_FEED_SECURITY_KEY?"),
        ("SLICES_2_BIND", "x", "BLACKBOX_FEED_SLICES_2_BIND is of slices[2], expected 0 to 1: the feed file has 2"),
        ("MAX_LAG_NS", "1s", "BLACKBOX_FEED_MAX_LAG_NS was '1s', expected a whole number"),
        ("CHECKSUM", "maybe", "BLACKBOX_FEED_CHECKSUM was 'maybe', expected true or false"),
        ("SLICES_0_SHARE", "1", "BLACKBOX_FEED_SLICES_0_SHARE was '1', expected 2 numbers separated by commas"),
        ("SLICES_0_CPUS", "a,b", "BLACKBOX_FEED_SLICES_0_CPUS was 'a,b', expected numbers separated by commas"),
        ("MAX_LAG_NS", "0", "max_lag_ns was 0, expected 1 to"),
    ],
)
def test_a_wrong_variable_is_named_in_one_error(file: Path, name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, **{name: value})
    assert text in str(caught.value)
    assert str(file) in str(caught.value)
    assert f"{PREFIX}{name}" in str(caught.value)


def test_a_file_without_slices_raises_the_same_error_with_variables(tmp_path: Path) -> None:
    for text in ('name = "x"', 'name = "x"\nslices = 3', 'name = "x"\nslices = [3]'):
        (tmp_path / "feed.toml").write_text(text)
        with pytest.raises(ConfigError, match="slices"):
            load(tmp_path / "feed.toml", SLICES_0_BIND="tcp://*:5")


def test_other_variables_are_ignored() -> None:
    document: dict[str, Any] = {"name": "x"}
    assert override(document, Feed, {"BLACKBOX_LOG_LEVEL": "info", "BLACKBOX_FEED": "x", "PATH": "/bin"}) == []
    assert document == {"name": "x"}


def test_commands_apply_variables_to_a_file_and_to_the_built_in_feed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLACKBOX_FEED_NAME", "renamed")
    monkeypatch.setenv("BLACKBOX_FEED_MONITOR_CONSOLE", "ipc:///run/console")
    changed = {"name": "renamed", "monitor": Monitor(console="ipc:///run/console")}
    assert load_feed(str(file)) == msgspec.structs.replace(load(file), **changed)
    assert load_feed(None) == msgspec.structs.replace(LOCAL, **changed)


def test_the_shipped_files_can_be_loaded_with_overrides() -> None:
    for path in (ROOT / "configs").glob("*.toml"):
        assert Feed.load(path, environment={"BLACKBOX_FEED_SLICES_0_IDLE": "spin"}).slices[0].idle == "spin"
