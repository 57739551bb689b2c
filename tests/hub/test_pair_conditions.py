"""Conditional puts and deadlines where two hubs are a pair: verdicts and ends are the same, whoever leads."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from blackbox import HubClient
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import ConflictError, HubError, NotStoredError
from blackbox.feed.endpoint import free_endpoints
from blackbox.hub import hub as hub_module
from blackbox.hub.revisions import Revision, newest_places
from blackbox.hub.sender import Sender
from blackbox.testing import wait_until
from tests.hub import test_pair_rules
from tests.hub.hubs import damage_days, put_for_damage
from tests.hub.pairs import PATIENCE_S, Hubs, pair_feed
from tests.hub.test_pair import OTHER, feed_of
from tests.hub.test_pair_rules import hub_of


def found(client: HubClient, topic: bytes) -> Place:
    """Where the hub says that the newest message of a topic is."""
    with pytest.raises(ConflictError) as refused:
        client.put(topic, b"not there", if_at=Place(0, 1, 10**6), timeout=PATIENCE_S)
    return refused.value.found


def ends(hubs: Hubs, role: str) -> list[bytes]:
    """The topics that were ended, as the outbox of one of the two has it, in their order."""
    return [topic for _, (topic, payload) in sorted(hubs.published_by(role).items()) if payload is None]


def test_who_takes_over_judges_by_what_the_other_one_has_answered(tmp_path: Path, hubs: Hubs) -> None:
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed, "desk") as client:
        places = {
            b"%d" % number: client.put(b"%d" % number, b"x", if_at=NOWHERE, timeout=PATIENCE_S) for number in range(20)
        }
        places[b"3"] = client.put(b"3", b"y", if_at=places[b"3"])
        client.put(b"4", None)
        places[b"4"] = NOWHERE
        for leads in ("primary", "backup"):
            hubs.wait_for_step()
            hubs.kill(leads)
            for topic, place in places.items():
                assert found(client, topic) == place
            places[b"5"] = client.put(b"5", leads.encode(), if_at=places[b"5"])
            hubs.wait_for(**{leads: "ended", OTHER[leads]: "active"})
            hubs.begin(leads)
        hubs.wait_for_step()
    hubs.end_both()
    assert hubs.published_by("primary") == hubs.published_by("backup")
    assert len(hubs.published()) == 24


def test_a_verdict_that_was_lost_on_its_way_is_the_same_by_who_takes_over(
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


def test_a_deadline_is_acted_on_once_by_who_has_taken_over(tmp_path: Path, hubs: Hubs) -> None:
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed) as client:
        for topic in (b"due", b"anew", b"stays"):
            client.put_soon(topic, b"1", ttl=2.0)
        client.flush()
        client.put_soon(b"anew", b"2", ttl=3_600)
        client.put_soon(b"stays", b"2")
        client.flush()
        hubs.kill("primary")
        client.put(b"other", b"1", timeout=PATIENCE_S)
        hubs.begin("primary")
        hubs.wait_for_step()
        wait_until(lambda: found(client, b"due") == NOWHERE, PATIENCE_S)
        assert NOWHERE not in (found(client, b"anew"), found(client, b"stays"))
    hubs.end_both()
    assert ends(hubs, "primary") == ends(hubs, "backup") == [b"due"]


def test_a_passive_hub_acts_on_no_deadline_and_a_paused_one_that_wakes_up_neither(tmp_path: Path, hubs: Hubs) -> None:
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed) as client:
        for number in range(50):
            client.put_soon(b"%d" % number, b"x", ttl=0.5)
        client.flush()
        hubs.signal("primary", signal.SIGSTOP)
        client.put(b"other", b"1", timeout=PATIENCE_S)
        wait_until(lambda: found(client, b"49") == NOWHERE, PATIENCE_S)
        hubs.signal("primary", signal.SIGCONT)  # all are due by its clock, too
        hubs.wait_for(primary="armed", backup="active")
        client.put(b"0", b"y", if_at=NOWHERE)
    hubs.end_both()
    for role in ("primary", "backup"):
        assert sorted(ends(hubs, role)) == sorted(b"%d" % number for number in range(50))


def test_a_deadline_that_could_not_be_agreed_on_is_acted_on_once_when_the_link_heals(
    tmp_path: Path, hubs: Hubs
) -> None:
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed) as client:
        client.put(b"due", b"1", ttl=0.5)
        before = client.put(b"kept", b"1", if_at=NOWHERE, timeout=PATIENCE_S)
        hubs.cable.cut()
        until = time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > until, 60)
        assert client.put(b"kept", b"2", if_at=before, timeout=PATIENCE_S).sequence > 0  # of who has taken over
        hubs.wait_for(primary="active", backup="active")
        hubs.cable.cut(False)
        hubs.wait_for(primary="armed", backup="active")
        hubs.kill("backup")
        assert found(client, b"due") == NOWHERE
        assert found(client, b"kept") != before
        hubs.begin("backup")
        hubs.wait_for_step()
    hubs.end_both()
    assert ends(hubs, "primary") == ends(hubs, "backup") == [b"due"]


def test_what_a_hub_had_judged_and_gave_up_is_not_in_what_it_judges_by_later(tmp_path: Path, hubs: Hubs) -> None:
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed) as client:
        first = client.put(b"A", b"1", if_at=NOWHERE, timeout=PATIENCE_S)
        near = HubClient(feed_of(hubs, "primary")).start()
        kept = near.put(b"C", b"1", timeout=PATIENCE_S)
        hubs.cable.cut()
        with pytest.raises(NotStoredError):  # the primary takes it, and waits for the backup
            near.put_many(
                (b"B", b"C"), [0, 1], b"xy", None, [0, 1, 2], timeout=1.0, if_at=[NOWHERE, None], ttl=[None, 0.001]
            )
        near.end()
        second = client.put(b"A", b"2", if_at=first, timeout=PATIENCE_S)
        hubs.cable.cut(False)
        hubs.wait_for(primary="armed", backup="active")
        hubs.kill("backup")
        assert [found(client, topic) for topic in (b"A", b"B", b"C")] == [second, NOWHERE, kept]
        client.put(b"A", b"3", if_at=second)
        hubs.begin("backup")
        hubs.wait_for_step()
    hubs.end_both()
    said = sorted(message for _, message in hubs.published().items())
    assert said == [(b"A", b"1"), (b"A", b"2"), (b"A", b"3"), (b"C", b"1")]


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


def test_an_active_hub_whose_days_cannot_be_read_refuses_conditions_and_the_other_one_judges(
    tmp_path: Path, hubs: Hubs
) -> None:
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
