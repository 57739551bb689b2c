"""The numbers of a hub's messages: one number line for each slice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from blackbox.services.hub.protocol import PLACE, Places


class Numbers:
    """Assign places to puts: in each slice one after the other, in one epoch.

    Attributes: `epoch`; `touched`, the slices in which numbers were assigned since its owner emptied it.
    """

    def __init__(self, slices: int) -> None:
        self.epoch = 0
        self.touched: set[int] = set()
        self._following = numpy.zeros(slices, numpy.int64)
        """Number of the next message, by slice."""

    def begin(self, epoch: int, following: Sequence[int]) -> None:
        """Continue in an epoch. `following`: number of the next message, by slice."""
        self.epoch, self._following = epoch, numpy.array(following, numpy.int64)

    def following(self) -> list[int]:
        """Return the number of the next message of each slice."""
        return self._following.tolist()

    def next(self, slice_id: int, count: int = 1) -> int:
        """Assign numbers to the next messages of a slice; return the first."""
        first: int = self._following.item(slice_id)
        self._following[slice_id] = first + count
        self.touched.add(slice_id)
        return first

    def places_of(self, slices: NDArray[numpy.int32], order: NDArray[numpy.int64]) -> Places:
        """Return the places of puts that are all new. `slices`: slice of each; `order`: rows in order of numbers."""
        if len(slices) == 1:
            slice_id = slices.item(0)
            return numpy.array([(slice_id, 1, 0, self.epoch, self.next(slice_id))], PLACE)
        places = numpy.zeros(len(slices), PLACE)
        places["slice"], places["is_new"] = slices, 1
        self.number(places, order)
        return places

    def number(self, places: Places, rows: NDArray[numpy.int64]) -> None:
        """Assign places in the epoch to rows, in this order. Their slices must be set."""
        places["epoch"][rows] = self.epoch
        slices = places["slice"][rows]
        for slice_id in numpy.unique(slices).tolist():
            mine = rows[slices == slice_id]
            places["sequence"][mine] = self.next(slice_id, len(mine)) + numpy.arange(len(mine))
