"""One hub of a pair as a state machine: it follows the active hub, or leads and answers clients. No I/O.

`step` is the only input, with all arrived messages. A `Shell` keeps files and carries messages. `state.py` has the
rules for roles and terms. Only the duration of a failover depends on clocks: while a passive hub may take over, the
active hub appends and answers only turns that the passive hub has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from blackbox.block.form.block import Block
from blackbox.errors import BlockError, HubError, JournalError
from blackbox.services.hub.pair.entries import TooFarBehindError, digest_of
from blackbox.services.hub.pair.messages import Entry, Follow, Kept, Lead, Pair, Part, Standing, checksum_of
from blackbox.services.hub.pair.state import OutdatedError, PairLife, PairState
from blackbox.services.hub.protocol import Ended, FindSites, Passive, Put, wrong_version
from blackbox.services.hub.server.history import History
from blackbox.services.hub.server.judge import Answer, Judge, Request, Turn
from blackbox.services.hub.server.notes import head_of, snapshot_part

log = logging.getLogger("blackbox")

BEATS: Final = 8
"""Questions without an answer after which the peer counts as silent."""
_MOST_BYTES: Final = 4 << 20
"""Maximum size of the entries in one answer to a passive hub."""
_MOST_DIGESTS: Final = 1_000
_MOST_QUESTIONS: Final = 1 << 40
"""Questions of a process are numbered from its run on; the next run begins beyond them, also if the clock was set."""
_ALONE_TOO: Final = "has puts that the other hub lacks: both were active alone, or one was and lost power"


class _ConflictError(Exception):
    """The peer has another turn with the same number."""


class Reader(Protocol):
    """Entries of the journals from a turn on."""

    def take(self, most_bytes: int) -> list[Entry]:
        """Return the next entries, at least one and at most `most_bytes` bytes; an empty list at the end."""


class Shell(Protocol):
    """Files, clock and sockets of a hub. An error of a method ends the hub."""

    def now_ns(self) -> int:
        """Return the time, ns since 1970."""

    def keep(self, kept: Kept) -> None:
        """Store the state on the disk."""

    def begin_epoch(self, epoch: int) -> None:
        """Publish in another epoch from now on."""

    def read_history(self) -> Judge:
        """Return a judge with the state in the journals."""

    def read_days(self, judge: Judge) -> None:
        """Read the newest message of every topic for a judge; call `pause` of the machine meanwhile."""

    def entry_of(self, turn: Turn) -> Entry:
        """Return the entry that a turn appends."""

    def blocks_of(self, entry: Entry) -> list[list[Block]]:
        """Return the blocks of each part of an entry. Raises BlockError if they are not what was sent."""

    def following(self, slice_id: int) -> int:
        """Return the sequence of the next message of a slice."""

    def append(self, part: Part, blocks: Sequence[Block]) -> None:
        """Append the note and some blocks of a part."""

    def sync(self) -> None:
        """Sync appended data to the disk."""

    def day(self) -> Path:
        """Return the oldest day in which some slice is written."""

    def delete_before(self, day: Path) -> None:
        """Delete earlier days that exceed the retention."""

    def entries(self, first: int) -> Reader:
        """Return the entries from a turn on. Raises TooFarBehindError, JournalError."""

    def ask(self, follow: Follow) -> None:
        """Send a question to the peer."""

    def answer(self, lead: Lead) -> None:
        """Answer the peer's last question."""

    def send(self, client: bytes, answer: Answer) -> None:
        """Answer a client."""

    def find_sites(self, request: FindSites, key: str) -> Answer:
        """Return the sites that the hub knows."""


