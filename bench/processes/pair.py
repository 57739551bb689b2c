"""A contender in processes of its own, and its rounds: a sender and a receiver, or one process that does all.

bench ──order──> receiver: subscribes, answers     bench ──order──> sender: sends all, answers when it began
bench ──began──> receiver: answers what came, when the last callback returned, and what it cost
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Literal, Self

import msgspec

from bench.measure.contest import Figure, Lost, Overloaded, Spent
from bench.measure.cost import cpu_seconds, wire_bytes
from bench.processes.child import Child, Ended
from bench.workload.load import Load
from blackbox import Feed

ROUND_S: Final = 90.0
_END_S: Final = 10.0
_LEAST_REACHED: Final = 0.9
"""Of a rate; a run that reaches less is void."""

Form = Literal[
    "compiled", "together", "batch", "each", "digest", "python", "nothing", "blocks", "messages",
    "stream", "stream of batches", "stream in asyncio",
    "late", "late compiled", "late batches", "stages",
]  # fmt: skip
"""What a receiver does with messages: see `bench.processes.forms` and `bench.rivals.plain_pyzmq`."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver does with a run."""

    form: Form = "messages"
    prefixes: tuple[bytes, ...] = (b"",)
    workers: int = 1
    processes: bool = False
    on_slow: Literal["raise", "warn"] | None = None
    """It sleeps at everything it gets, and this is what it does about it. Not slow: None."""
    checkpoints_per_s: int = 0
    """How often a thread beside it makes a checkpoint."""


class Order(msgspec.Struct, frozen=True):
    """What both sides are told."""

    load: Load
    work: Work = Work()


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a sender answers."""

    began: int
    """Before the first call, unix ns."""
    ended: int = 0
    """After the last call, unix ns; not all may be with the transport."""
    flushed: int = 0
    """When it was."""
    cpu_s: float | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver answers, or a process that does all."""

    began: int = 0
    """Of a process that does all, unix ns."""
    ended: int = 0
    """When the last callback returned, unix ns."""
    cpu_s: float = 0.0
    lost: str = ""
    """Why the round is void."""
    messages: int = 0
    missed: int = 0
    """Messages of a paced run that did not come."""
    late_us: dict[str, float] = {}
    """Percentiles of the time since a message was due."""
    stages: dict[str, float] = {}
    has_terminated: bool = False
    """It found that it was too slow, and ended."""
    blocks: int = 0
    stored_bytes: int = 0


def play(sender: Child, receivers: Sequence[Child], orders: Sequence[Order]) -> tuple[Sent, list[Heard]]:
    """Play one run, sent as the first order says, to each receiver. Ends all of them, and raises Ended, if one ends."""
    try:
        for receiver, order in zip(receivers, orders, strict=True):
            receiver.send(order)
        for receiver in receivers:
            receiver.answer()  # it has subscribed
        sender.send(orders[0])
        sent = msgspec.convert(sender.answer(beside=receivers), Sent)
        for receiver in receivers:
            receiver.send({"began": sent.began})
        return sent, [msgspec.convert(receiver.answer(ROUND_S), Heard) for receiver in receivers]
    except Ended:
        for child in (sender, *receivers):  # one that waits for the other would wait in every round to come
            child.kill()
        raise


class Pair:
    """A sender and a receiver, and any server between them. `sent` and `heard` are of the last round."""

    sent: Sent
    heard: Heard

    def __init__(
        self,
        sender: Callable[[], Child],
        receiver: Callable[[], Child],
        *,
        server_pid: int = 0,
        strict: bool = True,
    ) -> None:
        self._server = server_pid
        with ExitStack() as stack:
            # The publisher binds before the subscriber connects.
            self._sender = stack.enter_context(closing(sender(), strict))
            self._receiver = stack.enter_context(closing(receiver(), strict))
            self._stack = stack.pop_all()

    @classmethod
    def ours(cls, *feeds: Feed, **settings: Any) -> Self:
        """Our publisher, with these settings, and our subscriber."""
        return cls(
            partial(Child, "bench.processes.sender:publish", feeds=feeds, **settings),
            partial(Child, "bench.processes.receiver:receive"),
        )

    @classmethod
    def rival(cls, module: str, *, server_pid: int = 0, **arguments: Any) -> Self:
        """The functions `publish` and `receive` of a module of `bench.rivals`, with the same arguments."""
        return cls(
            partial(Child, f"bench.rivals.{module}:publish", **arguments),
            partial(Child, f"bench.rivals.{module}:receive", **arguments),
            server_pid=server_pid,
            strict=False,
        )

    def round(self, load: Load, work: Work = Work()) -> Figure:  # noqa: B008  # it is frozen
        """Return M messages/s from the sender's first call to the return of the last callback. Raises Lost.

        The sender's CPU time includes the server's.
        """
        served_s, crossed = self._served_s(), wire_bytes()
        self.sent, (self.heard,) = play(self._sender, [self._receiver], [Order(load, work)])
        served_s, crossed = self._served_s() - served_s, wire_bytes() - crossed
        if self.heard.lost:
            raise Lost(self.heard.lost)
        sent_s = None if self.sent.cpu_s is None else self.sent.cpu_s + served_s
        # Fewer bytes than messages are those of others.
        spent = Spent(sent_s, self.heard.cpu_s, crossed if crossed > load.messages else None, load.messages)
        return Figure(self.heard.messages * 1e3 / max(1, self.heard.ended - self.sent.began), spent)

    def late(self, load: Load, work: Work) -> tuple[dict[str, float], Figure]:
        """Return the percentiles of a paced run that lost nothing, µs, and its rate. Raises Lost, or Overloaded."""
        figure = self.round(load, work)
        if self.heard.missed:
            raise Lost(f"messages lost was {self.heard.missed:,}, expected 0")
        if figure.value * 1e6 < _LEAST_REACHED * load.rate:
            raise Overloaded(f"overloaded: {figure.value * 1e6:,.0f} messages/s were reached of {load.rate:,}")
        return self.heard.late_us, figure

    def _served_s(self) -> float:
        return cpu_seconds(self._server) if self._server else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Single:
    """One process that does all the work, with its server if there is one."""

    def __init__(self, function: str, *, server_pid: int = 0, **arguments: Any) -> None:
        self._child = Child(function, **arguments)
        self._server = server_pid

    def round(self, load: Load, work: Work = Work()) -> Figure:  # noqa: B008  # it is frozen
        """Return M messages/s between what it calls its begin and its end. The server's CPU time is the sender's."""
        served_s, crossed = cpu_seconds(self._server) if self._server else 0.0, wire_bytes()
        heard = msgspec.convert(self._child.ask(Order(load, work)), Heard)
        server_s = cpu_seconds(self._server) - served_s if self._server else None
        if heard.lost:
            raise Lost(heard.lost)
        spent = Spent(server_s, heard.cpu_s, wire_bytes() - crossed, load.messages)
        return Figure(load.messages * 1e3 / (heard.ended - heard.began), spent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._child, strict=not self._server):
            pass


@contextmanager
def closing(child: Child, strict: bool = True) -> Iterator[Child]:
    """Close a child at the end; unless `strict`, tell how it ended, and go on: its rounds are over."""
    try:
        yield child
    finally:
        try:
            child.close(_END_S)
        except Ended as ended:
            if strict:
                raise
            print(f"  {ended}")
