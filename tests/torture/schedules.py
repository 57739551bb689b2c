"""Attacks in schedules: processes in a place of their own go on from one to the next, then all begins anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Protocol

from tests.torture.outcome import Outcome


class House(Protocol):
    """The processes that are attacked."""

    def run(self) -> None:
        """Run a schedule. Raises TimeoutError or AssertionError when it does not end as it must."""

    def end(self) -> None:
        """End what is to be looked at by `defects`. Raises as `run`."""

    def give_up(self) -> object:
        """Kill that, after an error; return what helps to understand it."""

    def defects(self) -> Iterable[str]:
        """Yield what is wrong with what is left."""


def run_schedules(what: str, seconds: float, most: int, begin: Callable[[ExitStack, Path], House]) -> Outcome:
    """Run schedules until the time is over, at least one; after `most` of them all begins anew, in another place."""
    outcome, until = Outcome(0, what), monotonic() + seconds
    while outcome.tried == 0 or monotonic() < until:
        with TemporaryDirectory() as place, ExitStack() as stack:
            house = begin(stack, Path(place))
            try:
                for _ in range(most):
                    if outcome.tried == 0 or monotonic() < until:
                        house.run()
                        outcome.tried += 1
                house.end()
            except (TimeoutError, AssertionError) as error:
                outcome.found.append(f"schedule {outcome.tried}: {error}: {house.give_up()}")
            outcome.found += [f"up to schedule {outcome.tried}: {defect}" for defect in house.defects()]
    return outcome
