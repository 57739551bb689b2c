"""Epochs that begin: tell a subscriber's hooks, between the messages before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from blackbox.subscribe.callbacks import callback_error

if TYPE_CHECKING:
    from blackbox.subscribe.worker import Worker

_TICK_S: Final = 0.001


class EpochHooks(NamedTuple):
    """What a user wants to be called when an epoch begins. Both lists may grow."""

    on_epoch: list[Callable[[int, int], object]]
    """Called with the slice and the epoch."""
    on_reset: list[Callable[[], object]]
    """Not called for the first epoch that comes."""


NO_HOOKS: Final = EpochHooks([], [])


class Beginnings:
    """Calls the hooks when the publisher of a slice begins an epoch: once, while none of its callbacks runs.

    The first worker that comes to the new epoch waits until all others have, or have nothing left of the one before.
    """

    def __init__(self, slice_id: int, hooks: EpochHooks, workers: Sequence[Worker]) -> None:
        """For the workers of one slice, a list that may grow."""
        self._slice_id, self._hooks, self._workers = slice_id, hooks, workers
        self._changed = threading.Condition()
        self._reached: dict[int, int] = {}
        """The epoch that each worker has come to."""
        self._epoch = 0

    def enter(self, number: int, epoch: int, is_over: Callable[[], bool]) -> None:
        """Come to an epoch in the thread of worker `number`, or IN_SLICE; return when it may deliver, or it is over.

        Raises CallbackError when a hook raises.
        """
        with self._changed:
            self._reached[number] = epoch
            while any(self._hooks) and self._epoch != epoch and not self._have_all_come(epoch):
                if is_over():
                    return
                self._changed.wait(_TICK_S)
            before, self._epoch = self._epoch, epoch
            self._changed.notify_all()
            if before == epoch:
                return
            self._tell(epoch, is_first=before == 0)

    def _tell(self, epoch: int, *, is_first: bool) -> None:
        which = "on_epoch"
        try:
            for hook in self._hooks.on_epoch:
                hook(self._slice_id, epoch)
            which = "on_reset"
            for reset in () if is_first else self._hooks.on_reset:
                reset()
        except BaseException as error:  # a user's function may raise anything, also SystemExit
            raise callback_error(f"slice {self._slice_id}: {which}", error) from error

    def _have_all_come(self, epoch: int) -> bool:
        return all(self._reached.get(each.number, 0) >= epoch or each.is_idle() for each in self._workers)
