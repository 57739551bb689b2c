"""The ordered runs of a rival's process, which `publish`, `receive`, `record` and `replay` loop over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from bench.measure.contest import Lost, expect
from bench.processes.child import answer, orders
from bench.processes.pair import Heard, Order
from bench.workload.tally import expect_tally

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.workload.load import Load


class Runs:
    """Iterate to get each run's order; answer with `sent`, or `receiving` and `received`, or `done`.

    All times are unix ns. Iterate only when connected: requesting the first run reports that this process is ready.
    """

    def __init__(self) -> None:
        self._orders = orders()
        self._before_s = 0.0
        self.order: Order

    def next(self) -> Load | None:
        """Wait for the next run and return it, or None at the end. It blocks: an event loop calls it in a thread."""
        said = next(self._orders, None)
        if said is None:
            return None
        self.order = msgspec.convert(said, Order)
        self._before_s = time.process_time()
        return self.order.load

    def __iter__(self) -> Iterator[Load]:
        while (load := self.next()) is not None:
            yield load

    def sent(self, began: int) -> None:
        """Report that the run is handed to the transport, and when its first call began."""
        paced = self.order.load.rate
        # A pacer spins until a message is due, so its CPU time is meaningless.
        cpu_s = None if paced else time.process_time() - self._before_s
        answer(began=began, cpu_s=cpu_s)

    def receiving(self) -> None:
        """Report that the publisher may start."""
        answer()

    def received(self, ended: int, state: NDArray[Any]) -> None:
        """Report when the last callback returned; `state` is int64[topics, 3] of count, digest, sum."""
        load = self.order.load
        self.found(lambda _: {"ended": ended, "messages": load.messages, **_tallied(state, load)})

    def found(self, findings: Callable[[int], dict[str, Any]]) -> None:
        """Report that all was received. `findings` maps the run's start to fields of `Heard`, or raises Lost."""
        cpu_s = time.process_time() - self._before_s
        began = next(self._orders)["began"]
        self._answer(cpu_s, lambda: findings(began))

    def done(self, began: int, ended: int, state: NDArray[Any]) -> None:
        """Report the tally of a process that both sends and receives."""
        self.verified(began, ended, lambda: _tallied(state, self.order.load))

    def verified(self, began: int, ended: int, findings: Callable[[], dict[str, Any]]) -> None:
        """Report the end of a process that both sends and receives; `findings` raises Lost if its check fails."""
        cpu_s = time.process_time() - self._before_s
        self._answer(cpu_s, lambda: {"began": began, "ended": ended, **findings()})

    def _answer(self, cpu_s: float, findings: Callable[[], dict[str, Any]]) -> None:
        try:
            heard = Heard(cpu_s=cpu_s, **findings())
        except Lost as lost:
            heard = Heard(lost=str(lost))
        answer(**msgspec.structs.asdict(heard))


def _tallied(state: NDArray[Any], load: Load) -> dict[str, Any]:
    expect_tally(state, load, by_topic=True)
    return {}


def expect_stored(stored: Any, messages: int) -> dict[str, Any]:
    """Raise Lost unless a server has stored `messages`."""
    expect("messages stored", stored, messages)
    return {}
