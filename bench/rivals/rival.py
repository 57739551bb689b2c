"""A rival that the contests of messages and of stores enter: how it is started, and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.measure.contest import Contest
from bench.processes.child import Ended
from bench.processes.pair import Pair, Single
from bench.rivals.servers import Missing, Server, free_port
from bench.workload.load import Load

if TYPE_CHECKING:
    from bench.measure.contest import Figure

HOLDS: Final = "nothing lost: the server holds the whole run"


class Rival(NamedTuple):
    """Something that carries messages between processes, or stores them."""

    name: str
    module: str
    """Of `bench.rivals`, with the functions `publish` and `receive`, or `record` and `replay`."""
    needs: tuple[str, ...]
    address: Callable[[], str]
    """Without a server, which has its own."""
    promise: str
    """Of messages one by one; blocks always wait, or are held as these are."""
    messages: int
    """Messages of a round one by one, or stored; 0: it is not in that contest."""
    more: int = 0
    """Messages of a round in blocks, or replayed; 0: it is not in that contest."""
    server: Callable[[], Server] | None = None
    arguments: Mapping[str, Any] = MappingProxyType({})
    is_local: bool = False
    """It reaches no other host."""

    def start(
        self, contest: Contest, stack: ExitStack, begin: Callable[[Mapping[str, Any]], Pair | Single]
    ) -> Started | None:
        """Start it, its server first, for as long as the stack; None, and told, if it cannot be had here.

        `begin` is given the arguments of its processes, and starts them.
        """
        try:
            need(*self.needs)
            server = stack.enter_context(self.server()) if self.server else None
            address = {"address": server.url, "server_pid": server.pid} if server else {"address": self.address()}
            contender = started(stack, lambda: begin({**address, **self.arguments}))
        except Missing as why:
            contest.skip(self.name, str(why))
            return None
        return Started(f"{self.name} {server.version}" if server else self.name, contender, server)


class Started(NamedTuple):
    """A rival that runs."""

    name: str
    """With its server's version."""
    contender: Pair | Single
    server: Server | None

    def rounds(self, messages: int) -> Callable[[], Figure]:
        """What a contest calls."""
        return lambda: self.contender.round(Load(messages=messages))


def started(stack: ExitStack, begin: Callable[[], Pair | Single]) -> Pair | Single:
    """Start processes of a rival for as long as the stack. Raises Missing when one ends at once."""
    try:
        contender = begin()
    except Ended as ended:
        raise Missing(str(ended)) from None
    stack.push(contender.__exit__)
    return contender


def need(*packages: str) -> None:
    """Raise Missing unless these can be imported, named as pip names them (`redis`, `eclipse-zenoh:zenoh`)."""
    for package in packages:
        name, _, module = package.partition(":")
        if find_spec(module or name) is None:
            raise Missing(f"{name} is not installed (extra `bench`: pip install {name})")


def tcp() -> str:
    """An address that nobody has now."""
    return f"tcp://127.0.0.1:{free_port()}"


def tcp_slash() -> str:
    """The same as Zenoh writes it."""
    return f"tcp/127.0.0.1:{free_port()}"
