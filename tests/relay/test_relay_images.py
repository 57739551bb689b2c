"""A relay with images starts late subscribers below it without the source, exactly as the source's archive does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from blackbox import ConfigError, Feed, Publisher, Recorder, Relay, Subscriber
from blackbox.archive.serve.client import ArchiveClient, SliceImage
from blackbox.errors import ArchiveError, JournalError, RelayError
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.relay import images
from blackbox.testing import wait_until
from tests.archive.recorders import wait_recorded
from tests.relay.relays import BEAT_NS, PATIENCE_S


def feeds_of(key_bytes: int = 0) -> tuple[Feed, Feed]:
    """Return the feed above and below a relay, each with an archive."""
    ((one, other),) = free_endpoints("tcp", "images", 1, 2)
    above, below = (Feed.local("images", slices=2, key_bytes=key_bytes) for _ in range(2))
    return (
        msgspec.structs.replace(above, archives=(one,), heartbeat_ns=BEAT_NS),
        msgspec.structs.replace(below, archives=(other,), heartbeat_ns=BEAT_NS),
    )


class Running(NamedTuple):
    publisher: Publisher
    recorder: Recorder
    relay: Relay


@contextmanager
def running(above: Feed, below: Feed, place: Path) -> Iterator[Running]:
    """A recorded feed with messages from before the relay, and a relay with images."""
    with Publisher(above) as publisher, Recorder(above, place / "source", serve=True) as recorder:
        for number in range(300):
            publisher.publish(b"%d.early" % (number % 40), b"%d" % number)
        publisher.publish(b"3.early", None)
        wait_recorded(recorder, 301)
        with Relay(above, below, images=place / "relay") as relay:
            assert relay._images is not None
            assert relay._images.ready.wait(PATIENCE_S)
            yield Running(publisher, recorder, relay)


def values_at(feed: Feed) -> dict[bytes, bytes]:
    """Return the values that a late subscriber starts with."""
    subscriber = Subscriber(feed)
    table = subscriber.table(b"")
    with subscriber.start(PATIENCE_S, snapshot="latest"):
        assert table.wait_synced(PATIENCE_S)
        return table.snapshot()[0]


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_late_subscribers_below_a_relay_get_the_values_of_the_source(tmp_path: Path, key_bytes: int) -> None:
    above, below = feeds_of(key_bytes)
    values = {b"%d.early" % (number % 40): b"%d" % number for number in range(300)}
    del values[b"3.early"]
    with running(above, below, tmp_path) as run:
        run.recorder.stop()  # the source's archive answers no more
        assert values_at(below) == values
        for number in range(100):  # some of them pass after the relay's start, some topics are removed
            topic, value = b"%d.early" % (number % 7), b"late %d" % number
            run.publisher.publish(topic, value)
            values[topic] = value
        run.publisher.publish(b"5.early", None)
        del values[b"5.early"]
        run.publisher.flush()
        wait_until(lambda: values_at(below) == values, PATIENCE_S)
        assert run.relay.statistics().images is not None
    assert list((tmp_path / "relay" / "relay-images").glob("*")) == []


def test_a_late_subscriber_below_a_relay_continues_without_a_gap(tmp_path: Path) -> None:
    above, below = feeds_of()
    with running(above, below, tmp_path) as run:
        subscriber = Subscriber(below)
        table = subscriber.table(b"")
        with subscriber.start(PATIENCE_S, snapshot="latest"):
            for number in range(1_000):
                run.publisher.publish(b"%d.late" % (number % 40), b"%d" % number)
            run.publisher.flush()
            expected = {b"%d.late" % (number % 40): b"%d" % number for number in range(1_000)}
            wait_until(lambda: expected.items() <= table.snapshot()[0].items(), PATIENCE_S)
            assert subscriber.statistics().received.gaps == 0


def test_images_go_on_after_a_late_answer_and_end_with_their_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, below = feeds_of()
    asked, image = list[int](), ArchiveClient.image

    def late(self: ArchiveClient, slice_id: int, prefixes: Any = (b"",), **settings: Any) -> SliceImage:
        if prefixes == (images._NO_TOPIC,):
            asked.append(slice_id)
            raise ArchiveError("it was late")
        return image(self, slice_id, prefixes, **settings)

    monkeypatch.setattr(images, "_READ_EVERY_S", 0.01)
    monkeypatch.setattr(ArchiveClient, "image", late)
    with pytest.raises(JournalError, match="no space"), running(above, below, tmp_path) as run:
        wait_until(lambda: len(asked) > 4, PATIENCE_S)
        of_relay = run.relay._images
        assert of_relay is not None
        assert of_relay.error is None
        assert len(values_at(below)) == 39
        of_relay._recorder._journals.keeper.fail("no space")
        wait_until(lambda: "no space" in str(of_relay.error), PATIENCE_S)


def test_values_of_an_earlier_relay_do_not_come_back(tmp_path: Path) -> None:
    above, below = feeds_of()
    with running(above, below, tmp_path) as run:
        left = tmp_path / "relay" / "relay-images" / "left-by-a-kill"
        left.mkdir()
        run.relay.close()
        left.mkdir(parents=True)
        run.publisher.publish(b"7.early", None)
        run.publisher.flush()
        wait_recorded(run.recorder, 302)
        with Relay(above, below, images=tmp_path / "relay") as relay:
            assert relay._images is not None
            assert relay._images.ready.wait(PATIENCE_S)
            assert not left.exists()
            values = values_at(below)
            assert b"7.early" not in values
            assert len(values) == 38


def test_a_relay_with_images_needs_an_archive_of_its_own(tmp_path: Path) -> None:
    above, below = feeds_of()
    with pytest.raises(ConfigError, match="expected first an endpoint for the relay's own images"):
        Relay(above, msgspec.structs.replace(below, archives=above.archives), images=tmp_path)


def test_a_relay_closes_while_it_waits_for_its_source(tmp_path: Path) -> None:
    above, below = feeds_of()
    with Relay(above, below, images=tmp_path) as relay:
        assert relay.statistics().images is None


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    above, below = feeds_of()
    (tmp_path / "file").write_bytes(b"")
    relay = Relay(above, below, images=tmp_path / "file")
    with pytest.raises(JournalError, match="cannot hold the images of a relay: Not a directory"):
        relay.start()
    assert relay.state == "closed"


def test_any_error_of_the_images_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above, below = feeds_of()

    def fail(_self: images.RelayImages) -> dict[int, SliceImage]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(images.RelayImages, "_images_above", fail)
    relay = Relay(above, below, images=tmp_path)
    with pytest.raises(RelayError, match="no images any more: a bug"), Publisher(above), relay:
        wait_until(lambda: relay._images is not None and relay._images.error is not None, PATIENCE_S)