class PairMachine:
    """A hub of a pair. Attributes: `state`; `judge`, set once it leads."""

    def __init__(self, history: History, kept: Kept, pair: Pair, shell: Shell) -> None:
        """Begin another run. `kept.is_alone` holds only for the role that has written it."""
        newest, note = history.newest()
        notes, part = history.part_of(newest + 1) if history.last() > newest else ({}, 0)
        self._part = {slice_id: checksum_of(each) for slice_id, each in notes.items()}
        """By slice, checksum of the note of a turn that the journals do not have completely."""
        digest = checksum_of(note).to_bytes(8, "little") if note else b""
        is_alone, run = kept.is_alone and kept.role == pair.role, max(kept.run + _MOST_QUESTIONS, shell.now_ns())
        kept = msgspec.structs.replace(kept, role=pair.role, run=run, is_alone=is_alone)
        self.state = state = PairState(history.feed.name, kept, newest, digest, part=part)
        self._pair, self._shell = pair, shell
        numbers = [each.notes.numbers for each in history.parts_from(0, newest)]
        self._noted = max((int(each.max()) for each in numbers if len(each)), default=0)
        """The last turn whose note slice 0 had at the start."""
        self.judge: Judge | None = None
        self._kept = msgspec.structs.replace(kept, run=0)
        """State on the disk."""
        self._life = state.life
        """Last logged life."""
        self._talk = _Talk(pair.silence_ns, run)
        self._turns: deque[Turn] = deque()
        """Turns to append and answer. The first one is proposed."""
        self._proposed: Entry | None = None
        self._is_proposed = False
        self._reader: Reader | None = None
        """Reader of the entries for a peer that catches up."""
        self._given = 0
        """The last turn that was read from it."""
        self._digests: dict[int, bytes] = {state.newest: state.digest}
        """Digest by turn, for recent turns."""
        self._snapshot: tuple[int, Path] | None = None
        """First turn of the snapshot that is being appended, and the oldest day that was written before it."""

    def begin(self, *, is_told_alone: bool, is_cut: bool) -> None:
        """Begin. `is_told_alone`: lead without the peer. `is_cut`: the system may have lost unsynced data."""
        self._note("")
        if is_told_alone:
            self.state.kept = msgspec.structs.replace(self.state.kept, damaged=0, damage="")
            self._become_active("`--alone` was given", is_new_epoch=True)
        elif self._kept.is_alone and is_cut:
            self.state.kept = msgspec.structs.replace(self.state.kept, is_alone=False, is_cut=True)
            self._note("")
        elif self._kept.is_alone:
            self._become_active("it was alone before", is_new_epoch=False)

    # The loop.

    @property
    def takes_requests(self) -> bool:
        """True if the shell must read requests of clients."""
        return not self.state.is_active or not self._turns or self._talk.is_silent

    def wait_s(self, now: float) -> float:
        """Return how long `step` can wait, unless a message arrives."""
        wait_s = self._talk.wait_s(now)
        if self.judge is None or not self.state.is_active or self._turns:
            return wait_s
        return min(wait_s, self.judge.conditions.wait_s())

    def step(self, now: float, lead: Lead | None, follow: Follow | None, requests: Sequence[Request] = ()) -> None:
        """Process messages that have arrived at `now`, a time of the monotonic clock."""
        talk = self._talk
        talk.now = now
        if lead is not None and talk.is_answer(lead) and self._hears(lead.standing):
            self._take_lead(lead)
        self._hear_follow(follow)
        if requests and self.state.is_active and not self._turns:
            self._judge(requests)
        elif requests:
            self._turn_away(requests)
        if self.state.is_active:
            self._lead()
        self._answer_peer()
        if now >= talk.ask_at:
            self._shell.ask(self.state.question(talk.next()))
        self._note("")

    def pause(self, now: float, follow: Follow | None) -> bool:
        """Answer the peer while days are read. Return False if this hub no longer leads."""
        self._talk.now = now
        self._hear_follow(follow)
        self._answer_peer()
        return self.state.is_active

    def _note(self, why: str) -> None:
        """Store changes of the state before a message depends on them; log a new life, and why."""
        state = self.state
        if state.kept != self._kept:
            self._shell.keep(state.kept)
            is_left = state.is_active and self._life is state.life and state.kept.is_alone and not self._kept.is_alone
            self._kept = state.kept
            if is_left:
                self._log("continues alone: the other hub has restarted")
        if state.life is not self._life:
            self._life = state.life
            self._log(f"is {state.life.value}: {why}")

    def _log(self, what: str) -> None:
        log.warning("hub of feed %r, the %s, %s", self.state.feed, self._pair.role, what)

    def _hears(self, standing: Standing) -> bool:
        try:
            return self.state.hears(standing)
        except OutdatedError:
            self._drop()
            self.state.give_way()
            self._note(f"the {standing.role} has taken over, in term {standing.term}")
            return True

    def _hear_follow(self, follow: Follow | None) -> None:
        if follow is None:
            return
        self._talk.asked(follow)
        if self._hears(follow.standing):
            self.state.hear_follow(follow)
            self._note("")

    def _drop(self) -> None:
        """Forget turns that are not appended; clients repeat their requests."""
        self._turns.clear()
        self._proposed, self._is_proposed, self._reader = None, False, None

    def _append(self, entry: Entry, blocks: list[list[Block]]) -> None:
        """Append what the journals lack of an entry. Raises JournalError if it does not fit.

        Days are deleted once a later snapshot is on the disk.
        """
        shell, note = self._shell, entry.parts[0].note
        part = snapshot_part(note)
        begins_snapshot = part is not None and part[0] == 0
        if begins_snapshot or head_of(note)["first"] == entry.number:
            shell.sync()  # a power cut then loses nothing before the snapshot, or before the run
        if begins_snapshot:
            self._snapshot = entry.number, shell.day()
        for each, mine in zip(entry.parts, blocks, strict=True):
            following = shell.following(each.slice_id)
            lacking = [block for block in mine if block.sequence >= following]
            if lacking and lacking[0].sequence != following:
                raise JournalError(
                    f"turn {entry.number} began at {lacking[0].sequence} of slice {each.slice_id}, expected {following}"
                )
            if lacking or (not mine and entry.number > self._noted):
                shell.append(each, lacking)
        self._digests[entry.number] = digest_of(entry)
        if len(self._digests) > _MOST_DIGESTS:
            del self._digests[next(iter(self._digests))]
        self.state.appended(entry.number, digest_of(entry))
        if part is not None and self._snapshot is not None and part[0] == part[1] - 1:
            first, day = self._snapshot
            if first == entry.number - part[0]:
                shell.sync()
                shell.delete_before(day)

    def _begin_epoch(self, epoch: int) -> None:
        if self.state.kept.epoch:
            self._shell.sync()  # a power cut then loses nothing of an earlier epoch, which cannot continue
        self.state.kept = msgspec.structs.replace(self.state.kept, epoch=epoch)
        self._note("")
        self._shell.begin_epoch(epoch)

    # Passive.

    def _turn_away(self, requests: Sequence[Request]) -> None:
        """Redirect clients to the other hub, or take over if it is time."""
        for at, each in enumerate(requests):
            if isinstance(each.request, Ended):
                self._shell.send(each.client, each.request)
            elif isinstance(each.request, FindSites):
                self._shell.send(each.client, self._shell.find_sites(each.request, each.key))
            elif self.state.may_take_over and self._talk.is_silent:
                self._become_active("the other hub is silent, and a client asks", is_new_epoch=self.state.kept.is_cut)
                self._judge(requests[at:])
                return
            else:
                self._shell.send(each.client, Passive())

    def _take_lead(self, lead: Lead) -> None:
        """Process the peer's answer if the peer leads; else decide which hub must lead."""
        state, shell = self.state, self._shell
        if state.is_active:
            return
        if not lead.standing.is_active:
            if (why := state.settle(lead.standing)) is not None:
                self._become_active(why[0], is_new_epoch=why[1])
            return
        entries = state.hear_lead(lead)
        if state.part and entries:
            theirs = {part.slice_id: part.checksum for part in entries[0].parts}
            if any(theirs.get(slice_id) != checksum for slice_id, checksum in self._part.items()):
                raise HubError(state.why_not(state.standing, lead.standing, _ALONE_TOO))
        self._note("another process leads")
        try:
            blocks = [shell.blocks_of(entry) for entry in entries]
        except BlockError as error:
            self._log(f"received damaged puts from the other hub: {error}")
            return  # it is asked again
        first = next((entry.epoch for entry in entries if entry.epoch), 1)  # 1: a later entry has messages
        for entry, mine in zip(entries, blocks, strict=True):
            epoch = entry.epoch or state.kept.epoch or first
            if epoch < state.kept.epoch and state.part:
                state.appended(entry.number, digest_of(entry))  # part of a turn is all there is before a new epoch
                continue
            if epoch != state.kept.epoch:
                self._begin_epoch(epoch)
            self._append(entry, mine)
        if entries and lead.is_synced:
            shell.sync()
        was_damaged = state.kept.damaged > 0
        if state.end_following(lead) or (was_damaged and not state.kept.damaged):
            self._begin_epoch(lead.epoch)
        has_all = state.life is PairLife.ARMED
        self._note("it has all turns of the active hub" if has_all else "the active hub continues without it")
        self._talk.ask_at = 0.0

    # Active.

    def _become_active(self, why: str, *, is_new_epoch: bool) -> None:
        state = self.state
        self._drop()
        if is_new_epoch or not state.kept.epoch:
            self._begin_epoch(max(self._shell.now_ns(), state.kept.epoch + 1))
        else:
            self._shell.sync()  # the other hub may have answered puts as synced that are only in the page cache here
        self.judge = self._shell.read_history()
        if state.part:
            state.appended(self.judge.table.number, b"")  # what it has of the last turn is all there will be
        state.lead()
        self._note(f"{why}; term {state.kept.term}")

    def _judge(self, requests: Sequence[Request]) -> None:
        """Judge requests; the turns are appended and answered by `_lead`."""
        assert self.judge is not None
        if self.judge.conditions.ask_for_days([each.request for each in requests if isinstance(each.request, Put)]):
            self._shell.read_days(self.judge)
            if not self.state.is_active:
                self._turn_away(requests)
                return
        self._turns.extend(self.judge.turns(requests))

    def _lead(self) -> None:
        """Propose turns, append those that the peer has, and answer."""
        state, shell = self.state, self._shell
        while self._turns or self._find_turns():
            turn = self._turns[0]
            if not self._is_proposed:
                self._is_proposed = True
                self._proposed = shell.entry_of(turn) if turn.number else None
                state.propose(turn.number, turn.is_synced)
            if not state.has_followed():
                if self._talk.is_silent and self._pair.when_cut == "go_on":
                    if self._proposed is not None:  # the peer may have published it
                        self._append(self._proposed, shell.blocks_of(self._proposed))
                    self._drop()
                    state.give_way()
                    why = "it continues alone, and puts that the other hub answers are lost"
                    self._become_active(why, is_new_epoch=True)
                    continue
                return
            if self._proposed is not None:
                self._append(self._proposed, shell.blocks_of(self._proposed))
                self._note("")
                if turn.is_synced:
                    shell.sync()
            self._turns.popleft()
            self._proposed, self._is_proposed = None, False
            for client, answer in turn.answers:
                shell.send(client, answer)

    def _find_turns(self) -> bool:
        """Add turns that delete expired topics or hold a snapshot, if they are due."""
        assert self.judge is not None
        turn = self.judge.deletion()
        self._turns.extend(self.judge.snapshot(self._shell.day()) if turn is None else [turn])
        return bool(self._turns)

    def _answer_peer(self) -> None:
        """Answer the peer's question if there is news for it, or an answer is due."""
        follow, state, talk = self._talk.unanswered_follow, self.state, self._talk
        if follow is None:
            return
        entries: list[Entry] = []
        why = ""
        if state.is_active and not follow.standing.is_active:
            entries, why = self._entries_for(follow)
            if not why and state.take_in(follow, entries):
                self._log("is not alone: the other hub is in step")
                self._note("")
                talk.answer_at = 0.0
            if not entries and not why and not state.has_news(follow) and talk.now < talk.answer_at:
                return
        talk.unanswered_follow = None
        self._shell.answer(state.answer(follow, entries, why))

    def _entries_for(self, follow: Follow) -> tuple[list[Entry], str]:
        """Return entries that the peer lacks, and why it cannot follow; "" if it can."""
        newest, digest, state = follow.standing.newest, follow.digest, self.state
        if why := wrong_version("hub", follow.standing.version):
            return [], why
        proposed = [] if self._proposed is None else [self._proposed]
        known = {each.number: digest_of(each) for each in proposed} | self._digests
        if follow.standing.had > state.standing.newest or (newest and digest and known.get(newest, digest) != digest):
            return [], state.why_not(follow.standing, state.standing, _ALONE_TOO)
        if newest == state.standing.newest:
            self._reader = None  # it keeps files of deleted days open
            return [], ""
        if newest == state.newest:
            return proposed, ""
        try:
            return self._read_entries(newest, digest), ""
        except _ConflictError:
            return [], state.why_not(follow.standing, state.standing, _ALONE_TOO)
        except TooFarBehindError:
            return [], state.why_not(follow.standing, state.standing, "lacks more than the journals still have")
        except JournalError as error:
            self._log(f"cannot read the turns that the other hub lacks: {error}")
            return [], state.why_not(follow.standing, state.standing, f"cannot get the turns that it lacks: {error}")

    def _read_entries(self, newest: int, digest: bytes) -> list[Entry]:
        """Return some of the journals' entries after a turn. Raises JournalError, _ConflictError."""
        found = self._reader.take(_MOST_BYTES) if self._reader is not None and self._given == newest else []
        if not found:
            self._reader = self._shell.entries(max(newest, 1))
            if newest:
                (first,) = self._reader.take(0)
                if digest not in (b"", digest_of(first)):
                    raise _ConflictError
            found = self._reader.take(_MOST_BYTES)
        self._given = max([newest, *(each.number for each in found)])
        return found


