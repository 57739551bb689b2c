"""Hooks for new epochs and the switch to live, called between the messages before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from blackbox.errors import CallbackError
from blackbox.receive.callbacks.callbacks import callback_error

if TYPE_CHECKING:
    from blackbox.receive.deliver.worker import Worker

_TICK_S: Final = 0.001
OnError = Callable[[CallbackError], bool]
"""It gets exceptions of hooks and returns whether to continue."""


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
        self._waits_at: dict[int, int] = {}
        """Turn at which each worker waits; 0: it does not wait."""
        self._passed = 0

    def pass_through(
        self,
        number: int,
        turn: int,
        *,
        waits: bool,
        is_first: bool,
        is_over: Callable[[], bool],
        do: Callable[[int], None],
    ) -> None:
        """Arrive at a turn in the thread of a worker, or IN_SLICE, and wait for all others that still have work.

        One of them calls `do` with the previous turn. Returns also if `is_over`. `is_first`: no turn comes before this
        one, so all have passed it if any has passed another one.
        """
        with self._changed:
            self._reached[number] = self._waits_at[number] = turn
            while waits and not self._has_passed(turn, is_first) and not self._have_all_come(turn):
                if is_over():
                    return
                self._changed.wait(_TICK_S)
            self._waits_at[number] = 0
            if not self._has_passed(turn, is_first):
                before, self._passed = self._passed, turn
                self._changed.notify_all()
                do(before)

    def _has_passed(self, turn: int, is_first: bool) -> bool:
        """Return True if the slice has passed a turn."""
        return self._passed == turn or (is_first and self._passed != 0)

    def _have_all_come(self, turn: int) -> bool:
        """Return True if no worker has earlier work. One without messages of this turn may wait at a later one."""
        return all(
            self._reached.get(each.number, 0) == turn or self._waits_at.get(each.number, 0) > turn or each.is_idle()
            for each in self._workers
        )


class SliceHookCaller:
    """Calls the hooks when the publisher of a slice begins an epoch, or the slice goes live.

    Each hook is called once, while no callback of the slice runs: the first worker waits until all others have arrived,
    or have no earlier work left.
    """

    def __init__(self, slice_id: int, hooks: Callable[[], SliceHooks], workers: Sequence[Worker]) -> None:
        """Call hooks for the workers of one slice, a list that may grow. `hooks` returns the current hooks."""
        self._slice_id, self._hooks = slice_id, hooks
        self._epochs, self._lives = _Gate(workers), _Gate(workers)

    def enter(
        self,
        number: int,
        epoch: int,
        is_over: Callable[[], bool],
        begins: Callable[[], None],
        on_error: OnError,
        *,
        is_first: bool,
    ) -> None:
        """Arrive at an epoch in the thread of worker `number`, or IN_SLICE; return when it may deliver or `is_over`.

        `begins` is called before hooks are, in the thread that calls them. `is_first`: the slice has no earlier epoch.
        """

        def tell(before: int) -> None:
            begins()
            if self._call("on_epoch", self._hooks().on_epoch, on_error, self._slice_id, epoch) and before != 0:
                self._call("on_reset", self._hooks().on_reset, on_error)

        hooks = self._hooks()
        waits = any((hooks.on_epoch, hooks.on_reset))
        self._epochs.pass_through(number, epoch, waits=waits, is_first=is_first, is_over=is_over, do=tell)

    def go_live(
        self, number: int, turn: int, is_over: Callable[[], bool], begins: Callable[[], None], on_error: OnError
    ) -> None:
        """Do the same for the switch to live. `turn`: number of switches so far."""

        def tell(_: int) -> None:
            begins()
            self._call("on_live", self._hooks().on_live, on_error, self._slice_id)

        self._lives.pass_through(number, turn, waits=True, is_first=False, is_over=is_over, do=tell)

    def _call(self, which: str, hooks: Iterable[Callable[..., object]], on_error: OnError, *arguments: int) -> bool:
        """Call hooks, also after one that raises; return False to stop."""
        for hook in hooks:
            try:
                hook(*arguments)
            except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, even SystemExit
                if not on_error(callback_error(f"slice {self._slice_id}: {which}", error)):
                    return False
        return True
