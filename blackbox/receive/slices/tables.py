"""Versions of a slice's match table, which changes while the slice runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from blackbox.receive.callbacks.callbacks import Callback
from blackbox.receive.callbacks.match_table import Table, WorkerTable

_MOST_TABLES: Final = 64


class Tables:
    """The newest table, the one in use, and earlier ones that blocks in the workers' queues still need."""

    def __init__(self, table: Table) -> None:
        self.newest = table
        """Set by the owner."""
        self.current = table
        """Used by the slice thread since its last `switch`."""
        self._by_version = {table.version: table}
        self._timers = [timer for worker in table.workers for timer in worker.timers]

    @property
    def has_timers(self) -> bool:
        """True if a timer is not cancelled."""
        return any(timer.active for timer in self._timers)

    def switch(self, table: Table, in_use: Iterable[int]) -> None:
        """Use a table from now on. Forget the oldest ones before all versions `in_use`."""
        self.current = self._by_version[table.version] = table
        least = min(in_use, default=table.version)
        for version in sorted(self._by_version)[:-_MOST_TABLES]:
            if version < least:
                del self._by_version[version]

    def of_worker(self, number: int) -> Callable[[int], WorkerTable]:
        """Return the function that returns a worker's table of a version."""
        return lambda version: self._by_version[version].workers[number]

    def covers(self, filters: frozenset[bytes]) -> bool:
        """Return True if the newest filters accept everything that these would."""
        return all(each.startswith(tuple(self.newest.upstream)) for each in filters)

    def remove(self, callback: Callback) -> None:
        """Deliver no further batch to a callback."""
        for table in list(self._by_version.values()):
            for worker in table.workers:
                worker.remove(callback)
