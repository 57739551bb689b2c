"""The table `[security]` of a feed file, and the warning if it is missing."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import msgspec
import pytest

from blackbox import ConfigError, Feed
from blackbox.feed import security
from blackbox.feed.feed import as_recorded, with_archive
from blackbox.feed.security import Security, is_loopback, warn_if_open
from blackbox.feed.slice import Slice

FILE = 'name = "quotes"\n[[slices]]\nendpoints = ["tcp://10.0.0.1:17001"]\n[security]\n'


def load(directory: Path, text: str) -> Feed:
    path = directory / "feed.toml"
    path.write_text(FILE + text)
    return Feed.load(path)


def test_paths_are_relative_to_the_feed_file(tmp_path: Path) -> None:
    text = 'key = "k/me.key_secret"\nserver_keys = ["k/it.key"]\nallowed_keys = "/etc/allowed"\n'
    found = load(tmp_path, text).security
    assert found == Security(
        key=str(tmp_path / "k/me.key_secret"), server_keys=(str(tmp_path / "k/it.key"),), allowed_keys="/etc/allowed"
    )


def test_a_slice_may_have_its_own_readers(tmp_path: Path) -> None:
    path = tmp_path / "feed.toml"
    path.write_text(FILE.replace("[security]", 'allowed_keys = "few"\n[security]\nkey = "me.key_secret"'))
    feed = Feed.load(path)
    assert feed.slices[0].allowed_keys == str(tmp_path / "few")
    assert "few" not in str(msgspec.to_builtins(as_recorded(feed)))
    path.write_text(FILE.replace("[security]", 'allowed_keys = "few"'))
    with pytest.raises(ConfigError, match=r"slice 0 had allowed_keys without a table \[security\], expected both"):
        Feed.load(path)


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/desk")
    feed = load(tmp_path, 'key = "~/me.key_secret"')
    assert feed.security is not None
    assert feed.security.key == "/home/desk/me.key_secret"
    unknown = load(tmp_path, 'key = "~no-such-user/me.key_secret"').security
    assert unknown is not None
    assert unknown.key == str(tmp_path / "~no-such-user/me.key_secret")
    assert pickle.loads(pickle.dumps(feed)) == feed
    assert msgspec.json.decode(msgspec.json.encode(feed), type=Feed) == feed


def test_each_line_and_each_archive_has_its_key() -> None:
    one = Security(key="me", server_keys=("a",))
    assert [one.key_of_line(line) for line in (0, 1)] == ["a", "a"]
    assert [one.key_of_archive(place) for place in (0, 1, 2)] == ["a", "a", "a"]
    two = Security(key="me", server_keys=("a", "b"), archive_keys=("x", "y"))
    assert [two.key_of_line(line) for line in (0, 1)] == ["a", "b"]
    assert [two.key_of_archive(place) for place in (0, 1)] == ["x", "y"]
    with pytest.raises(ConfigError, match=r"security\.archive_keys were 2, expected one for all or one for each"):
        two.key_of_archive(2)
    with pytest.raises(ConfigError, match=r"security\.server_keys were missing"):
        Security(key="me").key_of_line(0)


def test_one_archive_of_a_feed_keeps_its_key() -> None:
    feed = Feed(
        name="quotes",
        slices=(Slice(endpoints=("tcp://10.0.0.1:17001",)),),
        archives=("tcp://10.0.0.1:17100", "tcp://10.0.0.2:17100"),
        security=Security(key="me", archive_keys=("x", "y")),
    )
    alone = with_archive(feed, feed.archives[1])
    assert alone.archives == feed.archives[1:]
    assert alone.security is not None
    assert alone.security.key_of_archive(0) == "y"


def test_loopback_is_recognized() -> None:
    ours = ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "10.0.0.5:0;127.0.0.1:1")
    others = ("10.0.0.1:1", "[fe80::1]:1", "exchange.example:1")
    assert [address for address in (*ours, *others) if is_loopback(f"tcp://{address}")] == list(ours)


def test_a_feed_without_security_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "_warned", set[str]())
    with caplog.at_level(logging.WARNING, "blackbox"):
        for endpoint in ("ipc:///tmp/x", "inproc://x", "tcp://127.0.0.1:1"):
            warn_if_open("quotes", endpoint)
        assert caplog.messages == []
        for endpoint in ("tcp://10.0.0.1:17001", "tcp://10.0.0.1:17002"):
            warn_if_open("quotes", endpoint)
    (text,) = caplog.messages
    assert text.startswith("feed 'quotes' is open: tcp://10.0.0.1:17001 is neither encrypted nor")
