"""URLs of other systems: passwords of any characters work and are never shown; unknown parts are one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import ConfigError, Feed
from blackbox.services.bridge.amqp.connection import Address
from blackbox.services.bridge.amqp.exchange import AmqpExchange
from blackbox.services.bridge.amqp.queue import AmqpQueue, amqp_inlet
from blackbox.services.bridge.bridge import open_bridge
from blackbox.services.bridge.redis.channels import RedisChannels
from blackbox.services.bridge.redis.connection import redis_url
from blackbox.services.bridge.redis.group import RedisGroup
from blackbox.services.bridge.redis.listener import RedisListener
from blackbox.services.bridge.redis.streams import RedisStreams
from blackbox.services.bridge.url import Url, has_password, with_password
from blackbox.services.bridge.websocket.inlet import WebSocketInlet
from tests.hub.hubs import hub_feed

PASSWORDS = ["a/b", "a#b", "a?b", "a@b", "a:b", "a%2Fb#c/d@e?f", "p/ss#w@rd?:", "[::1", "7/0?#"]
REDIS = ("redis", "rediss", "redis+pubsub", "rediss+pubsub")


def decoded(password: str) -> str:
    return password.replace("%2F", "/")


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("user", ["", "desk"])
def test_a_password_of_any_characters_works_and_is_not_shown(user: str, password: str) -> None:
    for scheme in REDIS:
        path = "" if "pubsub" in scheme else "/3"
        found = redis_url(f"{scheme}://{user}:{password}@redis.example:6380{path}")
        assert found == Url(
            scheme, user, decoded(password), "redis.example", 6380, path[1:], f"{scheme}://redis.example:6380{path}"
        )
    address = Address.of(f"amqp://{user or 'guest'}:{password}@[::1]:5673/a%2Fb")
    assert address[:5] == ("[::1]:5673", user or "guest", decoded(password), "a/b", "amqp://[::1]:5673/a%2Fb")


@pytest.mark.parametrize(
    "rest",
    [
        "desk:SECRET@host:1/0?ssl_cert_reqs=none",
        "desk:SECRET@host:1/0#part",
        "desk:SECRET@host:1/0/1",
        "desk:SECRET@host:1?password=SECRET",
        "host:1/0?password=SECRET@at",
        "desk:SEC/RET#SECRET@host:no/0",
        "desk:SECRET@",
        "desk:SECRET@host:99999",
        "desk:SECRET@[::1",
        "desk:SECRET@a..b:1",
        f"desk:SECRET@{'a' * 64}:1",
    ],
)
def test_unknown_parts_of_a_url_are_one_error_without_the_password(rest: str) -> None:
    feed = Feed.local("carried", slices=1)
    for scheme in (*REDIS, "amqp", "amqps", "ws"):
        for into in (False, True):
            with pytest.raises(ConfigError) as caught:
                open_bridge(feed, f"{scheme}://{rest}", into=into)
            said = str(caught.value)
            assert f"expected {scheme.partition('+')[0][:4]}" in said or "expected none: " in said
            assert "SEC" not in said
            assert "RET" not in said


FEED: Final = Feed.local("carried", slices=1)
CA: Final = "expected a file of certificates in PEM: "
REFUSED: Final[list[tuple[Callable[[], object], str]]] = [
    (lambda: RedisGroup(FEED, "redis://there"), "hub"),
    (lambda: RedisListener(FEED, "redis+pubsub://there"), "hub"),
    (lambda: WebSocketInlet(FEED), "hub"),
    (lambda: AmqpQueue(FEED, "amqp://there"), "hub"),
    (lambda: amqp_inlet(FEED, "amqp://there", queue="q"), "option was queue=q, expected none: feed 'carried' has no"),
    (lambda: RedisStreams(FEED, "redis://there", keep=0), "keep was 0"),
    (lambda: RedisListener(hub_feed(), "redis+pubsub://there", raw=2), "raw was 2, expected 0 or 1"),
    (lambda: AmqpExchange(FEED, "amqp://there", transient=2), "transient was 2, expected 0 or 1"),
    (lambda: AmqpExchange(FEED, "amqp://there", name="a"), "name was 'a' and positions None, expected both"),
    (lambda: WebSocketInlet(hub_feed(), most_clients=0), "most_clients was 0, expected 1 to 1048576"),
    (lambda: WebSocketInlet.of_url(hub_feed(), "ws://there"), "URL was 'ws://there', expected ws://HOST:PORT"),
    (lambda: redis_url("redis://host/orders"), "URL was 'redis://host/orders', expected redis://"),
    (lambda: Address.of("amqp://there:0"), "URL was 'amqp://there:0', expected amqp://USER"),
    (lambda: Address.of("amqp://there", "x.pem"), "option was ca=x.pem, expected none with amqp://.*: amqps:// is"),
    (lambda: RedisStreams(FEED, "redis://there", ca="x.pem"), "ca=x.pem, expected none with redis://.*: rediss:// is"),
    (lambda: RedisChannels(FEED, "redis+pubsub://there", ca="x.pem"), r"ca=x.pem, expected .*: rediss\+pubsub:// is"),
    (lambda: Address.of("amqps://there", "none.pem"), f"none.pem, {CA}"),
    (lambda: Address.of("amqps://there", __file__), f"test_urls.py, {CA}"),
    (lambda: with_password("host", "SECOND"), "URL had no scheme"),
]


@pytest.mark.parametrize(("make", "error"), REFUSED)
def test_a_wrong_setting_is_an_error(make: Callable[[], object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make()


def test_default_ports_of_amqp() -> None:
    assert Address.of("amqp://there") == ("there:5672", "guest", "guest", "/", "amqp://there", None)
    assert Address.of("amqps://there").host == "there:5671"


def test_a_url_without_a_scheme_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="^URL had no scheme, expected one such as redis://") as caught:
        open_bridge(FEED, "desk:secret@host:6379")
    assert "secret" not in str(caught.value)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.sampled_from(["", "desk"]))
def test_a_password_from_elsewhere_is_sent(password: str, user: str) -> None:
    at = f"{user}@" * bool(user)
    url = with_password(f"redis://{at}redis.example:6380/3", password)
    found = redis_url(url)
    assert (found.user, found.password, found.host, found.port, found.path) == (
        *(user, password),
        *("redis.example", 6380, "3"),
    )
    assert found.shown == "redis://redis.example:6380/3"
    assert has_password(url)


def test_two_passwords_are_an_error_that_shows_neither() -> None:
    with pytest.raises(ConfigError) as caught:
        with_password("amqp://desk:FIRST@host/", "SECOND")
    assert str(caught.value) == "URL of amqp:// had a password and another one was given, expected one of them"
