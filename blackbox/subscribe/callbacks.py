"""Callbacks: what a user registered, and how a worker gives it a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy
from numpy.typing import NDArray

from blackbox.arguments import name_of
from blackbox.block.batch import Batch
from blackbox.block.gap import Gap
from blackbox.errors import CallbackError, ConfigError
from blackbox.feed.prefixes import common_prefix
from blackbox.feed.symbol_choice import SymbolChoice
from blackbox.native.memory import shared_array

if TYPE_CHECKING:
    from blackbox.feed.schema import Schema

Kind = Literal["message", "batch", "compiled", "book"]
"""A book is called with a batch, the first of its messages that it is to take, and how many."""

IN_SLICE: Final = -1
"""In place of a worker's number: the thread of the slice itself, the last place of a table."""
_ALL = -1
_STRIDE = 256
"""Messages between two looks at whether the end has come."""


def callback_error(who: str, error: BaseException, where: str = "") -> CallbackError:
    """Return the error that tells what a function of the user raised, also where its text cannot be made."""
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - it is the user's own class
        text = f"(its text could not be made: {type(failed).__name__})"
    failure = CallbackError(f"{who} raised {type(error).__name__}: {text}{where and f' ({where})'}")
    failure.__cause__ = error
    return failure


class MisfitError(Exception):
    """A message is no record of its schema: a callback that gets fields is not called with it."""


class Callback:
    """One registered callback. It lives on worker `worker`, or IN_SLICE, of each slice that its topics can fall into.

    `active` turns False once and for all when it is removed: no batch begins after that. One that is `independent` does
    not care what others have seen: it takes no turns with them. Those of one `group` of one `owner` are on one worker.
    Batches are cut at multiples of `interval_ns`. It gets messages of some `message_types` alone (see `Batch.of_type`),
    or of any.
    """

    def __init__(
        self,
        kind: Kind,
        prefix: bytes,
        function: Callable[..., Any],
        worker: int,
        independent: bool = False,
        interval_ns: int | None = None,
        message_types: Sequence[str] | None = None,
    ) -> None:
        self.kind = kind
        self.prefixes: tuple[bytes, ...] = (prefix,)
        """Topics of its messages start with one of these. None of them starts with another."""
        self.function = function
        self.worker = worker
        self.independent = independent
        self.group: str | None = None
        self.owner: object = None
        self.interval_ns = interval_ns
        self.message_types = message_types
        self.symbols: SymbolChoice | None = None
        self.active = True
        self.is_misfit_logged = False

    def choose(self, symbols: SymbolChoice) -> None:
        """Take only messages of some symbols, among those of the prefix."""
        self.symbols, self.prefixes = symbols, (symbols.prefix,)

    @property
    def prefix(self) -> bytes:
        """Longest common start of the topics of its messages."""
        return common_prefix(self.prefixes)

    @property
    def starts(self) -> Sequence[tuple[bytes, bool]]:
        """How the topics of its messages start, each with whether that is the whole topic."""
        return [(each, False) for each in self.prefixes] if self.symbols is None else self.symbols.starts

    @property
    def takes_messages(self) -> bool:
        """Whether its function gets messages, all and as they are."""
        return self.kind == "message" and self.message_types is None and type(self) is Callback

    @property
    def name(self) -> str:
        """How the function is called, for messages to people."""
        return name_of(self.function)

    def reset(self, slice_id: int | None = None) -> None:
        """Forget what it keeps itself of one slice, or of all, since time goes back, or a publisher begins anew."""

    def restart(self, slice_id: int) -> None:
        """Learn, after `reset`, that a slice's publisher was started again: what was lost before it is not known."""

    def lose(self, gap: Gap) -> None:
        """Take note that messages were lost that may have been for it."""

    def check(self, schemas: Sequence[Schema | None]) -> None:
        """Raise ConfigError unless these schemas have what it asks for by name."""
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
        """Return the calls for a batch's messages, one made each time that it is asked, and what counts them down.

        Of the latter, `length_hint` tells how many are left: a call uses up one item, whether it raises or not.
        """
        places = iter(range(len(batch)))
        return map(self.function, batch.messages(places)), places

    def give(
        self, batch: Batch, on_error: Callable[[Callback, BaseException, Batch, int], bool], is_over: Callable[[], bool]
    ) -> int:
        """Call the user's function; returns how many messages it took.

        `on_error` is told of an exception and of the message's place in the batch, -1: all of it; and decides: True to
        go on with what follows, False to stop here. `is_over` is asked now and then between messages: True to stop.
        """
        if self.kind != "message":
            return self._give_batch(batch, on_error, is_over)
        calls, left = self.calls(batch)
        failed = 0
        while length_hint(left) and not is_over():
            try:
                deque(islice(calls, _STRIDE), maxlen=0)  # the loop runs in C; after an error it goes on behind it
            except BaseException as error:  # noqa: BLE001
                failed += 1
                if not on_error(self, error, batch, len(batch) - length_hint(left) - 1):
                    break
        return len(batch) - length_hint(left) - failed

    def _give_batch(
        self, batch: Batch, on_error: Callable[[Callback, BaseException, Batch, int], bool], is_over: Callable[[], bool]
    ) -> int:
        taken = 0
        pieces = [batch] if self.interval_ns is None else batch._by_interval_ns(self.interval_ns)
        for piece in chain.from_iterable(piece.by_feed() for piece in pieces):
            if taken and is_over():
                break
            try:
                self.function(piece) if self.kind == "batch" else self.function(piece, 0, len(piece))
            except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, also SystemExit
                if not on_error(self, error, piece, _ALL):
                    break
            else:
                taken += len(piece)
        return taken


class CompiledCallback(Callback):
    """A compiled callback, with one copy of its state for each slice.

    `states` maps slice id to the array that the callback of that slice writes, without the GIL and without a lock: read
    it as it is for monitoring, or after `stop()` for exact results. Also visible in the parent of `processes=True`.
    """

    def __init__(
        self,
        prefix: bytes,
        function: Callable[..., None],
        worker: int,
        state: NDArray[Any],
        entry: Any,
        independent: bool = False,
    ) -> None:
        super().__init__("compiled", prefix, function, worker, independent)
        self._initial = state.copy()
        self._entry = entry
        self.states: dict[int, NDArray[Any]] = {}
        self._lost: dict[int, NDArray[numpy.int64]] = {}

    @property
    def address(self) -> int:
        """Of the C function that workers and slice threads call."""
        return int(self._entry.address)

    def state_for(self, slice_id: int) -> NDArray[Any]:
        """The state of one slice, made on first use."""
        if slice_id not in self.states:
            state = shared_array(self._initial.shape, self._initial.dtype)
            state[...] = self._initial
            self.states[slice_id] = state
        return self.states[slice_id]

    def lost_of(self, slice_id: int) -> NDArray[numpy.int64]:
        """int64[1]: how many messages of one slice were lost since its last batch; made on first use."""
        return self._lost.setdefault(slice_id, numpy.zeros(1, numpy.int64))

    def reset(self, slice_id: int | None = None) -> None:
        """Give the state of one slice, or of all, what it began with."""
        for state in self.states.values() if slice_id is None else (self.state_for(slice_id),):
            state[...] = self._initial

    def total(self) -> Any:
        """The sum of the states of all slices: the result, where states are sums."""
        return numpy.sum(list(self.states.values()) or [self._initial], axis=0)
