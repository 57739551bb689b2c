"""Attacks in schedules: processes keep running from one schedule to the next, then restart in a fresh directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Protocol

from tests.torture.outcome import Outcome


class House(Protocol):
    """The attacked processes."""

    def run(self) -> None:
        """Run a schedule. Raises TimeoutError or AssertionError if it fails."""

    def end(self) -> None:
        """End the processes before `defects`. Raises the same errors as `run`."""

    def give_up(self) -> object:
        """Kill the processes after an error; return diagnostics."""

    def defects(self) -> Iterable[str]:
        """Yield defects in the results."""


def run_schedules(what: str, seconds: float, most: int, begin: Callable[[ExitStack, Path], House]) -> Outcome:
    """Run schedules until the time is over, at least one; after `most` of them restart in a fresh directory."""
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
