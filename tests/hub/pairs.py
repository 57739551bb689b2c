"""Two hubs of a feed in separate processes, and the cable between them, which can be cut."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final, Self

import msgspec

from blackbox import Feed
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.hub.pair.paired_hub import PairedHub
from blackbox.services.hub.pair.protocol import Pair
from blackbox.testing import wait_until
from tests.hub.hubs import published
from tests.hub.power import cut_power, make_disk
from tests.torture.nursery import Nursery

ROLES: Final = ("primary", "backup")
END, LIFE, TERM = range(3)
"""Indexes of a hub's shared notes: `END` is set by the test, the others by the hub."""
LIVES: Final = ("starting", "passive", "armed", "active")
SERVE: Final = """
def work(role, directory, link, peer, silence_ns, when_cut="wait", alone=""):
    from blackbox.services.hub.pair.protocol import Pair
    from blackbox.services.hub.pair.paired_hub import PairedHub
    lives = ("starting", "passive", "armed", "active")
    pair = Pair(role=role, link=link, peer=peer, silence_ns=int(silence_ns), when_cut=when_cut)
    hub = PairedHub(feed, directory, pair=pair, alone=bool(alone), fsync_interval=0.02).start()
    while not notes[0] and not hub._over.is_set():
        told = hub.statistics()
        notes[2] = told.term
        notes[1] = lives.index(told.life)
        threading.Event().wait(0.005)
    try:
        hub.close()
    except HubError as error:
        print(error, flush=True)
"""
PATIENCE_S: Final = 60.0


def pair_feed(name: str = "pair", slices: int = 2, key_bytes: int = 0) -> Feed:
    """Return a feed with two hubs on free ports."""
    feed = Feed.local(name, slices=slices, lines=2, key_bytes=key_bytes)
    archives, hubs = free_endpoints("tcp", name, 2, 2)
    return msgspec.structs.replace(feed, archives=archives, hub=hubs[0], hub_backup=hubs[1], heartbeat_ns=200_000_000)


def hub_of(
    feed: Feed,
    place: Path,
    links: Sequence[str],
    role: str = "primary",
    *,
    silence_ns: int = 1_000_000_000,
    **settings: Any,
) -> PairedHub:
    """Return one hub of a pair, for this process."""
    at = ROLES.index(role)
    pair = Pair(role=role, link=links[at], peer=links[1 - at], silence_ns=silence_ns)  # type: ignore[arg-type]
    return PairedHub(feed, place / role, pair=pair, **settings)


def wait_in_step(*hubs: PairedHub) -> None:
    """Wait until one hub of this process leads and the other is armed."""
    wait_until(lambda: {hub.statistics().life for hub in hubs} == {"active", "armed"}, PATIENCE_S, "they are in step")


