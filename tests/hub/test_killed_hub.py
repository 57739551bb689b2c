"""A hub that is killed or loses power: the next one has all puts that it stored, each once."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import Feed, Hub, HubClient
from blackbox.archive.files.format import FILE_HEAD_BYTES, SEGMENT_MAGIC
from blackbox.archive.record.crash_recovery import file_head
from blackbox.errors import HubError
from blackbox.services.hub.protocol import ENCODER, Put, Stored, unpack_places
from blackbox.services.hub.server import client_table as table_module
from blackbox.services.hub.server import judge as judge_module
from blackbox.services.hub.server.client_table import Table
from blackbox.services.hub.server.frontend import Frontend
from blackbox.services.hub.server.judge import Answer
from blackbox.testing import wait_until
from tests.archive.test_retention import move_today
from tests.examples import first_of
from tests.hub.hubs import HUB, hub_feed, leave, published, reboot, sizes, topics_of
from tests.hub.peer import Peer, places_of
from tests.hub.power import KEEP, cut_power, has_on_disk, keep_disk, make_disk
from tests.torture.nursery import Nursery


def payloads(place: Path, feed: Feed) -> list[bytes]:
    return [bytes(each[-1] or b"") for each in published(place, feed)]


@pytest.mark.parametrize("acknowledged", first_of(["synced", "recorded"]))
def test_a_killed_hub_continues_and_puts_meanwhile_are_stored_once(
    tmp_path: Path, feed: Feed, acknowledged: str
) -> None:
    with Nursery(feed, HUB, 1) as hub, HubClient(feed, "desk", acknowledged=acknowledged) as client:  # type: ignore[arg-type]
        hub.begin((tmp_path,))
        futures = []
        for number in range(3_000):
            futures.append(client.put_soon(b"A.x", b"%d" % number, timeout=200))
            if number % 1_000 == 500:
                futures[-1].result(200)
                hub.kill()
                hub.begin((tmp_path,))
        client.flush(60)
        assert [future.result().sequence for future in futures] == list(range(3_000))
        assert len({future.result().epoch for future in futures}) == 1
        assert client.published_count() == 3_000
        wait_until(lambda: hub.notes[0] == 4)
        hub.kill()
    with Hub(feed, tmp_path):
        pass
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(3_000)]


def put_in_both(client: Peer, first: int, ids: bool) -> Put:
    """Return a request of four puts that alternate between two slices."""
    index = numpy.tile(numpy.arange(2, dtype=numpy.int32), 2).tobytes()
    payloads = [b"%d" % (first + row) for row in range(4)]
    put = client.puts(first, *payloads, topics=topics_of(client.feed), index=index)
    return msgspec.structs.replace(put, ids=[b"id-" + each for each in payloads] if ids else [])


@pytest.mark.parametrize(("ids", "lacking"), first_of([(False, 0), (True, 1), (True, 0), (False, 1)], keep=2))
def test_a_partly_stored_request_is_stored_once_when_sent_again(tmp_path: Path, ids: bool, lacking: int) -> None:
    feed = hub_feed(slices=2)
    with Hub(feed, tmp_path / "hub"), Peer(feed) as peer:
        peer.ask(put_in_both(peer, 1, ids))
        had, request = sizes(tmp_path / "hub"), put_in_both(peer, 5, ids)
        places = places_of(peer.ask(request))
        left = leave(tmp_path / "hub", tmp_path / "left", had, lacking)
    for _ in range(2):  # the second one is killed before the client has connected
        with Hub(feed, left), Peer(feed) as peer:
            assert peer.hello().last == 4
            left = leave(left, tmp_path / f"left-{left.name}", {})
    with Hub(feed, left) as hub, Peer(feed) as peer:
        again = peer.ask(request)
        assert places_of(again) == places
        assert peer.ask(request) == again
        assert isinstance(peer.ask(put_in_both(peer, 9, ids)), Stored)
        assert hub.statistics().stored == 6
    with Hub(feed, left), Peer(feed) as peer:
        assert peer.ask(request) == again
    assert sorted(payloads(left, feed)) == sorted(b"%d" % number for number in range(1, 13))


def test_a_request_partly_stored_by_two_killed_hubs_is_stored_once(tmp_path: Path) -> None:
    feed = hub_feed(slices=3)
    index = numpy.arange(3, dtype=numpy.int32).tobytes()
    place = tmp_path / "hub-0"
    for run, lacking in enumerate([(1, 2), (2,)]):
        with Hub(feed, place), Peer(feed) as peer:
            assert peer.hello().last == 0
            had, request = sizes(place), peer.puts(1, b"a", b"b", b"c", topics=topics_of(feed), index=index)
            peer.ask(request)
            place = leave(place, tmp_path / f"hub-{run + 1}", had, *lacking)
    with Hub(feed, place), Peer(feed) as peer:
        answer = peer.ask(request)
        assert unpack_places(answer.places)[["slice", "sequence"]].tolist() == [(0, 0), (1, 0), (2, 0)]
    assert payloads(place, feed) == [b"a", b"b", b"c"]


def test_a_row_with_the_id_of_a_lost_row_is_lost_too(tmp_path: Path) -> None:
    """Another client puts to the slice before the request is sent again."""
    feed = hub_feed(slices=2)
    topics, index = topics_of(feed), numpy.array([0, 1, 1], numpy.int32).tobytes()
    with Hub(feed, tmp_path / "hub"), Peer(feed) as peer:
        request = peer.puts(1, b"a", b"b", b"b", topics=topics, index=index, ids=[b"id-a", b"id-b", b"id-b"])
        had = sizes(tmp_path / "hub")
        peer.ask(request)
        left = leave(tmp_path / "hub", tmp_path / "left", had, 1)
    with Hub(feed, left), Peer(feed) as peer, Peer(feed, "other") as other:
        other.ask(other.puts(1, b"c", topics=topics[1:]))
        answer = peer.ask(request)
        assert unpack_places(answer.places)[["slice", "sequence"]].tolist() == [(0, 0), (1, 1), (1, 1)]
    assert payloads(left, feed) == [b"a", b"c", b"b"]


def test_a_new_session_may_replace_a_partly_stored_request(tmp_path: Path) -> None:
    feed = hub_feed(slices=2)
    with Hub(feed, tmp_path / "hub"), Peer(feed) as peer:
        had = sizes(tmp_path / "hub")
        peer.ask(put_in_both(peer, 1, ids=False))
        left = leave(tmp_path / "hub", tmp_path / "left", had, 1)
    with Hub(feed, left) as hub, Peer(feed, session=2, replaces=1) as peer:
        assert peer.hello().last == 0
        assert isinstance(peer.ask(put_in_both(peer, 1, ids=False)), Stored)
        assert hub.statistics().stored == 4
    assert sorted(payloads(left, feed)) == [b"1", b"1", b"2", b"3", b"3", b"4"]


@pytest.mark.parametrize("cut", range(0, 350, 34))
def test_a_hub_killed_during_a_write_has_all_of_it_or_nothing(
    tmp_path: Path, cut: int, put_twice: Path, feed: Feed
) -> None:
    """The next hub reads the rest of its journal as if the torn write had not begun."""
    left = tmp_path / "left"
    shutil.copytree(put_twice, left)
    (journal,) = left.glob("*/*/slice-00000/000000.journal")
    os.truncate(journal, journal.stat().st_size - cut)
    journal.with_suffix(".index").unlink()
    with Hub(feed, left), Peer(feed) as peer:
        last = peer.hello().last
        assert last == (2 if cut == 0 else 1)
        answer = peer.ask(peer.puts(2, b"2"))
        assert unpack_places(answer.places)["sequence"].tolist() == [1]
        assert isinstance(peer.ask(peer.puts(3, b"3")), Stored)
    with Hub(feed, left), Peer(feed) as peer:
        assert peer.hello().last == 3
        assert peer.ask(peer.puts(2, b"2")) == answer
    assert payloads(left, feed) == [b"1", b"2", b"3"]


@pytest.fixture(scope="module")
def put_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a killed hub to which a client has put twice."""
    place, feed = tmp_path_factory.mktemp("put"), hub_feed(slices=1)
    with Hub(feed, place / "hub"), Peer(feed) as peer:
        for number in (1, 2):
            peer.ask(peer.puts(number, b"%d" % number))
        return leave(place / "hub", place / "left", {})


