"""A hub: stores each put of its clients once, numbers it, answers, and publishes it."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Final, Literal, Self, TypedDict

import msgspec

from blackbox.archive.maintain.retention import EVERYTHING, Retention
from blackbox.arguments import check_integers
from blackbox.errors import HubError
from blackbox.feed.feed import Feed
from blackbox.services.hub.protocol import Put
from blackbox.services.hub.server.frontend import Frontend
from blackbox.services.hub.server.judge import Judge, Request, Turn
from blackbox.services.hub.server.store import PATIENCE_S, Store
from blackbox.services.hub.settings import feed_of_hub
from blackbox.services.hub.sites.discovery import Join
from blackbox.services.hub.sites.sites import Sites
from blackbox.services.relay.relay import Relay
from blackbox.transport.server_thread import ServerLife, ServerThread

log = logging.getLogger("blackbox")

_WATCH_S: Final = 0.5
"""Time between two checks of the relays of other hubs' feeds."""


class HubStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a hub, and its state in a pair."""

    stored: int = 0
    """Puts that were stored."""
    known: int = 0
    """Puts that were stored before: repeated ones, or ones with a known id."""
    refused: int = 0
    """Puts refused for other reasons than a conflict, and requests answered with an error."""
    conflicts: int = 0
    """Puts refused because the newest message of their topic was not at `if_at`."""
    ended: int = 0
    """Topics that were deleted after their `ttl`."""
    unread: int = 0
    """Answers dropped because the client was gone or did not read; it asks again."""
    life: str = "active"
    """State in a pair: active, armed (it may take over) or passive."""
    term: int = 0
    """Number that grows whenever a hub of the pair becomes active."""
    peer_lacks: int = -1
    """Turns that the other hub of the pair lacks, by its last message; -1: none received."""


class HubKeywords(TypedDict, total=False):
    """Keyword arguments of `Hub` and `PairedHub`."""

    fsync: Literal["interval", "block"]
    fsync_interval: float | timedelta
    remember_puts: int
    remember_ids: int
    most_clients: int
    retention: Retention
    peers: Sequence[tuple[Feed, Feed]]
    join: Join | None


class Hub:
    """Hub of one feed, in its own thread, from `start` to `close`. It is used once.

    It is the feed's publisher and the first of its archives. After a kill, the next hub continues from the same files.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        fsync: Literal["interval", "block"] = "interval",
        fsync_interval: float | timedelta = 1.0,
        remember_puts: int = 100_000,
        remember_ids: int = 1_000_000,
        most_clients: int = 100_000,
        retention: Retention = EVERYTHING,
        peers: Sequence[tuple[Feed, Feed]] = (),
        join: Join | None = None,
    ) -> None:
        """Store the settings, see `HubSettings`; nothing is opened. Raises ConfigError or ValueError.

        `peers`: for each hub of another site, its feed, and that feed with endpoints of this host.
        """
        remembered = remember_puts, remember_ids, most_clients
        check_integers(
            ("remember_puts", remember_puts, 1, 10**9),
            ("remember_ids", remember_ids, 1, 10**9),
            ("most_clients", most_clients, 1, 10**7),
        )
        self.feed = feed_of_hub(feed)
        self.peers = tuple(Relay(there, here, name=self.feed.name) for there, here in peers)
        """Relays of other hubs' feeds, one hop from each hub."""
        self.sites = Sites(self.feed, [there for there, _ in peers], join)
        self.endpoint = self.feed.hub
        """Endpoint for puts."""
        store = Store(self.feed, directory, fsync, fsync_interval, retention)
        self.server = self._new_server(store, Frontend(self.feed, self.sites), remembered)
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = ServerThread("blackbox-hub", f"hub of feed {feed.name!r}", self._run)

    def _new_server(self, store: Store, frontend: Frontend, remembered: tuple[int, int, int]) -> HubServer:
        return PutServer(store, frontend, remembered)

    # For its owner.

    def start(self) -> Self:
        """Start, and return once it accepts puts. Raises JournalError, EndpointError, ConfigError or LimitError.

        Hubs of other sites may be away.
        """
        self._thread.start()
        try:
            for peer in self.peers:
                peer.start()
            self.sites.start()
        except BaseException:
            self._end()
            raise
        return self

    def run(self) -> None:
        """Wait until it ends. Raises the error that ended it; RelayError if peers form a loop, naming them."""
        while not self._over.wait(_WATCH_S):
            for peer in self.peers:
                peer.check()
        self.close()

    def _end(self) -> bool:
        for peer in self.peers:
            peer.close()
        self.sites.close()
        return self._thread.end(PATIENCE_S)

    def close(self) -> None:
        """Publish and answer accepted puts, and end. It may be called again.

        Raises HubError if an error ended it before, RelayError as `run`.
        """
        if not self._end():
            raise HubError(f"hub of feed {self.feed.name!r} has not ended within {PATIENCE_S:g} s")
        if self._error is not None:
            raise HubError(f"hub of feed {self.feed.name!r} ended: {self._error}") from self._error
        for peer in self.peers:
            peer.check()

    def statistics(self) -> HubStatistics:
        """Return a snapshot of the counters."""
        return self.server.statistics()

    def __enter__(self) -> Self:
        return self if self._thread.life is ServerLife.SERVING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    @property
    def epoch(self) -> int:
        """Epoch of the published messages; 0 before the start."""
        return self.server.epoch

    # In its thread.

    def _run(self) -> None:
        try:
            self.server.serve(self._thread)
        except BaseException as error:
            if self._thread.life is ServerLife.BINDING:
                raise  # from `start`
            self._error = error
            log.error("hub of feed %r ended: %s", self.feed.name, error)
        finally:
            self._over.set()


