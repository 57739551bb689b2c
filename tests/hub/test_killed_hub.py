"""A hub that is killed, or whose system lost power: the next one has what it had taken, each put once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy
import pytest
import zmq

from blackbox import Feed, Hub, HubClient, Publisher
from blackbox.archive import outbox as outbox_module
from blackbox.errors import HubError
from blackbox.hub.hub import Answer, _Fresh
from blackbox.hub.large_requests import LARGE_BYTES
from blackbox.hub.protocol import Stored
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.hub.hubs import HUB, hub_feed, published
from tests.hub.power import KEEP, cut_power, has_on_disk, make_disk
from tests.torture.nursery import Nursery


def payloads(place: Path, feed: Feed) -> list[bytes]:
    return [bytes(each[-1] or b"") for each in published(place, feed)]


@pytest.fixture
def feed() -> Feed:
    return hub_feed(slices=1)


@pytest.mark.parametrize("acknowledged", first_of(["synced", "recorded"]))
def test_a_killed_hub_goes_on_and_what_was_put_meanwhile_is_stored_once(
    tmp_path: Path, feed: Feed, acknowledged: str
) -> None:
    with Nursery(feed, HUB, 1) as hub, HubClient(feed, "desk", acknowledged=acknowledged) as client:  # type: ignore[arg-type]
        hub.begin((tmp_path,))
        futures = []
        for number in range(3_000):
            futures.append(client.put_soon(b"A.x", b"%d" % number, timeout=60))
            if number % 1_000 == 500:
                futures[-1].result(60)
                hub.kill()
                hub.begin((tmp_path,))
        client.flush(60)
        assert [future.result().sequence for future in futures] == list(range(3_000))
        assert len({future.result().epoch for future in futures}) == 1
        assert client.published_count() == 3_000
        wait_until(lambda: hub.notes[0] == 4, 60)
        hub.kill()
    with Hub(feed, tmp_path):
        pass  # it publishes what was answered, and not yet published
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(3_000)]


class KilledError(BaseException):
    """The hub dies here."""


def dying_at(
    feed: Feed, place: Path, monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool], has_ids: bool = True
) -> Path:
    """Put ten messages; the hub takes all and publishes those before `when`. Return what is there when it dies."""
    publish, published_so_far = Hub._publish, [0]

    def dies(self: Hub, fresh: _Fresh) -> None:
        if not when(published_so_far[0]):
            publish(self, fresh)
        published_so_far[0] += 1

    with monkeypatch.context() as patch:
        patch.setattr(Hub, "_publish", dies)
        with Hub(feed, place / "hub") as hub:
            with HubClient(feed) as client:
                for number in range(10):
                    client.put(b"A.x", b"%d" % number, b"id-%d" % number if has_ids else None)
            hub._publisher.flush()
            shutil.copytree(place / "hub", place / "left")
    return place / "left"


@pytest.mark.parametrize("taken", [1, 4, 9])
def test_what_was_answered_and_not_published_is_published_by_the_next_hub(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    left = dying_at(feed, tmp_path, monkeypatch, lambda number: number >= taken)
    with Hub(feed, left), HubClient(feed) as client:
        again = client.put(b"A.x", b"9", b"id-9")
        assert again.sequence == 9
        assert {again.epoch} == {each[0] for each in published(tmp_path / "left", feed)}
        assert client.put(b"A.x", b"10").sequence == 10
    assert payloads(left, feed) == [b"%d" % number for number in range(11)]


def test_a_hub_killed_again_and_again_while_it_publishes_what_was_left_publishes_it_once(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = dying_at(feed, tmp_path, monkeypatch, lambda number: number >= 2)
    publish = Hub._publish
    for run in range(3):
        count = [0]

        def dies(self: Hub, fresh: _Fresh, count: list[int] = count) -> None:
            if count[0] == 2:
                self._publisher.flush()
                shutil.copytree(left, tmp_path / f"left-{run}")
                raise KilledError
            count[0] += 1
            publish(self, fresh)

        with monkeypatch.context() as patch:
            patch.setattr(Hub, "_publish", dies)
            with pytest.raises(KilledError):
                Hub(feed, left).start()
        left = tmp_path / f"left-{run}"
    with Hub(feed, left):
        pass
    assert payloads(left, feed) == [b"%d" % number for number in range(10)]


def test_a_hub_killed_behind_its_first_answer_goes_on_in_its_epoch(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub") as hub, HubClient(feed) as client:
        place = client.put(b"A.x", b"1", b"id")
        shutil.copytree(tmp_path / "hub", tmp_path / "left")
        epoch = hub.epoch
    with Hub(feed, tmp_path / "left") as hub, HubClient(feed) as client:
        assert hub.epoch == epoch
        assert client.put(b"A.x", b"1", b"id") == place


@pytest.mark.parametrize("has_ids", [False, True])
def test_after_a_power_cut_what_the_outbox_lost_is_published_in_the_next_epoch_once(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch, has_ids: bool
) -> None:
    left = dying_at(feed, tmp_path, monkeypatch, lambda number: number >= 6, has_ids)
    boot = tmp_path / "boot_id"
    boot.write_text("another start of the system")
    monkeypatch.setattr(outbox_module, "_BOOT_ID", boot)
    with Hub(feed, left) as hub, HubClient(feed) as client:
        epoch = hub.epoch
        if has_ids:
            again = client.put(b"A.x", b"8", b"id-8")
            assert (again.epoch, again.sequence) == (epoch, 2)
        assert client.put(b"A.x", b"10").sequence == 4
    assert [(each[0] == epoch, each[2], each[-1]) for each in published(left, feed)] == [
        *((False, number, b"%d" % number) for number in range(6)),
        *((True, number - 6, b"%d" % number) for number in range(6, 11)),
    ]


def test_what_was_answered_as_synced_is_published_once_however_often_power_is_cut(tmp_path: Path, feed: Feed) -> None:
    chance, place = random.Random(5), tmp_path / "hub"
    make_disk(place)
    with Nursery(feed, KEEP + HUB, 1) as hub, HubClient(feed, "desk", acknowledged="synced") as client:
        hub.begin((place,))
        for number in range(120):
            if number % 10 == 5:  # as large as those that the put log has in other files
                rows = numpy.frombuffer((b"%d" % number).ljust(LARGE_BYTES), numpy.uint8)
                client.put_many((b"A.x",), numpy.zeros(1, int), rows[None], timeout=60)
                continue
            client.put(b"A.x", b"%d" % number, b"id-%d" % number if number % 2 else None, timeout=60)
            if number % 60 == 30:
                hub.kill()
                cut_power(place, chance)
                hub.begin((place,))
        hub.kill()
        cut_power(place, chance)
        hub.begin((place,))
        assert client.put(b"A.x", b"1", b"id-1", timeout=60)
        assert client.published_count() == 121
        hub.kill()
    with Hub(feed, place):
        pass
    assert [each.rstrip() for each in payloads(place, feed)] == [b"%d" % number for number in range(120)]


def test_what_nothing_follows_is_on_the_disk_soon(tmp_path: Path, feed: Feed) -> None:
    place = tmp_path / "hub"
    make_disk(place)
    with Nursery(feed, KEEP + HUB, 1) as hub, HubClient(feed) as client:
        hub.begin((place,))
        client.put(b"A.x", b"1", b"order-17", timeout=60)
        wait_until(lambda: has_on_disk(place, b"order-17"), 60)
        hub.kill()


def test_a_hub_that_ended_in_order_begins_an_epoch_and_publishes_nothing_again(tmp_path: Path, feed: Feed) -> None:
    for run in range(3):
        with Hub(feed, tmp_path), HubClient(feed, "desk") as client:
            assert client.published_count() == 5 * run
            for number in range(5):
                assert client.put(b"A.x", b"%d" % (5 * run + number)).sequence == number
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(15)]


def test_a_hub_that_has_lost_what_it_had_is_told_by_its_clients(tmp_path: Path, feed: Feed) -> None:
    client = HubClient(feed, "desk").start()
    with Hub(feed, tmp_path / "first"):
        client.put(b"A.x", b"1")
    with Hub(feed, tmp_path / "second"), pytest.raises(HubError, match="client 'desk' was not known"):
        client.put(b"A.x", b"2", timeout=30)
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
        futures = [client.put_soon(b"A.x", b"%d" % number * 5_000, timeout=60) for number in range(300)]
        status, said = hub.wait()
        assert status == 0
        assert len(said) == 1, said
        with Hub(feed, tmp_path):
            client.flush(60)
            assert [future.result().sequence for future in futures] == list(range(300))
    assert payloads(tmp_path, feed) == [b"%d" % number * 5_000 for number in range(300)]


def test_no_other_publisher_can_use_the_outbox_of_a_hub(tmp_path: Path, feed: Feed) -> None:
    from blackbox.errors import JournalError

    other = msgspec.structs.replace(hub_feed("hub", slices=1), archives=())
    with Hub(feed, tmp_path), pytest.raises(JournalError):
        Publisher(other, outbox=tmp_path).start()


def test_a_put_that_was_known_is_no_message_of_the_epoch_and_what_follows_keeps_its_place(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is killed right behind the answer to the first put that is new in its epoch."""
    with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
        client.put(b"A.x", b"0", b"id-0")
    send, left = Hub._send, tmp_path / "left"

    def sends(self: Hub, socket: zmq.Socket[bytes], client: bytes, answer: Answer) -> None:
        send(self, socket, client, answer)
        if isinstance(answer, Stored) and answer.first == 2:
            shutil.copytree(tmp_path / "hub", left)

    with monkeypatch.context() as patch:
        patch.setattr(Hub, "_send", sends)
        with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
            client.put(b"A.x", b"0", b"id-0")
            place = client.put(b"A.x", b"1", b"id-1")
    with Hub(feed, left), HubClient(feed) as client:
        assert client.put(b"A.x", b"1", b"id-1") == place


def test_topics_that_are_published_again_are_counted_and_too_many_end_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = msgspec.structs.replace(hub_feed(slices=1), max_topics=2)
    left = dying_at(feed, tmp_path, monkeypatch, lambda number: number >= 1)
    with Hub(feed, left), HubClient(feed) as client:
        client.put(b"B", b"")
        with pytest.raises(HubError, match="b'C' was refused: slice 0 had 2 topics, its max_topics, and it is new"):
            client.put(b"C", b"")
        client.put(b"B", b"")
