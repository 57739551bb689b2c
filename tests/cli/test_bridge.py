"""`blackbox bridge`."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from blackbox import Feed, Publisher
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import Command, Place, assert_one_line, invoke, write_feed
from tests.hub.hubs import hub_feed


def test_a_feed_is_served_to_a_limited_number_of_browsers_until_sigterm(place: Place) -> None:
    url = free_endpoints("tcp", "bridged", 1, 1)[0][0].replace("tcp", "ws")
    words = ("bridge", url, "-o", "most_clients=1", "--feed", place.path)
    with Publisher(place.feed) as publisher, Command(*words) as bridge:
        bridge.read_error(f"is served at {url}")
        with connect(url) as client:
            client.send('{"do": "subscribe", "prefix": "A"}')
            assert json.loads(client.recv(60)) == {"subscribed": "A"}
            publisher.publish(b"A", b"x")
            assert json.loads(client.recv(60))["messages"][0]["payload"] == "eA=="
            with connect(url) as other, pytest.raises(ConnectionClosed) as closed:
                other.recv(60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
        ended = bridge.interrupt(signal.SIGTERM)
    assert ended.status == 143, ended.errors
    assert "1 messages sent, 0 dropped, 1 clients refused" in ended.errors


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheme", "way"),
    [("redis", ("--in",)), ("amqp", ()), ("amqp", ("--in",)), ("redis", ())],
)
def test_a_bridge_waiting_for_an_unreachable_system_ends_at_sigterm(
    scheme: str, way: tuple[str, ...], tmp_path: Path
) -> None:
    feed = Feed.local("bridged", slices=1) if scheme == "amqp" else hub_feed("bridged", slices=1)
    file = write_feed(feed, tmp_path / "feed.toml")
    with Command("bridge", f"{scheme}://127.0.0.1:1", *way, "--feed", file) as bridge:
        bridge.read_error(f"{scheme}://127.0.0.1:1 is unreachable, retrying")
        ended = bridge.interrupt(signal.SIGTERM)
    assert ended.status == 143, ended.errors
    assert "is away" not in ended.errors


def test_a_password_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        "blackbox.services.bridge.bridge.open_bridge", lambda _feed, url, *_, **_options: made.append(url)
    )
    (tmp_path / "secret").write_text("p@ss:w/rd\n")
    for words, variable in ((("--password-file", tmp_path / "secret"), ""), ((), "p@ss:w/rd")):
        monkeypatch.setenv("BLACKBOX_BRIDGE_PASSWORD", variable)
        with pytest.raises(AttributeError):  # the fake returns no bridge
            invoke("bridge", "redis://desk@127.0.0.1:1/0", *words)
    assert made == 2 * ["redis://desk:p%40ss%3Aw%2Frd@127.0.0.1:1/0"]


def test_a_file_without_a_password_is_one_clear_error(tmp_path: Path) -> None:
    words = ("bridge", "redis://desk@127.0.0.1:1/0", "--password-file")
    for text in (b"", b"\n", b"one\ntwo\n", b"x" * 5_000, b"\xff\n"):
        (tmp_path / "secret").write_bytes(text)
        assert_one_line(invoke(*words, tmp_path / "secret"), re.escape(f"{tmp_path}/secret ") + ".*expected")
    assert_one_line(invoke(*words, tmp_path / "none"), re.escape(f"{tmp_path}/none: No such file or directory"))


def test_a_password_on_the_command_line_causes_a_warning_and_is_not_shown() -> None:
    ended = invoke("bridge", "redis://desk:SECRET@127.0.0.1:1/0/wrong")
    assert "warning: all users of this host can read the password in URL: use --password-file" in ended.errors
    assert "SECRET" not in ended.errors
