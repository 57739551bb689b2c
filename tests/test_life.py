"""Lives: what may not follow is refused, what follows is logged."""

from __future__ import annotations

import logging

import pytest

from blackbox.life import Life


class DoorLife(Life):
    OPEN = "open", "shut"
    SHUT = "shut", "shut", "open", "locked"
    LOCKED = "locked"


def test_what_follows_is_entered_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
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
def test_what_may_not_follow_is_refused(life: DoorLife, wrong: DoorLife, text: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{text}$"):
        life.enter(wrong, "door 7")
