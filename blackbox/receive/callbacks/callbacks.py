"""Registered callbacks, and how a worker calls them with a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy
from numpy.typing import NDArray

from blackbox.arguments import name_of
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.batch_parts import by_interval_ns
from blackbox.block.gap import Gap
from blackbox.errors import CallbackError, ConfigError
from blackbox.feed.routing.prefixes import common_prefix
from blackbox.feed.symbol_choice import SymbolChoice
from blackbox.native.memory.arrays import shared_array

if TYPE_CHECKING:
    from blackbox.feed.schema.schema import Schema

Kind = Literal["message", "batch", "compiled", "book"]
"""A book is called with a batch, the first of the messages to apply, and their number."""

IN_SLICE: Final = -1
"""Worker number of the slice thread itself, the last entry of a table."""
_ALL = -1
STRIDE: Final = 256
"""Messages between two checks for the end."""


def callback_error(who: str, error: BaseException, where: str = "") -> CallbackError:
    """Return the error for an exception of a user's function, even if the exception has no readable text."""
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - the class is the user's
        text = f"(its text is not readable: {type(failed).__name__})"
    failure = CallbackError(f"{who} raised {type(error).__name__}: {text}{where and f' ({where})'}")
    failure.__cause__ = error
    return failure


def run_calls(calls: Iterator[object], left: Iterator[object], most: int) -> BaseException | None:
    """Make up to `most` calls in a C loop, one for each of `left`. Return the exception that ended it, if any."""
    expected = min(most, length_hint(left))
    try:
        done = len(list(islice(calls, most)))
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, even SystemExit
        return error
    return None if done == expected else StopIteration("of the callback")  # `islice` takes it for the end


class MisfitError(Exception):
    """A message does not match its schema: a callback that takes fields is not called with it."""


class Callback:
    """A registered callback. It runs on worker `worker`, or IN_SLICE, of each slice with matching topics.

    `active` becomes False on removal, after which no batch begins. An `independent` callback takes no turns with
    others. Callbacks of one `group` of one `owner` share a worker. Batches are split at multiples of `interval_ns`.
    With `message_types` it gets only those (see `Batch.of_type`). With `gets_all` it gets a message of several topics
    under each that matches, else once.
    """

    gets_all = False

    def __init__(
        self,
        kind: Kind,
        prefix: bytes,
        function: Callable[..., Any],
        *,
        independent: bool = False,
        interval_ns: int | None = None,
        message_types: Sequence[str] | None = None,
    ) -> None:
        self.kind = kind
        self.prefixes: tuple[bytes, ...] = (prefix,)
        """Prefixes of its topics. None is a prefix of another."""
        self.function = function
        self.worker = IN_SLICE
        self.independent = independent
        self.group: str | None = None
        self.owner: object = None
        self.interval_ns = interval_ns
        self.message_types = message_types
        self.symbols: SymbolChoice | None = None
        self.active = True
        self.is_misfit_logged = False

    def choose(self, symbols: SymbolChoice) -> None:
        """Take only messages of some symbols below the prefix."""
        self.symbols, self.prefixes = symbols, (symbols.prefix,)

    @property
    def prefix(self) -> bytes:
        """Longest common prefix of its topics."""
        return common_prefix(self.prefixes)

    @property
    def starts(self) -> Sequence[tuple[bytes, bool]]:
        """Starts of its topics, each with True if it is the whole topic."""
        return [(each, False) for each in self.prefixes] if self.symbols is None else self.symbols.starts

    @property
    def takes_messages(self) -> bool:
        """True if its function takes all messages unfiltered and unchanged."""
        return self.kind == "message" and self.message_types is None and type(self) is Callback

    @property
    def name(self) -> str:
        """Name of the function, for log and errors."""
        return name_of(self.function)

    def reset(self, slice_id: int | None = None) -> None:
        """Reset its state of one slice, or of all, since time goes back or a new epoch begins."""

    def restart(self, slice_id: int) -> None:
        """Note, after `reset`, that a slice's publisher was restarted: losses before it are unknown."""

    def lose(self, gap: Gap) -> None:
        """Note that messages were lost that may have been for it."""

    def check(self, schemas: Sequence[Schema | None]) -> None:
        """Raise ConfigError unless the schemas have the message types and fields that it names."""
        if self.message_types is None:
            return
        known = [schema for schema in schemas if schema is not None]
        found = {type_ for schema in known for type_ in schema._types_in(self.message_types)}
        for type_ in self.message_types:
            if type_ not in found:
                names = {name for schema in known for name in schema.names or schema.records}
                raise ConfigError(
                    f"callback {self.name} for {self.prefix!r}: message_type was {type_!r}, expected one of: "
                    f"{' '.join(sorted(names)) or 'none, as payloads are plain bytes'}"
                )

    def calls(self, batch: Batch) -> tuple[Iterator[object], Iterator[object]]:
        """Return an iterator that calls the function for one message per step, and one that counts the calls down.

        `length_hint` of the latter is the number of messages left: a call uses one item, even if it raises.
        """
        places = iter(range(len(batch)))
        return map(self.function, batch.messages(places)), places

    def give(
        self, batch: Batch, on_error: Callable[[Callback, BaseException, Batch, int], bool], is_over: Callable[[], bool]
    ) -> int:
        """Call the user's function; return the number of messages it handled.

        `on_error` gets an exception and the message's index in the batch, -1 for the whole batch; it returns True to
        continue after it, False to stop. `is_over` is called between some messages; True stops.
        """
        if self.kind != "message":
            return self._give_batch(batch, on_error, is_over)
        calls, left = self.calls(batch)
        failed = 0
        while length_hint(left) and not is_over():
            if (error := run_calls(calls, left, STRIDE)) is not None:
                failed += 1
                if not on_error(self, error, batch, len(batch) - length_hint(left) - 1):
                    break
        return len(batch) - length_hint(left) - failed

    def _give_batch(
        self, batch: Batch, on_error: Callable[[Callback, BaseException, Batch, int], bool], is_over: Callable[[], bool]
    ) -> int:
        taken = 0
        pieces = [batch] if self.interval_ns is None else by_interval_ns(batch, self.interval_ns)
        for piece in chain.from_iterable(piece.by_feed() for piece in pieces):
            if taken and is_over():
                break
            try:
                self.function(piece) if self.kind == "batch" else self.function(piece, 0, len(piece))
            except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, even SystemExit
                if not on_error(self, error, piece, _ALL):
                    break
            else:
                taken += len(piece)
        return taken


