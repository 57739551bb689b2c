"""Invalid transitions are rejected, valid ones are logged, and every state is reachable."""

from __future__ import annotations

import logging

import pytest
from blackbox_feeds.itch50.soupbintcp_connection import ConnectionLife

from blackbox.archive.record.journals import JournalsLife
from blackbox.errors import PublisherError
from blackbox.feed.feed import Feed
from blackbox.life import Life
from blackbox.publish.publisher import PublisherLife
from blackbox.publish.send.slice_sender import SenderLife
from blackbox.receive.deliver.worker import WorkerLife
from blackbox.receive.state import SliceLife
from blackbox.receive.stream_queue import StreamLife
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.replay.controls import ControlsLife
from blackbox.services.hub.pair.leadership import PairLife
from blackbox.services.monitor.heartbeats import LineState
from blackbox.services.relay.relay import RelayLife
from blackbox.services.relay.slice_relay import SliceRelayLife
from blackbox.subscriber.consumer import ConsumerLife
from blackbox.testing import RawPublisher, RawPublisherLife
from blackbox.transport.server_thread import ServerLife

LIVES: list[type[Life]] = [
    ConnectionLife,
    ConsumerLife,
    ControlsLife,
    JournalsLife,
    LineState,
    PairLife,
    PublisherLife,
    RawPublisherLife,
    RelayLife,
    SenderLife,
    ServerLife,
    SliceLife,
    SliceRelayLife,
    StreamLife,
    SubscriberLife,
    WorkerLife,
]


class DoorLife(Life):
    OPEN = "open", "shut"
    SHUT = "shut", "shut", "open", "locked"
    LOCKED = "locked"


def test_transitions_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "blackbox"):
        life = DoorLife.OPEN.enter(DoorLife.SHUT, "door 7").enter(DoorLife.SHUT, "door 7")
    assert life is DoorLife.SHUT
    assert caplog.messages == ["door 7: open -> shut"]


@pytest.mark.parametrize(
    ("life", "wrong", "text"),
    [
        (DoorLife.OPEN, DoorLife.LOCKED, "door 7 was to be locked when it was open, expected shut"),
        (DoorLife.OPEN, DoorLife.OPEN, "door 7 was to be open when it was open, expected shut"),
        (DoorLife.LOCKED, DoorLife.OPEN, "door 7 was to be open when it was locked, expected nothing more"),
    ],
)
def test_invalid_transitions_are_rejected(life: DoorLife, wrong: DoorLife, text: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{text}$"):
        life.enter(wrong, "door 7")


def test_a_raw_publisher_is_used_once() -> None:
    publisher = RawPublisher(Feed.local("raw"))
    with publisher, pytest.raises(PublisherError, match="start was called when running; a raw publisher is used once"):
        publisher.start()
    publisher.close()
    with pytest.raises(PublisherError, match="start was called when closed; a raw publisher is used once"):
        publisher.start()
    with pytest.raises(RuntimeError, match="raw publisher of feed 'raw' was to be new when it was closed, expected"):
        publisher._enter(RawPublisherLife.NEW)


@pytest.mark.parametrize("life", LIVES)
def test_every_state_is_reachable_with_known_successors(life: type[Life]) -> None:
    assert set(Life.__subclasses__()) == {DoorLife, *LIVES}
    reached = [next(iter(life))]
    for member in reached:
        reached += [life(text) for text in member.following if life(text) not in reached]
    assert sorted(reached) == sorted(life)
