"""Large requests of a put log, in files beside it: a kill loses none, a power cut no more than it may."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Hub, HubClient
from blackbox.archive import outbox as outbox_module
from blackbox.errors import ConfigError, HubError, JournalError
from blackbox.hub import large_requests
from blackbox.hub.hub import _Fresh
from blackbox.hub.large_requests import LARGE_BYTES
from blackbox.hub.paired_log import PairedLog, TooFarBehindError
from blackbox.hub.protocol import ENCODER, MOST_PUTS, PLACE, Places, Put, pack_places, unpack_places
from blackbox.hub.put_log import PutLog
from tests.hub.hubs import HUB, hub_feed, published
from tests.torture.nursery import Nursery

ROWS = 500
SIZE = 100
NAMES = [b"A.%d" % number for number in range(ROWS)]


@pytest.fixture(params=[0, 2])
def feed(request: pytest.FixtureRequest) -> Feed:
    return hub_feed(slices=1, key_bytes=request.param)


def put(client: HubClient, value: int, ids: bool = False) -> Places:
    """Put a request that is large: a message of each topic."""
    rows = numpy.full((ROWS, SIZE), value, numpy.uint8)
    assert rows.nbytes > LARGE_BYTES
    named = [b"%d-%d" % (value, number) for number in range(ROWS)] if ids else ()
    return client.put_many(NAMES, numpy.arange(ROWS), rows, ids=named)


def values(place: Path, feed: Feed) -> list[int]:
    """What was published of `put`, a value a request."""
    rows = [(topic, payload) for _, _, _, topic, payload in published(place, feed) if payload and len(payload) == SIZE]
    found = [payload[0] for _, payload in rows[::ROWS]]
    assert rows == [(name, bytes([value]) * SIZE) for value in found for name in NAMES]
    return found


def dying_at(feed: Feed, place: Path, monkeypatch: pytest.MonkeyPatch, published_first: int, ids: bool = False) -> Path:
    """Put five large requests; the hub takes all, and publishes some. Return what is there when it dies."""
    publish, count = Hub._publish, [0]

    def dies(self: Hub, fresh: _Fresh) -> None:
        if count[0] < published_first:
            publish(self, fresh)
        count[0] += 1

    with monkeypatch.context() as patch:
        patch.setattr(Hub, "_publish", dies)
        with Hub(feed, place / "hub") as hub:
            with HubClient(feed, "desk") as client:
                for value in range(1, 6):
                    put(client, value, ids)
            hub._publisher.flush()
            shutil.copytree(place / "hub", place / "left")
    return place / "left"


def cut_power(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    boot = place / "boot_id"
    boot.write_text("another start of the system")
    monkeypatch.setattr(outbox_module, "_BOOT_ID", boot)


def text_of(log: PutLog, number: int) -> bytes | None:
    row = log.read(number)
    assert row is not None
    return row[2]


def damage(left: Path, number: int) -> None:
    """Have a request of a hub that has ended be what a power cut may leave of it."""
    with closing(sqlite3.connect(left / "hub.puts")) as sql:
        damage_request(left, sql, number)


def damage_request(left: Path, sql: sqlite3.Connection, number: int) -> None:
    file, start, size = sql.execute("SELECT file, start, size FROM large WHERE number = ?", (number,)).fetchone()
    with (left / f"hub.puts.{'ab'[file]}").open("r+b") as written:
        written.seek(start)
        written.write(bytes(size))


def test_large_puts_of_a_killed_hub_are_published_by_the_next_one(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = dying_at(feed, tmp_path, monkeypatch, 2)
    with Hub(feed, left), HubClient(feed, "desk") as client:
        assert client.published_count() == 5 * ROWS
        assert put(client, 6)["sequence"].tolist() == list(range(5 * ROWS, 6 * ROWS))
    assert values(left, feed) == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_a_hub_killed_while_large_and_small_puts_come_stores_each_once(tmp_path: Path, feed: Feed) -> None:
    with Nursery(feed, HUB, 1) as hub, HubClient(feed) as client:
        hub.begin((tmp_path,))
        for value in range(1, 61):
            places = put(client, value)
            assert int(places["sequence"][0]) == (value - 1) * (ROWS + 1)
            assert client.put(b"B", b"%d" % value, timeout=60).sequence == value * (ROWS + 1) - 1
            if value % 20 == 10:
                hub.kill()
                hub.begin((tmp_path,))
        hub.kill()
    with Hub(feed, tmp_path):
        pass
    assert values(tmp_path, feed) == list(range(1, 61))


@pytest.mark.parametrize("ids", [False, True])
def test_a_power_cut_that_damaged_a_request_loses_that_and_those_behind_it(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ids: bool
) -> None:
    left = dying_at(feed, tmp_path, monkeypatch, 2, ids)
    damage(left, 1)  # the outbox has it
    damage(left, 4)
    cut_power(monkeypatch, tmp_path)
    with Hub(feed, left), HubClient(feed, "desk") as client:
        assert client.published_count() == 3 * ROWS
        again = [put(client, value, ids) for value in (3, 4, 5)]
    assert caplog.text.count(f"{ROWS} puts were lost in a power cut") == 2
    if ids:
        assert [bool(each["is_new"].all()) for each in again] == [False, True, True]
        assert values(left, feed) == [1, 2, 3, 4, 5]
    else:
        assert values(left, feed) == [1, 2, 3, 3, 4, 5]


def test_what_other_clients_have_put_behind_a_damaged_request_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = hub_feed(slices=2)
    names = [b"%c.%d" % (65 + number % 8, number) for number in range(ROWS)]
    here, there = ([topic for topic in names if feed.slice_of(topic) == slice_id] for slice_id in (0, 1))
    rows, publish = numpy.zeros((len(here), 2 * LARGE_BYTES // len(here)), numpy.uint8), Hub._publish
    with monkeypatch.context() as patch:  # the journal of the first slice has lost its end
        patch.setattr(Hub, "_publish", lambda self, fresh: publish(self, fresh) if len(fresh.rows) == 1 else None)
        with Hub(feed, tmp_path / "hub") as hub:
            with HubClient(feed, "one") as one, HubClient(feed, "two") as two:
                two.put(here[0], b"begin")
                one.put_many(here, numpy.arange(len(here)), rows)
                two.put(there[0], b"kept", b"order-17")
                one.put(there[0], b"of one", b"order-18")
            hub._publisher.flush()
            shutil.copytree(tmp_path / "hub", left := tmp_path / "left")
    damage(left, 2)
    cut_power(monkeypatch, tmp_path)
    with Hub(feed, left), HubClient(feed, "one") as one, HubClient(feed, "two") as two:
        assert (one.published_count(), two.published_count()) == (0, 2)
        two.put(there[0], b"kept", b"order-17")
        one.put(there[0], b"of one", b"order-18")
    assert [message[-1] for message in published(left, feed)] == [b"begin", b"kept", b"of one"]


def test_a_client_whose_answered_puts_a_power_cut_has_lost_is_told(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = HubClient(feed, "desk").start()
    publish, left = Hub._publish, tmp_path / "left"
    monkeypatch.setattr(Hub, "_publish", lambda self, fresh: publish(self, fresh) if left.exists() else None)
    with Hub(feed, tmp_path / "hub"):
        put(client, 1)
        put(client, 2)
        shutil.copytree(tmp_path / "hub", left)
    damage(left, 2)
    cut_power(monkeypatch, tmp_path)
    with Hub(feed, left), pytest.raises(HubError, match=f"expected put {ROWS + 1} of client 'desk'"):
        put(client, 3)
    client.end()


def test_a_damaged_request_without_a_power_cut_ends_the_hub(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = dying_at(feed, tmp_path, monkeypatch, 2)
    damage(left, 4)
    with pytest.raises(JournalError, match="put log 4 was damaged"):
        Hub(feed, left).start()


def test_a_synced_large_put_survives_a_power_cut(tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves of the files what was in them when a sync began that has returned."""
    synced, sync = dict[str, bytes](), os.fdatasync

    def noting(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        data = path.read_bytes()
        sync(fd)
        synced[path.name] = data

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", noting)
        patch.setattr(Hub, "_publish", lambda self, fresh: None)
        with Hub(feed, tmp_path / "hub"):
            with HubClient(feed) as client:
                put(client, 1)
            with HubClient(feed, acknowledged="synced") as client:
                put(client, 2)
            shutil.copytree(tmp_path / "hub", tmp_path / "left")
    for name in ("hub.puts.a", "hub.puts.b"):
        (tmp_path / "left" / name).write_bytes(synced[name])
    cut_power(monkeypatch, tmp_path)
    with Hub(feed, tmp_path / "left"):
        pass
    assert values(tmp_path / "left", feed) == [1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_files_are_filled_in_turn_and_what_waits_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Against a dict, through ends and beginnings of the log."""
    monkeypatch.setattr(large_requests, "_FILL_BYTES", 200_000)
    draw, kept, dropped, most = random.Random(seed), dict[int, bytes](), 0, 0
    for _ in range(4):
        with PutLog(tmp_path / "log", 10, 10, 10) as log:
            for _ in range(100):
                with log.transaction():
                    for _ in range(draw.randint(0, 4)):
                        text = draw.randbytes(draw.choice((10, LARGE_BYTES, 30_000)))
                        kept[log.add(None, 0, 1, b"", "", text, 0)] = text
                if kept and draw.random() < 0.5:
                    dropped = draw.randint(dropped, max(kept))
                    log.drop(dropped)
                    kept = {number: text for number, text in kept.items() if number > dropped}
                most = max(most, sum(map(len, kept.values())))
                with log.transaction():
                    assert log.waiting() == list(kept)
                    assert {number: text_of(log, number) for number in kept} == kept
    sizes = [(tmp_path / f"log.{each}").stat().st_size for each in "ab"]
    assert min(sizes) > 0
    assert max(sizes) < 200_000 + most + 5 * 30_000


def test_a_file_that_grew_while_nothing_was_dropped_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "_FILL_BYTES", 100_000)

    def add(log: PutLog, count: int) -> int:
        with log.transaction():
            return [log.add(None, 0, 1, b"", "", bytes(20_000), 0) for _ in range(count)][-1]

    with PutLog(tmp_path / "log", 10, 10, 10) as log:
        add(log, 10)
        log.drop(add(log, 40))  # the second file has 40 now: 5 more are in the first
        for _ in range(2):
            newest = add(log, 6)
            add(log, 1)
            log.drop(newest)
        assert max((tmp_path / f"log.{each}").stat().st_size for each in "ab") < 300_000


def test_a_peer_gets_large_requests_and_none_that_is_damaged(tmp_path: Path) -> None:
    texts = [
        ENCODER.encode(Put("desk", 1, 1, 1, False, [b"A"], bytes(4), bytes(16), bytes(size), b"", b"", []))
        for size in (LARGE_BYTES, 10, 3 * LARGE_BYTES)
    ]
    places = pack_places(numpy.zeros(1, PLACE))
    with (
        PairedLog(tmp_path / "hub.puts", 10, 10, 10, "primary") as log,
        PairedLog(tmp_path / "peer", 10, 10, 10, "backup") as peer,
    ):
        with log.transaction():
            numbers = [log.add(None, 1, 1, places, "", text, 0) for text in texts]
        with peer.transaction():
            peer.take(log.entries(0, 1 << 20))
            assert [text_of(peer, number) for number in numbers] == texts
        kept = peer._kept_bytes
        assert kept > sum(map(len, texts))
        peer.reload()
        assert peer._kept_bytes == kept
        damage_request(tmp_path, log.sql, numbers[-1])
        with pytest.raises(TooFarBehindError):
            log.entries(0, 1 << 20)


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PutLog(tmp_path / "log", 10, 10, 10) as log:
        monkeypatch.setattr(os, "pwrite", lambda fd, text, at: len(text) - 1)
        with pytest.raises(JournalError, match="No space left"), log.transaction():
            log.add(None, 0, 1, b"", "", bytes(LARGE_BYTES), 0)
        with log.transaction():
            assert log.waiting() == []


@given(
    st.lists(
        st.tuples(*(st.integers(0, 2) for _ in range(4)), st.integers(-1, 4) | st.integers(2**62, 2**63 - 1)),
        max_size=50,
    ),
    st.integers(1, 30),
)
def test_places_are_what_was_packed(rows: list[Any], count: int) -> None:
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