class _Talk:
    """Times to ask and to answer the peer, by the monotonic clock.

    It asks `BEATS` times in `silence_ns`, and keeps a question of the peer until there is news.
    """

    def __init__(self, silence_ns: int, run: int) -> None:
        """`run`: run of the process. Questions are numbered from there on."""
        self.now = self.ask_at = self.answer_at = 0.0
        self.unanswered_follow: Follow | None = None
        """Question of the peer that is not answered."""
        self._beat_s = silence_ns / 1e9 / BEATS
        self._number = self._answered = run
        """The last question, and the last one that was answered. Another one may be sent before an answer comes."""

    @property
    def is_silent(self) -> bool:
        """True if the peer has not answered for `silence_ns`, in which it was asked again and again."""
        return self._number - self._answered > BEATS

    def next(self) -> int:
        """Return the number of the next question, which is sent now."""
        self.ask_at = self.now + self._beat_s
        self._number += 1
        return self._number

    def is_answer(self, lead: Lead) -> bool:
        """Return True for the answer to a question that was sent after those that were answered before."""
        if not self._answered < lead.number <= self._number:
            return False
        self._answered = lead.number
        return True

    def asked(self, follow: Follow) -> None:
        """Keep a question until it is answered."""
        self.unanswered_follow = follow
        self.answer_at = self.now + self._beat_s / 2  # before it asks again

    def wait_s(self, now: float) -> float:
        """Return the seconds until a question or an answer is due."""
        until = self.ask_at if self.unanswered_follow is None else min(self.ask_at, self.answer_at)
        return max(0.0, until - now)
