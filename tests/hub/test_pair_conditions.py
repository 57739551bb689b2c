"""Conditional puts and deadlines of a pair of hubs: verdicts and ends do not depend on the leader."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from blackbox import HubClient
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import ConflictError, RefusedError
from blackbox.services.hub.server import store as store_module
from blackbox.services.hub.server.revisions import Revision, newest_places
from blackbox.testing import wait_until
from tests.hub.hubs import damage_days, put_for_damage
from tests.hub.pairs import PATIENCE_S, ROLES, hub_of, pair_feed, wait_in_step


def found(client: HubClient, topic: bytes) -> Place:
    """Return the place that the hub reports for the newest message of a topic."""
    with pytest.raises(ConflictError) as refused:
        client.put(topic, b"not there", if_at=Place(0, 1, 10**6), timeout=PATIENCE_S)
    return refused.value.found


def test_reading_the_days_does_not_look_like_silence(
    tmp_path: Path, links: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = pair_feed(slices=1)
    reading = list[str]()

    def reads_long(directory: Path, epoch: int, following: Any, pause: Any) -> dict[bytes, Revision]:
        reading.append(directory.parent.name)
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            pause()
            time.sleep(0.01)
        return newest_places(directory, epoch, following, pause)

    monkeypatch.setattr(store_module, "newest_places", reads_long)
    primary, backup = (hub_of(feed, tmp_path, links, role, silence_ns=2_000_000_000) for role in ROLES)
    with primary, backup:
        wait_in_step(primary, backup)
        term = primary.statistics().term
        with HubClient(feed) as client:
            place = client.put(b"A", b"1", if_at=NOWHERE, timeout=PATIENCE_S)
            assert found(client, b"A") == place
        assert reading == ["primary"]
        assert (primary.statistics().term, backup.statistics().term) == (term, term)


def test_with_unreadable_days_only_the_peer_judges_conditions(tmp_path: Path, links: tuple[str, ...]) -> None:
    feed = pair_feed(slices=1)
    with hub_of(feed, tmp_path, links, "backup") as backup, HubClient(feed) as client:
        with hub_of(feed, tmp_path, links):
            wait_until(lambda: backup.statistics().life == "armed", PATIENCE_S)
            put_for_damage(client)
            damage_days(tmp_path / "primary")
            with pytest.raises(
                RefusedError, match=r"b'B' was refused: if_at cannot be judged: .* was damaged"
            ) as error:
                client.put_many(("A", "B"), [0, 1, 0], bytes(3), offsets=range(4), if_at=[None, NOWHERE, None])
            assert error.value.places is not None
            assert (error.value.places["is_refused"] != 0).tolist() == [False, True, False]
            place = client.put(b"A", b"x", timeout=PATIENCE_S)
        assert client.put(b"A", b"y", if_at=place, timeout=PATIENCE_S).sequence == place.sequence + 1
