"""Invalid transitions are rejected, valid ones are logged, and every state is reachable."""

from __future__ import annotations

import logging
from importlib import import_module

import pytest

from blackbox.errors import PublisherError
from blackbox.feed.feed import Feed
from blackbox.life import Life
from blackbox.testing import RawPublisher, RawPublisherLife
from tests.support import ROOT, SOURCES

for path in SOURCES:
    if "(Life):" in path.read_text():
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("feeds."))
LIVES = sorted(Life.__subclasses__(), key=lambda life: life.__name__)
"""The states of all classes."""


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
    reached = [next(iter(life))]
    for member in reached:
        reached += [life(text) for text in member.following if life(text) not in reached]
    assert sorted(reached) == sorted(life)
