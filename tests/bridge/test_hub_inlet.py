"""The common part of bridges into a hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Hub
from blackbox.errors import BridgeError
from blackbox.services.bridge.redis.group import RedisGroup
from tests.hub.hubs import hub_feed, published


def test_topics_of_other_symbols_are_unwanted(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    topics = [b"AAPL.x", b"AAPLW.x", b"AAPL", b"BRK.B.x", b"BRK.x", b"AAPL.y.x"]
    inlet = RedisGroup(feed, "redis://127.0.0.1", symbols=["AAPL", "BRK.B"])
    inlet._client.start()
    with Hub(feed, tmp_path):
        for topic in topics:
            assert inlet._put("name", topic, b"", None, 0)
        inlet._client.flush()
        inlet._client.end()
    wanted = [topic for topic in topics if feed.symbol_rule.symbol_of(topic) in (b"AAPL", b"BRK.B")]
    assert [topic for *_, topic, _ in published(tmp_path, feed)] == wanted
    assert inlet.statistics()["unwanted"] == len(topics) - len(wanted)


def test_stored_messages_are_released_before_a_later_error(tmp_path: Path) -> None:
    """Otherwise they would be delivered again, and a message without an id would be stored twice."""
    feed = hub_feed(slices=1)
    inlet = RedisGroup(feed, "redis://127.0.0.1")
    inlet._client.start()
    with Hub(feed, tmp_path):
        assert inlet._put("first", b"A", b"", None, 0)
        inlet._client.flush()
    assert inlet._put("second", b"A", b"", None, 0)
    inlet._client.end()
    assert inlet._stored() == ["first"]
    with pytest.raises(BridgeError, match="the hub accepts no more puts from redis.* was closed before the hub had"):
        inlet._stored()
