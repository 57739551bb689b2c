"""URLs of venues: malformed ones are an error of this project."""

from __future__ import annotations

import pytest

from blackbox import ConfigError
from blackbox.feed.venue_url import Address, VenueUrl


@pytest.mark.parametrize("text", ["[::1", "[x]:5", "a[:1", "a:b", "@a:1", "a:1/", "a:99999", "a..b:1", ""])
def test_a_malformed_address_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="address was .*, expected HOST:PORT"):
        Address.of(text, "address")


def test_a_malformed_url_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"URL was 'moldudp64://\[::1': Invalid IPv6 URL"):
        VenueUrl.of("moldudp64://[::1")
    with pytest.raises(ConfigError, match="address of moldudp64:// was 'a', expected HOST:PORT"):
        VenueUrl.of("moldudp64://a")
