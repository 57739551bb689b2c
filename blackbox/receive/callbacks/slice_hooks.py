"""Hooks for new epochs and the switch to live, called between the messages before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from blackbox.receive.callbacks.callbacks import callback_error

if TYPE_CHECKING:
    from blackbox.receive.deliver.worker import Worker

_TICK_S: Final = 0.001


class SliceHooks(NamedTuple):
    """Functions to call when a slice enters an epoch or goes live."""

    on_epoch: list[Callable[[int, int], object]]
    """Called with the slice and the epoch."""
    on_reset: list[Callable[[], object]]
    """Not called for the first epoch."""
    on_live: list[Callable[[int], object]]
    """Called with the slice, once archives have delivered all messages before the live ones."""


NO_HOOKS: Final = SliceHooks([], [], [])


class _Gate:
    """Makes the workers of a slice wait until all have arrived; one then acts while no callback runs."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._changed = threading.Condition()
        self._reached: dict[int, int] = {}
        """Last turn that each worker has reached. A publisher whose clock was set back begins an earlier epoch."""
        self._passed = 0

    def pass_through(
        self, number: int, turn: int, *, waits: bool, is_over: Callable[[], bool], do: Callable[[int], None]
    ) -> None:
        """Arrive at a turn in the thread of a worker, or IN_SLICE, and wait for all others that still have work.

        One of them calls `do` with the previous turn. Returns also if `is_over`.
        """
        with self._changed:
            self._reached[number] = turn
            while waits and self._passed != turn and not self._have_all_come(turn):
                if is_over():
                    return
                self._changed.wait(_TICK_S)
            before, self._passed = self._passed, turn
            self._changed.notify_all()
            if before != turn:
                do(before)

    def _have_all_come(self, turn: int) -> bool:
        return all(self._reached.get(each.number, 0) == turn or each.is_idle() for each in self._workers)


class SliceHookCaller:
    """Calls the hooks when the publisher of a slice begins an epoch, or the slice goes live.

    Each hook is called once, while no callback of the slice runs: the first worker waits until all others have arrived,
    or have no earlier work left.
    """

    def __init__(self, slice_id: int, hooks: Callable[[], SliceHooks], workers: Sequence[Worker]) -> None:
        """Call hooks for the workers of one slice, a list that may grow. `hooks` returns the current hooks."""
        self._slice_id, self._hooks = slice_id, hooks
        self._epochs, self._lives = _Gate(workers), _Gate(workers)

    def enter(self, number: int, epoch: int, is_over: Callable[[], bool]) -> None:
        """Arrive at an epoch in the thread of worker `number`, or IN_SLICE; return when it may deliver or `is_over`.

        Raises CallbackError if a hook raises.
        """
        hooks = self._hooks()
        waits = any((hooks.on_epoch, hooks.on_reset))
        self._epochs.pass_through(
            number, epoch, waits=waits, is_over=is_over, do=lambda before: self._tell_epoch(epoch, is_first=before == 0)
        )

    def go_live(self, number: int, turn: int, is_over: Callable[[], bool]) -> None:
        """Do the same for the switch to live. `turn`: number of switches so far."""
        self._lives.pass_through(number, turn, waits=True, is_over=is_over, do=lambda _: self._tell_live())

    def _tell_epoch(self, epoch: int, *, is_first: bool) -> None:
        self._call("on_epoch", self._hooks().on_epoch, self._slice_id, epoch)
        self._call("on_reset", () if is_first else self._hooks().on_reset)

    def _tell_live(self) -> None:
        self._call("on_live", self._hooks().on_live, self._slice_id)

    def _call(self, which: str, hooks: Iterable[Callable[..., object]], *arguments: int) -> None:
        for hook in hooks:
            try:
                hook(*arguments)
            except BaseException as error:  # a user's function may raise anything, even SystemExit
                raise callback_error(f"slice {self._slice_id}: {which}", error) from error
