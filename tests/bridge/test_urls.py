"""URLs of other systems: passwords of any characters work and are never shown; unknown parts are one error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import ConfigError, Feed
from blackbox.services.bridge.amqp.connection import Address
from blackbox.services.bridge.bridge import open_bridge
from blackbox.services.bridge.redis.connection import redis_url
from blackbox.services.bridge.url import Url, has_password, with_password

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


def test_a_port_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="URL was 'amqp://there:0', expected amqp://USER"):
        Address.of("amqp://there:0")
    assert Address.of("amqp://there") == ("there:5672", "guest", "guest", "/", "amqp://there", None)
    assert Address.of("amqps://there").host == "there:5671"


def test_a_url_without_a_scheme_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="^URL had no scheme, expected one such as redis://") as caught:
        open_bridge(Feed.local("carried", slices=1), "desk:secret@host:6379")
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="URL was 'redis://host/orders', expected redis://"):
        redis_url("redis://host/orders")


def test_ca_needs_an_encrypted_scheme() -> None:
    feed = Feed.local("carried", slices=1)
    for scheme, secure in (("redis", "rediss"), ("redis+pubsub", "rediss+pubsub"), ("amqp", "amqps")):
        with pytest.raises(
            ConfigError,
            match=rf"option was ca=x.pem, expected none with {scheme}.*: {secure}:// is".replace("+", r"\+"),
        ):
            open_bridge(feed, f"{scheme}://127.0.0.1:1", ca="x.pem")


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
    with pytest.raises(ConfigError, match="URL had no scheme"):
        with_password("host", "SECOND")
