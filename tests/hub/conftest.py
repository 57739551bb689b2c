"""Feeds of hubs, and two hubs in processes that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blackbox import Feed
from blackbox.feed.endpoint import free_endpoints
from tests.hub.hubs import hub_feed
from tests.hub.pairs import Hubs, pair_feed


@pytest.fixture
def feed() -> Feed:
    """Return a feed of one slice with a hub."""
    return hub_feed(slices=1)


@pytest.fixture
def links() -> tuple[str, ...]:
    """Return the endpoints at which two hubs of a feed find each other."""
    (links,) = free_endpoints("tcp", "link", 1, 2)
    return links


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Hubs]:
    with Hubs(pair_feed()) as hubs:
        yield hubs


@pytest.fixture
def hubs(nurseries: Hubs) -> Iterator[Hubs]:
    yield nurseries
    nurseries.close()
