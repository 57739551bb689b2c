"""Two hubs: which one leads and takes over; no acknowledged put is lost or stored twice."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Literal

import msgspec
import numpy
import pytest

from blackbox import Feed, HubClient
from blackbox.block.position import Place
from tests.hub.pairs import PATIENCE_S, Hubs, places_once

LARGE_BYTES = 100_000
OTHER = {"primary": "backup", "backup": "primary"}


def at(place: Place) -> tuple[int, int, int]:
    return place.epoch, place.slice_id, place.sequence


class Writer:
    """Puts messages with ids from a thread and keeps the place of each."""

    def __init__(self, hubs: Hubs, name: str, acknowledged: Literal["recorded", "synced"] = "recorded") -> None:
        self.answered: list[tuple[tuple[int, int, int], bytes]] = []
        self._name, self._feed, self._acknowledged = name, hubs.feed, acknowledged
        self._is_over = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with HubClient(self._feed, self._name, acknowledged=self._acknowledged) as client:
                number = 0
                while not self._is_over.is_set():
                    puts = []
                    for _ in range(50):
                        data = f"{self._name}-{number}".encode()
                        topic = b"ABC"[number % 3 :][:1]
                        puts.append((data, client.put_soon(topic, data, data if number % 2 else None, timeout=200)))
                        number += 1
                    if number % 200 == 0:  # large enough for journals to write it without a copy
                        data = f"{self._name}-{number}".encode()
                        row = numpy.frombuffer(data.ljust(LARGE_BYTES), numpy.uint8)[None]
                        (place,) = client.put_many((b"A",), numpy.zeros(1, int), row, timeout=PATIENCE_S).tolist()
                        self.answered.append(((place[3], place[0], place[4]), bytes(row)))
                        number += 1
                    client.flush(PATIENCE_S)
                    self.answered += [(at(future.result()), data) for data, future in puts]
                    self._is_over.wait(0.03)
                assert client.published_count() == number
        except BaseException as error:  # noqa: BLE001 - for `end`
            self.error = error

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def test_repeated_takeovers_from_killed_hubs_lose_no_acknowledged_put(tmp_path: Path, hubs: Hubs) -> None:
    chance = random.Random(7)
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed, "reader", tmp_path / "reader") as reader:
        reader.subscribe(b"", PATIENCE_S)
        writers = [Writer(hubs, name) for name in ("one", "two")]
        for _ in range(3):
            leads = hubs.wait_for_step()
            time.sleep(chance.random() * 0.2)
            hubs.kill(leads)
            hubs.wait_for(**{leads: "ended", OTHER[leads]: "active"})
            hubs.begin(leads)
        hubs.wait_for_step()
        for writer in writers:
            writer.end()
        answered = [each for writer in writers for each in writer.answered]
        got = [reader.get(b"", PATIENCE_S) for _ in answered]
        with pytest.raises(TimeoutError):
            reader.get(b"", 0.1)
    assert sorted((each.epoch, each.slice_id, each.sequence) for each in got) == sorted(place for place, _ in answered)
    hubs.wait_for_step()
    hubs.end_both()
    places_once(hubs, answered)
    assert len(hubs.published()) == len(answered)


def test_a_paused_hub_that_resumes_answers_nothing_and_follows(tmp_path: Path, hubs: Hubs) -> None:
    hubs.begin_both(tmp_path)
    with HubClient(hubs.feed, "desk") as client:
        first = client.put(b"A", b"1", b"id", timeout=PATIENCE_S)
        hubs.signal("primary", signal.SIGSTOP)
        second = client.put(b"A", b"2", timeout=PATIENCE_S)
        hubs.wait_for(primary="active", backup="active")  # the primary's last report
        assert client.put(b"A", b"1", b"id", timeout=PATIENCE_S) == first
        hubs.signal("primary", signal.SIGCONT)
        hubs.wait_for_step()
        third = client.put(b"A", b"3", timeout=PATIENCE_S)
    hubs.end_both()
    assert [each.sequence for each in (first, second, third)] == [0, 1, 2]
    places_once(hubs, [(at(first), b"1"), (at(second), b"2"), (at(third), b"3")])
    assert len(hubs.published()) == 3


def test_large_messages_with_many_topics_reach_both_hubs(tmp_path: Path, hubs: Hubs) -> None:
    """Each message is stored once per topic: waiting ones are more than the other hub takes in one answer."""
    hubs.begin_both(tmp_path)
    topics = [b"A.%d" % number for number in range(16)]
    with HubClient(hubs.feed, "desk") as client:
        hubs.signal("backup", signal.SIGSTOP)
        puts = [client.put_soon(topics, bytes([number]) * (1 << 20), timeout=PATIENCE_S) for number in range(8)]
        hubs.signal("backup", signal.SIGCONT)
        client.flush(PATIENCE_S)
        assert len({at(each.result()) for each in puts}) == len(puts)
        hubs.wait_for_step()  # a slow machine may have let the backup take over
    hubs.end_both()
    assert len(hubs.published()) == len(hubs.published_by("backup")) == len(puts) * len(topics)


@pytest.mark.long
def test_two_hubs_that_continued_alone_are_detected_and_the_lower_claim_ends(
    tmp_path: Path, hubs: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "_silence_ns", 3_000_000_000)  # a busy machine must not look like a cut
    hubs.begin_both(tmp_path, "go_on")
    with HubClient(hubs.feed, "desk") as client:
        client.put(b"A", b"1", timeout=PATIENCE_S)
    hubs.cable.cut()
    with HubClient(feed_of(hubs, "backup"), "far") as far:
        far.put(b"A", b"2", timeout=PATIENCE_S)
    with HubClient(feed_of(hubs, "primary"), "near") as near:
        near.put(b"A", b"3", timeout=PATIENCE_S)
    hubs.wait_for(primary="active", backup="active")
    hubs.cable.cut(False)
    said = hubs.end_by_itself("backup")
    assert len(said) == 1
    assert "the backup, has puts that the other hub lacks" in said[0]
    assert hubs.life("primary") == "active"
    hubs.end_both()
    assert len(hubs.published()) == 3  # also those of the backup, at places of their own


def feed_of(hubs: Hubs, role: str) -> Feed:
    """Return the feed of a client that reaches only one of the two."""
    return msgspec.structs.replace(
        hubs.feed, hub=hubs.feed.hub if role == "primary" else hubs.feed.hub_backup, hub_backup=""
    )
