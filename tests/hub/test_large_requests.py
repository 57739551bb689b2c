"""Large requests in columns, which a kill does not lose, and the packed form of places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Hub, HubClient
from blackbox.errors import ConfigError
from blackbox.services.hub.protocol import MOST_PUTS, PLACE, Places, pack_places, unpack_places
from tests.hub.hubs import hub_feed, leave, published

ROWS = 500
SIZE = 100
NAMES = [b"A.%d" % number for number in range(ROWS)]


@pytest.fixture
def feed() -> Feed:
    return hub_feed(slices=1, key_bytes=2)


def put(client: HubClient, value: int) -> Places:
    """Put a large request with one message per topic."""
    rows = numpy.full((ROWS, SIZE), value, numpy.uint8)
    return client.put_many(NAMES, numpy.arange(ROWS), rows, ids=[b"%d-%d" % (value, row) for row in range(ROWS)])


def values(place: Path, feed: Feed) -> list[int]:
    """Return the values of the published requests of `put`."""
    rows = [(topic, payload) for _, _, _, topic, payload in published(place, feed) if payload and len(payload) == SIZE]
    found = [payload[0] for _, payload in rows[::ROWS]]
    assert rows == [(name, bytes([value]) * SIZE) for value in found for name in NAMES]
    return found


def test_large_puts_of_a_killed_hub_are_known_to_the_next_one(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk") as client:
        places = [put(client, value) for value in range(1, 6)]
        left = leave(tmp_path / "hub", tmp_path / "left", {})
    with Hub(feed, left), HubClient(feed, "desk") as client:
        assert client.published_count() == 5 * ROWS
        again = put(client, 3)
        assert again["sequence"].tolist() == places[2]["sequence"].tolist()
        assert not again["is_new"].any()
        assert put(client, 6)["sequence"].tolist() == list(range(5 * ROWS, 6 * ROWS))
    assert values(left, feed) == [1, 2, 3, 4, 5, 6]


@given(
    st.lists(
        st.tuples(*(st.integers(0, 2) for _ in range(4)), st.integers(-1, 4) | st.integers(2**62, 2**63 - 1)),
        max_size=50,
    ),
    st.integers(1, 30),
)
def test_packed_places_are_unpacked_unchanged(rows: list[Any], count: int) -> None:
    places = numpy.array(rows, PLACE).repeat(count)
    places["sequence"][places["sequence"] < 2**32] += numpy.arange(len(places))[places["sequence"] < 2**32] // 2 * 2
    assert (unpack_places(pack_places(places)) == places).all()
    one = numpy.full(count, numpy.array((1, 1, 0, 7, 0), PLACE), PLACE)
    one["sequence"] = numpy.arange(5, 5 + count)
    assert len(pack_places(one)) == PLACE.itemsize + 4
    assert (unpack_places(pack_places(one)) == one).all()


def test_more_places_than_a_request_may_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"places were {MOST_PUTS + 1}, expected at most {MOST_PUTS}"):
        unpack_places(pack_places(numpy.array([(0, 1, 0, 7, n) for n in range(MOST_PUTS + 1)], PLACE)))