class TopicsCallback(Callback):
    """A callback that gets a message of several topics under each of them that matches."""

    gets_all = True


class CompiledCallback(Callback):
    """A compiled callback, with a copy of its state for each slice.

    `states` maps a slice id to the array that the callback of that slice writes, without GIL or lock: read it at any
    time for monitoring, or after `stop()` for exact results. Also visible in the parent of `processes=True`.
    """

    def __init__(
        self, prefix: bytes, function: Callable[..., None], state: NDArray[Any], entry: Any, independent: bool
    ) -> None:
        super().__init__("compiled", prefix, function, independent=independent)
        self._initial = state.copy()
        self._entry = entry
        self.states: dict[int, NDArray[Any]] = {}
        self._lost: dict[int, NDArray[numpy.int64]] = {}

    @property
    def address(self) -> int:
        """Address of the C function that workers and slice threads call."""
        return int(self._entry.address)

    def state_for(self, slice_id: int) -> NDArray[Any]:
        """Return the state of one slice, created on first use."""
        if slice_id not in self.states:
            state = shared_array(self._initial.shape, self._initial.dtype)
            state[...] = self._initial
            self.states[slice_id] = state
        return self.states[slice_id]

    def lost_of(self, slice_id: int) -> NDArray[numpy.int64]:
        """int64[1]: messages of one slice lost since its last batch; created on first use."""
        return self._lost.setdefault(slice_id, numpy.zeros(1, numpy.int64))

    def reset(self, slice_id: int | None = None) -> None:
        """Reset the state of one slice, or of all."""
        for state in self.states.values() if slice_id is None else (self.state_for(slice_id),):
            state[...] = self._initial

    def total(self) -> Any:
        """Return the sum of the states of all slices."""
        return numpy.sum(list(self.states.values()) or [self._initial], axis=0)
