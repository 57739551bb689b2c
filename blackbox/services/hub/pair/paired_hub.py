"""A hub of a pair: it leads, or it follows the active hub and takes over from it.

See "Two hubs" of `hub-pairs-and-sites` in the docs for the rules. `machine.py` decides; this module has the I/O.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Unpack

import msgspec

from blackbox.archive.files.day import make_directory, recorded_days, replace_file, sync_directory
from blackbox.errors import DamagedError
from blackbox.feed.feed import Feed
from blackbox.services.hub.pair.journals import PairJournals
from blackbox.services.hub.pair.link import Link
from blackbox.services.hub.pair.machine import PairMachine
from blackbox.services.hub.pair.protocol import Follow, Kept, Lead, Pair, encode_kept, read_kept
from blackbox.services.hub.protocol import FindSites
from blackbox.services.hub.server.client_table import Table
from blackbox.services.hub.server.deadlines import Deadlines
from blackbox.services.hub.server.frontend import Frontend
from blackbox.services.hub.server.history import History, newest_epoch
from blackbox.services.hub.server.hub import Hub, HubKeywords, HubServer, HubStatistics
from blackbox.services.hub.server.judge import Answer, Judge
from blackbox.services.hub.server.notes import newest_turn
from blackbox.services.hub.server.store import Store
from blackbox.services.hub.server.topics import Topics
from blackbox.transport.server_thread import ServerThread, receive

log = logging.getLogger("blackbox")


class _OverError(Exception):
    """This hub no longer leads."""


class PairedHub(Hub):
    """A hub that has a peer. Settings and life as in `Hub`.

    `alone`: lead without hearing from the peer. Puts that only the peer has are lost, and the peer must not be active.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        pair: Pair,
        alone: bool = False,
        **settings: Unpack[HubKeywords],
    ) -> None:
        self.pair, self._is_told_alone = pair, alone
        super().__init__(feed, directory, **settings)
        self.endpoint = pair.endpoint(self.feed)

    def _new_server(self, store: Store, frontend: Frontend, remembered: tuple[int, int, int]) -> HubServer:
        self.pair.check_feed(self.feed)
        return PairServer(store, frontend, remembered, self.pair, is_told_alone=self._is_told_alone)


class PairServer(HubServer):
    """Serves the clients and the peer of a hub of a pair; the `Shell` of its machine."""

    def __init__(
        self, store: Store, frontend: Frontend, remembered: tuple[int, int, int], pair: Pair, *, is_told_alone: bool
    ) -> None:
        super().__init__(store, frontend, remembered)
        self.machine: PairMachine | None = None
        self._pair, self._is_told_alone = pair, is_told_alone
        self._journals = PairJournals(self.store, pair.line)
        self._path = self.store.directory / f"{self.store.feed.name}.pair"

    def serve(self, thread: ServerThread) -> None:
        """As `HubServer`."""
        kept = read_kept(self._path) if self._path.exists() else Kept(self._pair.role)
        kept = self._check(kept)
        self._journals.is_served = not kept.damaged
        is_cut = self.store.has_lost_power()
        with ExitStack() as stack:
            if kept.damaged:
                kept = msgspec.structs.replace(kept, epoch=newest_epoch(self.store.days))
            self.machine = machine = PairMachine(self._history(), kept, self._pair, self, self._journals)
            stack.callback(self.store.close, says_end=False)
            if kept.epoch:
                self._journals.begin_epoch(machine.state.kept.epoch)
            feed, frontend = self.store.feed, self.frontend
            clients, answers = frontend.bind(stack, feed.bound(self._pair.endpoint(feed)), self._pair.link)
            self._link = link = Link(answers, feed, self._pair)
            stack.callback(link.close)
            thread.begin()
            machine.begin(is_told_alone=self._is_told_alone, is_cut=is_cut)
            while True:
                poller = thread.watch(*([clients] if machine.takes_requests else []), *link.sockets)
                ready = thread.poll(poller, machine.wait_s(time.monotonic()))
                if ready is None:
                    break
                asked = frontend.waiting(receive(clients)) if clients in ready else []
                machine.step(time.monotonic(), link.answered(), link.asked(), asked)
            thread.begin_to_end()
            self.store.close(says_end=False)

    def _history(self) -> History:
        return History(self.store.days, self.store.feed)

    # State in the file next to the journals.

    def _check(self, kept: Kept) -> Kept:
        """Check as `Store.check`; set damaged days and all later days aside. Return the resulting state."""
        while True:
            try:
                self.store.check()
                self._history().tell(Table(*self.remembered), Deadlines(), Topics(self.store.feed))
                return kept
            except DamagedError as error:
                days = recorded_days(self.store.days)
                if self._is_told_alone or not days:
                    raise
                kept = self._set_aside(kept, days, str(error))

    def _set_aside(self, kept: Kept, days: list[Path], why: str) -> Kept:
        """Set the last day aside. This hub ends unless the peer has the puts of that day."""
        day = days[-1]
        aside = self.store.days / "damaged" / f"{day.name}-{time.time_ns()}"
        had = max(kept.damaged, newest_turn(day) + kept.is_alone, 1)  # an unreadable turn of a lone hub is counted
        damage = f"{kept.damage}{why} (it is now in {aside}). "
        log.error("hub of feed %r, the %s: %s; %s is now %s", self.store.feed.name, self._pair.role, why, day, aside)
        kept = msgspec.structs.replace(kept, is_alone=False, is_cut=False, damaged=had, damage=damage)
        self.keep(kept)
        make_directory(aside.parent)
        day.rename(aside)
        sync_directory(self.store.days)
        return kept

    def keep(self, kept: Kept) -> None:
        """As `Shell`."""
        replace_file(self._path, self._path.with_suffix(".new"), encode_kept(kept))
        self._journals.is_served = not kept.damaged

    def statistics(self) -> HubStatistics:
        """As `HubServer`, with the state of the pair."""
        counts = self.judge.counts
        if self.machine is None:
            return HubStatistics(**counts, life="passive")
        state = self.machine.state
        peer = state.peer
        lacks = -1 if peer is None else max(0, state.standing.newest - peer.newest)
        return HubStatistics(**counts, life=state.life.value, term=state.kept.term, peer_lacks=lacks)

    @property
    def epoch(self) -> int:
        """As `HubServer`."""
        return 0 if self.machine is None else self.machine.state.kept.epoch

    def read_history(self) -> Judge:
        """As `Shell`."""
        judge = Judge(self.store.feed, self.remembered, self.frontend)
        judge.counts = self.judge.counts
        self.judge = self.store.tell(judge)
        return judge

    def read_days(self, judge: Judge) -> None:
        """As `Shell`."""
        with suppress(_OverError):
            judge.conditions.read(lambda: self.store.newest_places(judge.numbers.following(), self._pause))

    def _pause(self) -> None:
        """Answer the peer while days are read; otherwise this hub would count as silent."""
        assert self.machine is not None
        if not self.machine.pause(time.monotonic(), self._link.asked()):
            raise _OverError

    # The link and the clients.

    def now_ns(self) -> int:
        """As `Shell`."""
        return self.frontend.now_ns()

    def find_sites(self, request: FindSites, key: str) -> Answer:
        """As `Shell`."""
        return self.frontend.find_sites(request, key)

    def ask(self, follow: Follow) -> None:
        """As `Shell`."""
        self._link.ask(follow)

    def answer(self, lead: Lead) -> None:
        """As `Shell`."""
        self._link.answer(lead)

    def send(self, client: bytes, answer: Answer) -> None:
        """As `Shell`."""
        self.frontend.send(client, answer, self.judge.counts)
