"""A hub's days within bounds, but for what durable clients have not got."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from blackbox import ConfigError, Hub, HubClient
from blackbox.archive.consumer_store import ConsumerStore, Owner
from blackbox.archive.retention import Retention
from blackbox.block.position import Position
from blackbox.hub.settings import HubSettings
from blackbox.testing import wait_until
from tests.archive.test_retention import aged, days_of
from tests.hub.hubs import hub_feed


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_old_days_go_but_for_what_a_durable_client_needs(tmp_path: Path, key_bytes: int) -> None:
    feed = hub_feed(slices=1, key_bytes=key_bytes)
    alone = msgspec.structs.replace(feed, hub="")
    days = [aged(tmp_path, alone, ago) for ago in (9, 8, 7)]
    ConsumerStore(tmp_path / feed.name).note(Owner.of_key("desk"), "desk-1", {0: Position(days[1][1], 500)})
    with Hub(feed, tmp_path, retention=Retention(days=5)) as hub, HubClient(feed, "desk-2") as client:
        wait_until(lambda: days[0][0] not in days_of(tmp_path / feed.name))
        client.put(b"T", b"today")
        assert hub.statistics().stored == 1
        kept = days_of(tmp_path / feed.name)
    assert kept[:-1] == [days[1][0], days[2][0]]


def test_retention_of_a_hub_file(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text('feed = "feed.toml"\ndirectory = "kept"\n[retention]\ndays = 7\nmost_days = 30\n')
    assert HubSettings.load(file).retention == Retention(days=7, most_days=30)
    file.write_text('feed = "feed.toml"\ndirectory = "kept"\n[retention]\ndays = 7\nmost_days = 3\n')
    with pytest.raises(ConfigError, match=r"hub.toml: retention: most_days was 3, expected at least days, 7"):
        HubSettings.load(file)
    file.write_text('feed = "feed.toml"\ndirectory = "kept"\n[retention]\nweeks = 1\n')
    with pytest.raises(ConfigError, match=r"unknown key 'retention.weeks'"):
        HubSettings.load(file)
