"""Rivals in the contests of messaging and storage: how they start and their promises."""

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
    """Software that carries messages between processes, or stores them."""

    name: str
    module: str
    """Module of `bench.rivals` with the functions `publish` and `receive`, or `record` and `replay`."""
    needs: tuple[str, ...]
    address: Callable[[], str]
    """Makes an address for rivals without a server."""
    promise: str
    """Promise for single messages; with blocks, the publisher waits or the server holds them."""
    messages: int
    """Single or stored messages of a round; 0: not in that contest."""
    more: int = 0
    """Messages of a round in blocks, or replayed; 0: not in that contest."""
    server: Callable[[], Server] | None = None
    arguments: Mapping[str, Any] = MappingProxyType({})
    is_local: bool = False
    """True if it cannot reach other hosts."""

    def start(
        self, contest: Contest, stack: ExitStack, begin: Callable[[Mapping[str, Any]], Pair | Single]
    ) -> Started | None:
        """Start its server and processes until the stack closes; if unavailable, report it as skipped and return None.

        `begin` starts the processes from their arguments.
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
    """A running rival."""

    name: str
    """Name with the server's version."""
    contender: Pair | Single
    server: Server | None

    def rounds(self, messages: int) -> Callable[[], Figure]:
        """Return the contender of a contest."""
        return lambda: self.contender.round(Load(messages=messages))


def started(stack: ExitStack, begin: Callable[[], Pair | Single]) -> Pair | Single:
    """Start a rival's processes until the stack closes. Raises Missing if one ends at once."""
    try:
        contender = begin()
    except Ended as ended:
        raise Missing(str(ended)) from None
    stack.push(contender.__exit__)
    return contender


def need(*packages: str) -> None:
    """Raise Missing unless these packages can be imported; names are pip's (`redis`, `eclipse-zenoh:zenoh`)."""
    for package in packages:
        name, _, module = package.partition(":")
        if find_spec(module or name) is None:
            raise Missing(f"{name} is not installed (extra `bench`: pip install {name})")


def tcp() -> str:
    """Return a free address."""
    return f"tcp://127.0.0.1:{free_port()}"


def tcp_slash() -> str:
    """Return a free address in Zenoh's notation."""
    return f"tcp/127.0.0.1:{free_port()}"
