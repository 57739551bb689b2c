"""`blackbox bridge`."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import redis
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bench.rivals.servers import Missing, redis_server
from blackbox import Feed, Publisher
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.bridge.amqp.exchange import AmqpExchange
from blackbox.services.bridge.amqp.source import AmqpSource
from blackbox.services.bridge.bridge import open_bridge
from blackbox.services.bridge.redis.channels import RedisChannels
from blackbox.services.bridge.redis.group import RedisGroup
from blackbox.services.bridge.redis.listener import RedisListener
from tests.cli.commands import Command, Place, assert_one_line, invoke, write_feed
from tests.hub.hubs import hub_feed


@pytest.fixture
def place(tmp_path: Path) -> Place:
    feed = Feed.local("bridged", slices=1)
    return Place(feed, write_feed(feed, tmp_path / "feed.toml"))


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
    assert (ended.status, "Traceback" in ended.errors) == (143, False), ended.errors
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
    assert (ended.status, "Traceback" in ended.errors) == (143, False), ended.errors
    assert "is away" not in ended.errors


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("ws://127.0.0.1",), "URL was 'ws://127.0.0.1', expected ws://HOST:PORT"),
        (("http://127.0.0.1:8080",), "scheme of a bridge was 'http', expected one of: .*redis, .*ws"),
        (("ws://127.0.0.1:0", "-o", "keep=5"), "option was keep=5, expected one of ws://: origins, limit"),
        (("ws://127.0.0.1:0", "-o", "limit=many"), "option was limit=many, expected a number, such as limit=1000"),
    ],
)
def test_a_wrong_url_or_option_is_one_clear_error(place: Place, words: tuple[str, ...], error: str) -> None:
    assert_one_line(invoke("bridge", *words, "--feed", place.path), error)


@pytest.mark.parametrize(
    ("scheme", "into", "kind"),
    [
        ("redis+pubsub", False, RedisChannels),
        ("redis+pubsub", True, RedisListener),
        ("amqp", False, AmqpExchange),
        ("amqp", True, AmqpSource),
    ],
)
def test_a_scheme_opens_its_bridge(scheme: str, into: bool, kind: type) -> None:
    assert isinstance(
        open_bridge(hub_feed() if "redis" in scheme else Feed.local("x"), f"{scheme}://there", into=into), kind
    )


def test_a_name_may_be_a_number() -> None:
    bridge = open_bridge(hub_feed(), "redis://127.0.0.1:1", into=True, stream=7)
    assert isinstance(bridge, RedisGroup)
    assert bridge.stream == "7"


@pytest.mark.long
def test_a_feed_is_carried_to_redis_until_ctrl_c(place: Place) -> None:
    try:
        server = redis_server()
    except Missing as why:
        pytest.skip(str(why))
    with server, Command("bridge", server.url, "--prefix", "A", "--feed", place.path) as bridge:
        bridge.read_error("waits for its publishers")
        with Publisher(place.feed) as publisher, redis.Redis(port=server.port, protocol=2) as there:
            bridge.read_error(f"is carried to {server.url}")
            publisher.publish(b"A", b"x")
            assert there.xread({"bridged:0": "0"}, block=60_000)[0][1][0][1][b"payload"] == b"x"
        ended = bridge.interrupt()
    assert (ended.status, "Traceback" in ended.errors) == (130, False), ended.errors
    assert "1 messages added, 0 known before, 0 missing" in ended.errors


@pytest.mark.parametrize("way", ["file", "environment"])
def test_a_password_comes_from_a_file_or_the_environment(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        "blackbox.services.bridge.bridge.open_bridge", lambda _feed, url, *_, **_options: made.append(url)
    )
    words: tuple[object, ...] = ()
    if way == "file":
        (tmp_path / "secret").write_text("p@ss:w/rd\n")
        words = ("--password-file", tmp_path / "secret")
    else:
        monkeypatch.setenv("BLACKBOX_BRIDGE_PASSWORD", "p@ss:w/rd")
    with pytest.raises(AttributeError):  # the fake returns no bridge
        invoke("bridge", "redis://desk@127.0.0.1:1/0", *words)
    assert made == ["redis://desk:p%40ss%3Aw%2Frd@127.0.0.1:1/0"]


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