def test_a_hub_killed_after_its_first_answer_continues_its_epoch(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub") as hub, HubClient(feed) as client:
        place = client.put(b"A.x", b"1", b"id")
        leave(tmp_path / "hub", tmp_path / "left", {})
        epoch = hub.epoch
    with Hub(feed, tmp_path / "left") as hub, HubClient(feed) as client:
        assert hub.epoch == epoch
        assert client.put(b"A.x", b"1", b"id") == place


def test_after_a_power_cut_another_epoch_begins_after_the_journals(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk") as client:
        for number in range(10):
            client.put(b"A.x", b"%d" % number, b"id-%d" % number)
            if number == 5:
                had = sizes(tmp_path / "hub")
        left = leave(tmp_path / "hub", tmp_path / "left", had, 0)
    reboot(left)
    with Hub(feed, left) as hub, HubClient(feed, "desk") as client:
        epoch = hub.epoch
        assert client.published_count() == 6
        assert client.put(b"A.x", b"5", b"id-5").epoch != epoch
        place = client.put(b"A.x", b"6", b"id-6")
        assert (place.epoch, place.sequence) == (epoch, 0)
    assert [(each[0] == epoch, each[2], each[-1]) for each in published(left, feed)] == [
        *((False, number, b"%d" % number) for number in range(6)),
        (True, 0, b"6"),
    ]


def test_a_power_cut_leaves_no_put_after_a_lost_one_if_the_last_segment_has_no_notes(tmp_path: Path) -> None:
    feed = hub_feed(slices=2)
    with Hub(feed, tmp_path / "hub", fsync_interval=1000.0), Peer(feed) as peer:
        peer.ask(put_in_both(peer, 1, ids=False))
        had = sizes(tmp_path / "hub")
        peer.ask(put_in_both(peer, 5, ids=False))
        peer.ask(peer.puts(9, b"9", topics=topics_of(feed)[1:]))
        left = leave(tmp_path / "hub", tmp_path / "left", had, 0)
    with Hub(feed, tmp_path / "idle"):
        (idle,) = (tmp_path / "idle").glob("*/*/slice-00001/000000.journal")
        wait_until(lambda: idle.stat().st_size > FILE_HEAD_BYTES, 60)  # heartbeats
    (place,) = left.glob("*/*/slice-00001")
    head = file_head(SEGMENT_MAGIC, 1, 1, time.time_ns())
    (place / "000001.journal").write_bytes(head + idle.read_bytes()[FILE_HEAD_BYTES:])
    reboot(left)
    with Hub(feed, left), Peer(feed) as peer:
        assert peer.hello().last == 4
    assert sorted(payloads(left, feed)) == [b"1", b"2", b"3", b"4"]


def test_a_hub_reads_few_turns_at_its_start_for_any_age_of_ids(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "_MOST_READ", 20)
    monkeypatch.setattr(judge_module, "MOST_SINCE_SNAPSHOT", 10 * judge_module.TURN_BYTES)
    with Hub(feed, tmp_path / "hub", remember_puts=3) as hub, Peer(feed) as peer, Peer(feed, "other") as other:
        first = other.ask(other.puts(1, b"first", ids=[b"id"]))
        for number in range(1, 200):
            peer.ask(peer.puts(number, b"%d" % number))
        left = leave(tmp_path / "hub", tmp_path / "left", {})
        assert hub.server.judge.table.floor > 150
    take, taken = Table.take, list[int]()

    def takes(self: Table, number: int, *args: Any) -> None:
        taken.append(number)
        take(self, number, *args)

    monkeypatch.setattr(Table, "take", takes)
    with Hub(feed, left, remember_puts=3), Peer(feed, "other") as other:
        assert len(taken) < 50
        assert other.hello().last == 1
        again = other.ask(other.puts(2, b"again", ids=[b"id"]))
    assert places_of(again) == places_of(first)
    assert not unpack_places(again.places)["is_new"].any()


def test_a_client_is_notified_if_a_power_cut_lost_acknowledged_puts(tmp_path: Path, feed: Feed) -> None:
    client = HubClient(feed, "desk").start()
    with Hub(feed, tmp_path / "hub"):
        client.put(b"A.x", b"1")
        had = sizes(tmp_path / "hub")
        client.put(b"A.x", b"2")
        left = leave(tmp_path / "hub", tmp_path / "left", had, 0)
    with Hub(feed, left), pytest.raises(HubError, match="expected put 2 of client 'desk'"):
        client.put(b"A.x", b"3", timeout=200)
    client.end()


@pytest.mark.long
def test_synced_puts_are_stored_once_over_any_number_of_power_cuts(tmp_path: Path, feed: Feed) -> None:
    chance, place = random.Random(5), tmp_path / "hub"
    make_disk(place)
    with Nursery(feed, KEEP + HUB, 1) as hub, HubClient(feed, "desk", acknowledged="synced") as client:
        hub.begin((place,))
        for number in range(120):
            if number % 10 == 5:  # large enough for the journal to write it without a copy
                rows = numpy.frombuffer((b"%d" % number).ljust(100_000), numpy.uint8)
                client.put_many((b"A.x",), numpy.zeros(1, int), rows[None], timeout=200)
                continue
            client.put(b"A.x", b"%d" % number, b"id-%d" % number if number % 2 else None, timeout=200)
            if number % 60 == 30:
                hub.kill()
                cut_power(place, chance)
                hub.begin((place,))
        hub.kill()
        cut_power(place, chance)
        hub.begin((place,))
        assert client.put(b"A.x", b"1", b"id-1", timeout=200)
        assert client.published_count() == 121
        hub.kill()
    with Hub(feed, place):
        pass
    assert [each.rstrip() for each in payloads(place, feed)] == [b"%d" % number for number in range(120)]


def _path_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()


class Disk:
    """A model of a disk: a failed sync leaves bytes that no later sync writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = False
        self.lacks: dict[Path, set[int]] = {}
        """Bytes left unwritten by a failed sync, by path."""
        self._seen: dict[Path, int] = {}
        self._written: dict[Path, set[int]] = {}
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "fdatasync", self._sync)
        monkeypatch.setattr(os, "pwrite", self._write)

    def _sync(self, fd: int) -> None:
        path, size = _path_of(fd), os.fstat(fd).st_size
        fresh, self._seen[path] = set(range(self._seen.get(path, 0), size)), size
        if self.is_failing:  # once: the error is reported to the first caller
            self.is_failing = False
            self.lacks[path] = fresh
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.lacks[path] = self.lacks.get(path, set()) - self._written.pop(path, set())

    def _write(self, fd: int, data: bytes, offset: int) -> int:
        path = _path_of(fd)
        self._written.setdefault(path, set()).update(range(offset, offset + len(data)))
        return self._pwrite(fd, data, offset)


def test_a_put_with_a_failed_sync_is_on_disk_before_the_next_hub_answers_it(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    hub = Hub(feed, tmp_path, fsync_interval=1000.0).start()
    with Peer(feed) as peer:
        peer.ask(peer.puts(1, b"1", synced=True))
        peer.hello()  # answered after the snapshot is on disk
        disk.is_failing = True
        request = peer.puts(2, b"2", synced=True)
        peer.socket.send(ENCODER.encode(request))
        with pytest.raises(HubError, match="Input/output error"):
            hub.run()
        assert any(disk.lacks.values())
        with Hub(feed, tmp_path, fsync_interval=1000.0):
            assert isinstance(peer.ask(request), Stored)
            assert not any(disk.lacks.values())


def test_the_last_put_is_soon_on_disk(tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", os.fdatasync)  # restored after the test
    make_disk(tmp_path / "hub")
    keep_disk()
    with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
        client.put(b"A.x", b"1", b"order-17", timeout=200)
        wait_until(lambda: has_on_disk(tmp_path / "hub", b"order-17"))


def test_a_hub_that_ended_in_order_begins_an_epoch_and_publishes_nothing_again(tmp_path: Path, feed: Feed) -> None:
    for run in range(3):
        with Hub(feed, tmp_path), HubClient(feed, "desk") as client:
            assert client.published_count() == 5 * run
            for number in range(5):
                assert client.put(b"A.x", b"%d" % (5 * run + number)).sequence == number
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(15)]


def test_a_hub_that_lost_its_data_learns_it_from_its_clients(tmp_path: Path, feed: Feed) -> None:
    client = HubClient(feed, "desk").start()
    with Hub(feed, tmp_path / "first"):
        client.put(b"A.x", b"1")
    with Hub(feed, tmp_path / "second"), pytest.raises(HubError, match="client 'desk' was not known"):
        client.put(b"A.x", b"2", timeout=200)
    with pytest.raises(HubError, match="client 'desk' was not known"):
        client.close()


def test_a_hub_whose_outbox_cannot_write_ends_with_an_error_and_the_next_one_has_all(
    tmp_path: Path, feed: Feed
) -> None:
    full = """
def work(directory):
    import resource
    hub = Hub(feed, directory).start()
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    try:
        hub.run()
    except HubError as error:
        print(error, flush=True)
"""
    with Nursery(feed, full, 1) as hub, HubClient(feed) as client:
        hub.begin((tmp_path,))
        futures = [client.put_soon(b"A.x", b"%d" % number * 5_000, timeout=200) for number in range(300)]
        status, said = hub.wait()
        assert status == 0
        assert len(said) == 1, said
        with Hub(feed, tmp_path):
            client.flush(60)
            assert [future.result().sequence for future in futures] == list(range(300))
    assert payloads(tmp_path, feed) == [b"%d" % number * 5_000 for number in range(300)]


def test_a_hub_with_a_clock_once_a_day_ahead_knows_later_puts(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path), Peer(feed) as peer:
        peer.ask(peer.puts(1, b"1"))
    ahead = move_today(tmp_path, feed, -1)
    for number in (2, 3):
        with Hub(feed, tmp_path), Peer(feed) as peer:
            assert peer.hello().last == number - 1
            peer.ask(peer.puts(number, b"%d" % number, topics=[b"B.%d" % number]))
    assert payloads(tmp_path, feed) == [b"1", b"2", b"3"]
    assert list((tmp_path / feed.name).glob("20*")) == [ahead]


def test_a_known_put_takes_no_place_in_the_new_epoch(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is killed right after the answer to the first new put of its epoch."""
    with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
        client.put(b"A.x", b"0", b"id-0")
    send, left = Frontend.send, tmp_path / "left"

    def sends(self: Frontend, client: bytes, answer: Answer, counts: dict[str, int]) -> None:
        send(self, client, answer, counts)
        if isinstance(answer, Stored) and answer.first == 2:
            leave(tmp_path / "hub", left, {})

    with monkeypatch.context() as patch:
        patch.setattr(Frontend, "send", sends)
        with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
            client.put(b"A.x", b"0", b"id-0")
            place = client.put(b"A.x", b"1", b"id-1")
    with Hub(feed, left), HubClient(feed) as client:
        assert client.put(b"A.x", b"1", b"id-1") == place
