"""Returns to the past: tell a subscriber's hooks, between the messages before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from blackbox.block.format import MOST_RETURNS

if TYPE_CHECKING:
    from blackbox.subscribe.worker import Worker

_TICK_S: Final = 0.001


def goes_back(before: int, epoch: int) -> bool:
    """Whether a publisher that goes on in another epoch has gone back in time; else another run has begun."""
    return before != 0 and 0 < epoch - before <= MOST_RETURNS


class Returns:
    """Calls the hooks when the publisher of a slice goes back in time: once, while none of its callbacks runs.

    The first worker that comes to the new epoch waits until all others have, or have nothing left of the one before.
    """

    def __init__(self, hooks: Sequence[Callable[[], object]], workers: Sequence[Worker]) -> None:
        """For the workers of one slice; both lists may grow."""
        self._hooks, self._workers = hooks, workers
        self._changed = threading.Condition()
        self._reached: dict[int, int] = {}
        """The epoch that each worker has come to."""
        self._epoch = 0

    def enter(self, number: int, epoch: int, is_over: Callable[[], bool]) -> None:
        """Come to an epoch in the thread of worker `number`, or IN_SLICE; return when it may deliver, or it is over.

        Raises what a hook raises.
        """
        with self._changed:
            self._reached[number] = epoch
            while self._hooks and goes_back(self._epoch, epoch) and not self._have_all_come(epoch):
                if is_over():
                    return
                self._changed.wait(_TICK_S)
            before, self._epoch = self._epoch, epoch
            self._changed.notify_all()
            if goes_back(before, epoch):
                for hook in self._hooks:
                    hook()

    def _have_all_come(self, epoch: int) -> bool:
        return all(self._reached.get(each.number, 0) >= epoch or each.is_idle() for each in self._workers)
