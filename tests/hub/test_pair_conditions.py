"""Conditional puts and deadlines of a pair of hubs: verdicts and ends do not depend on the leader."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from blackbox import HubClient
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import ConflictError, HubError
from blackbox.feed.endpoint import free_endpoints
from blackbox.hub import hub as hub_module
from blackbox.hub.revisions import Revision, newest_places
from blackbox.hub.sender import Sender
from blackbox.testing import wait_until
from tests.hub import test_pair_rules
from tests.hub.hubs import damage_days, put_for_damage
from tests.hub.pairs import PATIENCE_S, Hubs, pair_feed
from tests.hub.test_pair_rules import hub_of


def found(client: HubClient, topic: bytes) -> Place:
    """Return the place that the hub reports for the newest message of a topic."""
    with pytest.raises(ConflictError) as refused:
        client.put(topic, b"not there", if_at=Place(0, 1, 10**6), timeout=PATIENCE_S)
    return refused.value.found


def test_a_lost_verdict_is_the_same_after_a_takeover(
    tmp_path: Path, hubs: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, lost = Sender._answered, set[int]()

    def loses(self: Sender, first: int, result: Any) -> None:
        if self.name == "desk" and first > 1 and hubs.life("primary") != "ended":
            lost.add(first)
        else:
            answered(self, first, result)

    monkeypatch.setattr(Sender, "_answered", loses)
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed, "desk") as client, HubClient(hubs.feed) as other:
        first = client.put(b"A", b"1", if_at=NOWHERE, timeout=PATIENCE_S)
        refused = client.put_soon(b"A", b"2", if_at=NOWHERE, timeout=PATIENCE_S)
        wait_until(lambda: 2 in lost, PATIENCE_S)
        stored = client.put_soon(b"B", b"1", b"id", if_at=NOWHERE, timeout=PATIENCE_S)
        wait_until(lambda: 3 in lost, PATIENCE_S)
        place = other.put(b"B", b"1", b"id", if_at=NOWHERE)
        other.put(b"A", None)
        other.put(b"B", b"2", if_at=place)
        hubs.kill("primary")
        error = refused.exception(PATIENCE_S)
        assert isinstance(error, ConflictError)
        assert error.found == first
        assert stored.result(PATIENCE_S) == place
        assert other.put(b"B", b"1", b"id", if_at=NOWHERE, timeout=PATIENCE_S) == place
    hubs.begin("primary")
    hubs.wait_for_step()
    hubs.end_both()
    payloads = [message for _, message in sorted(hubs.published().items())]
    assert sorted(payloads, key=repr) == sorted([(b"A", b"1"), (b"A", None), (b"B", b"1"), (b"B", b"2")], key=repr)


def test_reading_the_days_does_not_look_like_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = pair_feed(slices=1)
    (links,) = free_endpoints("tcp", "link", 1, 2)
    reading = list[str]()

    def reads_long(directory: Path, epoch: int, following: Any, pause: Any) -> dict[bytes, Revision]:
        reading.append(directory.parent.name)
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            pause()
            time.sleep(0.01)
        return newest_places(directory, epoch, following, pause)

    monkeypatch.setattr(hub_module, "newest_places", reads_long)
    monkeypatch.setattr(test_pair_rules, "SILENCE_NS", 2_000_000_000)
    with hub_of(feed, tmp_path, links) as primary, hub_of(feed, tmp_path, links, "backup") as backup:
        wait_until(lambda: {primary.statistics().life, backup.statistics().life} == {"active", "armed"}, PATIENCE_S)
        term = primary.statistics().term
        with HubClient(feed) as client:
            place = client.put(b"A", b"1", if_at=NOWHERE, timeout=PATIENCE_S)
            assert found(client, b"A") == place
        assert reading == ["primary"]
        assert (primary.statistics().term, backup.statistics().term) == (term, term)


def test_with_unreadable_days_only_the_peer_judges_conditions(tmp_path: Path, hubs: Hubs) -> None:
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed) as client:
        put_for_damage(client)
        damage_days(tmp_path / "primary")
        with pytest.raises(HubError, match=r"if_at cannot be judged: .* was damaged"):
            client.put(b"A", b"x", if_at=NOWHERE, timeout=PATIENCE_S)
        place = client.put(b"A", b"x", timeout=PATIENCE_S)
        hubs.wait_for_step()
        hubs.kill("primary")
        assert client.put(b"A", b"y", if_at=place, timeout=PATIENCE_S).sequence == place.sequence + 1