class Cable:
    """Carries the traffic between two hubs over TCP, until it is cut."""

    def __init__(self) -> None:
        self.links, self.peers = free_endpoints("tcp", "cable", 2, 2)
        self._is_cut = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="cable", daemon=True)

    def cut(self, is_cut: bool = True) -> None:
        """Cut the cable, so that traffic is lost without an error, or join it again."""
        self._loop.call_soon_threadsafe(self._cut, is_cut)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(200)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            for peer, link in zip(self.peers, reversed(self.links), strict=True):
                server = await asyncio.start_server(partial(self._join, link), *_address(peer))
                await stack.enter_async_context(server)
            self._bound.set()
            await self._over.wait()
            self._hang_up()

    def _cut(self, is_cut: bool) -> None:
        if self._is_cut and not is_cut:  # both ends find their connections broken and connect again
            self._hang_up()
        self._is_cut = is_cut

    def _hang_up(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _join(self, link: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection's traffic to a link and back."""
        try:
            far_reader, far_writer = await asyncio.open_connection(*_address(link))
        except OSError:
            writer.close()
        else:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self._is_cut:
                    writer.write(data)
                    await writer.drain()
        self._ends.discard(writer)
        writer.close()


def _address(endpoint: str) -> tuple[str, int]:
    host, port = endpoint.removeprefix("tcp://").split(":")
    return host, int(port)


class Hubs:
    """Two hubs, each in a process that may be killed. `lives()` returns their states."""

    def __init__(self, feed: Feed, prepare: str = "", silence_ns: int = 3_000_000_000) -> None:
        self.feed, self._silence_ns = feed, silence_ns
        self._stack = ExitStack()
        self.of = {role: self._stack.enter_context(Nursery(feed, prepare + SERVE, notes=3)) for role in ROLES}
        self.cable = self._stack.enter_context(Cable())
        self.place = Path()
        self.running: set[str] = set()

    def begin(self, role: str, *words: Any) -> None:
        """Start one hub. `words`: `when_cut`, and "alone" for a hub that must continue alone."""
        at = ROLES.index(role)
        nursery = self.of[role]
        nursery.notes[:] = 0
        nursery.begin((role, self.place / role, self.cable.links[at], self.cable.peers[at], self._silence_ns, *words))
        self.running.add(role)

    def begin_both(self, place: Path, *words: Any) -> None:
        """Start both in a fresh directory and wait until the primary leads and the backup is armed."""
        self.place = place
        for role in ROLES:
            make_disk(place / role)
            self.begin(role, *words)
        self.wait_for(primary="active", backup="armed")

    def life(self, role: str) -> str:
        """Return the state that a hub reported last."""
        return LIVES[int(self.of[role].notes[LIFE])] if role in self.running else "ended"

    def lives(self) -> dict[str, str]:
        return {role: self.life(role) for role in ROLES}

    def wait_for(self, **lives: str) -> None:
        wait_until(lambda: self.lives() == lives, PATIENCE_S, f"hubs are {lives}, not {self.lives()}")

    def wait_for_step(self) -> str:
        """Wait until one hub leads and the other is armed; return the role of the leader."""
        wait_until(lambda: sorted(self.lives().values()) == ["active", "armed"], PATIENCE_S, "one leads, one is armed")
        return next(role for role in ROLES if self.life(role) == "active")

    def begin_soon(self, role: str, chance: Random) -> None:
        """Start one hub, at once or after the other one had time to take over."""
        if chance.random() < 0.5:
            until = monotonic() + 0.7
            wait_until(lambda: monotonic() > until, 10)
        self.begin(role)

    def signal(self, role: str, number: int) -> None:
        self.of[role].signal(number)

    def kill(self, role: str) -> None:
        self.of[role].kill()
        self.running.discard(role)

    def cut_power(self, role: str, chance: Random) -> None:
        """Simulate a power loss of one host. Requires `power.KEEP` in `prepare`."""
        self.kill(role)
        cut_power(self.place / role, chance)

    def end(self, role: str) -> list[str]:
        """End one hub in order and return its output."""
        self.of[role].notes[END] = 1
        return self.end_by_itself(role)

    def end_by_itself(self, role: str) -> list[str]:
        """Wait until one hub has ended and return its output."""
        status, said = self.of[role].wait()
        self.running.discard(role)
        assert status == 0, said
        return said

    def end_both(self) -> None:
        for role in sorted(self.running):
            self.signal(role, signal.SIGCONT)
            assert not self.end(role)

    def published(self) -> dict[tuple[int, int, int], tuple[bytes, bytes | None]]:
        """Return the messages of both outboxes by place; a place in both must have the same message."""
        found: dict[tuple[int, int, int], tuple[bytes, bytes | None]] = {}
        for role in ROLES:
            for place, message in self.published_by(role).items():
                assert found.setdefault(place, message) == message, "two messages have one place"
        return found

    def published_by(self, role: str) -> dict[tuple[int, int, int], tuple[bytes, bytes | None]]:
        """Return the messages of one outbox by place."""
        said = published(self.place / role, self.feed)
        found = {(epoch, slice_id, sequence): (topic, payload) for epoch, slice_id, sequence, topic, payload in said}
        assert len(found) == len(said), "two messages of one outbox have one place"
        return found

    def close(self) -> None:
        self.cable.cut(False)
        for role in sorted(self.running):
            self.kill(role)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def places_once(hubs: Hubs, answered: Sequence[tuple[tuple[int, int, int], bytes]]) -> None:
    """Check that each acknowledged message, ((epoch, slice, sequence), payload), is at its place and no other."""
    said = hubs.published()
    for place, payload in answered:
        assert said[place][1] == payload
    payloads = [payload for _, payload in said.values()]
    assert len(payloads) == len(set(payloads)), "a message has two places"
