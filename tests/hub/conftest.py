"""Two hubs of a feed, in processes that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub.pairs import Hubs, pair_feed


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Hubs]:
    with Hubs(pair_feed()) as hubs:
        yield hubs


@pytest.fixture
def hubs(nurseries: Hubs) -> Iterator[Hubs]:
    yield nurseries
    nurseries.close()
