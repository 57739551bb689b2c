"""Follow a running subscriber or recorder until something ends it, while the main thread shows how it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from blackbox.subscriber import State

_TICK_S = 0.1


class Running(Protocol):
    """What can be followed: a subscriber or a recorder."""

    @property
    def state(self) -> State:
        """Where it is in its life."""

    @property
    def is_finished(self) -> bool:
        """Whether every publisher has closed."""

    def stop(self) -> None:
        """End it, without loss."""


def follow(
    subscriber: Running,
    show: Callable[[], None],
    *,
    until_end: bool = False,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Wait, and call `show` ten times a second, until the subscriber has ended; then stop it.

    It ends by failure, which is raised as `Subscriber.run` raises it; when `is_enough`; with `until_end` when every
    publisher has closed; by KeyboardInterrupt, which is raised once everything received has been delivered.
    """
    from blackbox.subscriber import State

    pause = threading.Event()
    try:
        show()
        while subscriber.state is State.RUNNING and not is_enough() and not (until_end and subscriber.is_finished):
            pause.wait(_TICK_S)
            show()
    except KeyboardInterrupt:
        subscriber.stop()
        raise
    subscriber.stop()
