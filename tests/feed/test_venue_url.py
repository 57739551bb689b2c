"""URLs of venues: an address and typed options; malformed ones are an error of this project."""

from __future__ import annotations

import msgspec
import pytest

from blackbox import ConfigError
from blackbox.feed.venue_url import Address, VenueUrl, options_of


class Options(msgspec.Struct):
    port: int = 0
    name: str | None = None


def test_a_url_has_an_address_and_typed_options() -> None:
    url = VenueUrl.of("x://[::1]:80/path?port=5&name=7")
    assert (url.scheme, url.address, url.path) == ("x", Address("::1", 80), "/path")
    assert options_of(url, Options) == Options(5, "7")


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("127.0.0.1:80", "expected SCHEME://HOST:PORT"),
        ("x://127.0.0.1", "address of x:// was '127.0.0.1', expected HOST:PORT"),
        ("x://127.0.0.1:99999", "expected HOST:PORT"),
        ("x://user@h:1", "expected HOST:PORT"),
        ("x://a..b:1", "was 'a..b:1', expected HOST:PORT"),
        ("x://[::1", r"URL was 'x://\[::1': Invalid IPv6 URL"),
        ("x://h:1?port", "expected NAME=VALUE"),
        ("x://h:1?port=1&port=2", "expected each name once"),
        ("x://h:1?port=a", "option port was 'a': Expected `int`"),
        ("x://h:1?prot=1", "option was prot=1, expected one of x://: port, name .did you mean 'port'"),
    ],
)
def test_a_malformed_url_is_an_error(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        options_of(VenueUrl.of(url), Options)


@pytest.mark.parametrize("text", ["[::1", "[x]:5", "a[:1", "a:b", "@a:1", "a:1/", "a:99999", "a..b:1", ""])
def test_a_malformed_address_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="address was .*, expected HOST:PORT"):
        Address.of(text, "address")
