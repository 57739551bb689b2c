"""A contender's processes and their rounds: a sender and a receiver, or one process that does both.

bench ──order──> receiver: subscribes, answers     bench ──order──> sender: sends all, answers with its start
bench ──start──> receiver: answers with its findings, the end of the last callback, and its costs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Literal, Self

import msgspec

from bench.measure.contest import Contest, Figure, Lost, Overloaded, Spent
from bench.measure.cost import cpu_seconds, wire_bytes
from bench.processes.child import Child, Ended
from bench.workload.load import Load
from blackbox import Feed

ROUND_S: Final = 90.0
_END_S: Final = 10.0
_LEAST_REACHED: Final = 0.9
"""Minimum fraction of the rate that a valid run reaches."""

Form = Literal[
    "compiled", "batch", "each", "digest", "nothing", "blocks", "messages", "late", "late compiled", "late batches",
]  # fmt: skip
"""Work of a receiver: see `bench.processes.forms` and `bench.rivals.plain_pyzmq`."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a receiver in a run."""

    form: Form = "messages"
    prefixes: tuple[bytes, ...] = (b"",)
    workers: int = 1
    on_slow: Literal["raise", "warn"] | None = None
    """Policy of a receiver that sleeps on every call; None: it does not sleep."""
    metrics: str = ""
    """Address at which our receiver serves metrics; empty: none."""


class Order(msgspec.Struct, frozen=True):
    """Order to both sides."""

    load: Load
    work: Work = Work()


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a sender."""

    began: int
    """Time before the first call, unix ns."""
    cpu_s: float | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a receiver, or of a process that does both."""

    began: int = 0
    """Start of a process that does both, unix ns."""
    ended: int = 0
    """End of the last callback, unix ns."""
    cpu_s: float = 0.0
    lost: str = ""
    """Reason why the round is void."""
    messages: int = 0
    missed: int = 0
    """Messages missing in a paced run."""
    late_us: dict[str, float] = {}
    """Percentiles of the time since a message was due."""
    has_terminated: bool = False
    """True if the slow-subscriber policy ended it."""


def play(sender: Child, receivers: Sequence[Child], orders: Sequence[Order]) -> tuple[Sent, list[Heard]]:
    """Play a run, sent as the first order says, to each receiver. Kill all and raise Ended if one ends."""
    try:
        for receiver, order in zip(receivers, orders, strict=True):
            receiver.send(order)
        for receiver in receivers:
            receiver.answer()  # subscribed
        sender.send(orders[0])
        sent = msgspec.convert(sender.answer(beside=receivers), Sent)
        for receiver in receivers:
            receiver.send({"began": sent.began})
        return sent, [msgspec.convert(receiver.answer(ROUND_S), Heard) for receiver in receivers]
    except Ended:
        for child in (sender, *receivers):  # one that waits for the other would wait in every later round
            child.kill()
        raise


class Pair:
    """A sender and a receiver, and any server between them. `sent` and `heard` belong to the last round."""

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
        """Return our publisher, with these settings, and our subscriber."""
        return cls(
            partial(Child, "bench.processes.sender:publish", feeds=feeds, **settings),
            partial(Child, "bench.processes.receiver:receive"),
        )

    @classmethod
    def rival(cls, module: str, *, server_pid: int = 0, **arguments: Any) -> Self:
        """Return processes of `publish` and `receive` of a module of `bench.rivals`, with the same arguments."""
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
        # Fewer bytes than messages: all of it is other traffic.
        spent = Spent(sent_s, self.heard.cpu_s, crossed if crossed > load.messages else None, load.messages)
        return Figure(self.heard.messages * 1e3 / max(1, self.heard.ended - self.sent.began), spent)

    def late(self, contest: Contest, name: str, load: Load, work: Work, percentile: str = "p50") -> Figure:
        """Keep the percentiles of a paced run that lost nothing; return one of them, µs. Raises Lost, or Overloaded."""
        figure = self.round(load, work)
        if self.heard.missed:
            raise Lost(f"messages lost was {self.heard.missed:,}, expected 0")
        if figure.value * 1e6 < _LEAST_REACHED * load.rate:
            raise Overloaded(f"overloaded: reached {figure.value * 1e6:,.0f} of {load.rate:,} messages/s")
        contest.percentiles(name, self.heard.late_us)
        return Figure(self.heard.late_us[percentile], figure.spent)

    def _served_s(self) -> float:
        return cpu_seconds(self._server) if self._server else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Single:
    """One process that sends and receives, and its server if there is one."""

    def __init__(self, function: str, *, server_pid: int = 0, **arguments: Any) -> None:
        self._child = Child(function, **arguments)
        self._server = server_pid

    def round(self, load: Load, work: Work = Work()) -> Figure:  # noqa: B008  # it is frozen
        """Return M messages/s between its reported start and end. The server's CPU time counts as the sender's."""
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
    """Close a child at the end; unless `strict`, only print its error, because its rounds are complete."""
    try:
        yield child
    finally:
        try:
            child.close(_END_S)
        except Ended as ended:
            if strict:
                raise
            print(f"  {ended}")