class HubServer(ABC):
    """Serves the clients of a hub, in its thread.

    Attributes: `judge`, state of the hub, empty until the journals are read; `store`; `frontend`; `remembered`.
    """

    def __init__(self, store: Store, frontend: Frontend, remembered: tuple[int, int, int]) -> None:
        """`remembered`: arguments of the client table."""
        self.store, self.frontend, self.remembered = store, frontend, remembered
        self.judge = Judge(store.feed, remembered, frontend)

    @property
    def epoch(self) -> int:
        """As `Hub.epoch`."""
        return self.judge.numbers.epoch

    @abstractmethod
    def serve(self, thread: ServerThread) -> None:
        """Answer requests until the thread is to end."""

    def statistics(self) -> HubStatistics:
        """Return a snapshot of the counters."""
        return HubStatistics(**self.judge.counts)  # type: ignore[arg-type]  # counts are numbers


class PutServer(HubServer):
    """A hub that has no peer: it appends puts, and answers them."""

    def serve(self, thread: ServerThread) -> None:
        """As `HubServer`."""
        self.store.check()
        with ExitStack() as stack:
            feed, judge = self.store.feed, self.judge
            self.store.open(feed)  # first: its outbox keeps other hubs out
            stack.callback(self.store.close)
            self.store.tell(judge)
            (socket,) = self.frontend.bind(stack, feed.bound(feed.hub))
            for frames in thread.frames(socket, judge.conditions.wait_s):
                if (turn := judge.deletion()) is not None:
                    self._append(turn)
                if frames:
                    self._answer(self.frontend.waiting(frames))
                self._take_snapshot()

    def _answer(self, requests: list[Request]) -> None:
        """Judge requests, append their puts, and answer them."""
        judge = self.judge
        if judge.conditions.ask_for_days([each.request for each in requests if isinstance(each.request, Put)]):
            judge.conditions.read(lambda: self.store.newest_places(judge.numbers.following(), lambda: None))
        for turn in judge.turns(requests):
            if turn.number:
                self._append(turn)
            for client, answer in turn.answers:
                self.frontend.send(client, answer, judge.counts)

    def _append(self, turn: Turn) -> None:
        """Append a turn, and wait until the journals have it. Raises PublisherError or JournalError if this fails."""
        following = self.judge.numbers.following()
        for slice_id, note in turn.notes.items():
            self.store.note(slice_id, note, is_alone=not turn.fresh)
        for fresh in turn.fresh:
            self.store.publish(fresh, self.judge)
        self.store.wait_kept((slice_id, following[slice_id]) for slice_id in turn.notes)
        if turn.is_synced:
            self.store.sync()
        self.judge.count(turn)

    def _take_snapshot(self) -> None:
        """Append a snapshot if one is due. A day is deleted only if a later day has a snapshot on the disk."""
        outbox = self.store.outbox
        day = outbox.day()  # the snapshot is in this one, or in a later one
        if turns := self.judge.snapshot(day):
            self.store.sync()  # a power cut then loses nothing before the snapshot
            for turn in turns:
                self._append(turn)
            outbox.sync(0)
            outbox.delete_before(day)
