"""One hub of a pair as a state machine: it follows the active hub, or leads and answers clients. No I/O.

`step` is the only input, with all arrived messages. A `Shell` carries messages, `Journals` keep turns. `leadership.py`
has the rules for roles and terms. Only the duration of a failover depends on clocks: while a passive hub may take over,
the active hub appends and answers only turns that the passive hub has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from blackbox.block.form.block import Block
from blackbox.errors import BlockError, HubError, JournalError
from blackbox.services.hub.pair.entries import TooFarBehindError, digest_of
from blackbox.services.hub.pair.leadership import OutdatedError, PairLife, PairState, why_not
from blackbox.services.hub.pair.protocol import Entry, Follow, Kept, Lead, Pair, Standing, checksum_of
from blackbox.services.hub.pair.turn_log import ConflictError, Journals, TurnLog
from blackbox.services.hub.protocol import Ended, FindSites, Passive, Put, wrong_version
from blackbox.services.hub.server.history import History
from blackbox.services.hub.server.judge import Answer, Judge, Request, Turn

log = logging.getLogger("blackbox")

BEATS: Final = 8
"""Questions without an answer after which the peer counts as silent."""
_MOST_QUESTIONS: Final = 1 << 40
"""Questions of a process are numbered from its run on; the next run begins beyond them, also if the clock was set."""
_ALONE_TOO: Final = "has puts that the other hub lacks: both were active alone, or one was and lost power"


class Shell(Protocol):
    """Clock, sockets and state of a hub. An error of a method ends the hub."""

    def now_ns(self) -> int:
        """Return the time, ns since 1970."""

    def keep(self, kept: Kept) -> None:
        """Store the state on the disk."""

    def read_history(self) -> Judge:
        """Return a judge with the state in the journals."""

    def read_days(self, judge: Judge) -> None:
        """Read the newest message of every topic for a judge; call `pause` of the machine meanwhile."""

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

    def __init__(self, history: History, kept: Kept, pair: Pair, shell: Shell, journals: Journals) -> None:
        """Begin another run. `kept.is_alone` holds only for the role that has written it."""
        newest, note = history.newest()
        notes, part = history.part_of(newest + 1) if history.last() > newest else ({}, 0)
        self._part = {slice_id: checksum_of(each) for slice_id, each in notes.items()}
        """By slice, checksum of the note of a turn that the journals do not have completely."""
        digest = checksum_of(note).to_bytes(8, "little") if note else b""
        is_alone, run = kept.is_alone and kept.role == pair.role, max(kept.run + _MOST_QUESTIONS, shell.now_ns())
        kept = msgspec.structs.replace(kept, role=pair.role, run=run, is_alone=is_alone)
        self.state = state = PairState(history.feed.name, kept, newest, digest, part=part)
        self._pair, self._shell, self._journals = pair, shell, journals
        self._log = TurnLog(journals, history, newest, digest)
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
        if self.state.is_active and self.state.kept.is_alone and self.state.is_behind and not self._turns:
            self._warn("begins another epoch: the other hub has a later one")
            self._become_active("", is_new_epoch=True)
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
                self._warn(f"continues alone: {why or 'the other hub has restarted'}")
        if state.life is not self._life:
            self._life = state.life
            self._warn(f"is {state.life.value}: {why}")

    def _warn(self, what: str) -> None:
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
        self._proposed, self._is_proposed = None, False
        self._log.end_reading()

    def _append(self, entry: Entry, blocks: list[list[Block]]) -> None:
        self.state.appended(entry.number, self._log.append(entry, blocks))

    def _begin_epoch(self, epoch: int) -> None:
        if self.state.kept.epoch:
            self._journals.sync()  # a power cut then loses nothing of an earlier epoch, which cannot continue
        self.state.kept = msgspec.structs.replace(self.state.kept, epoch=epoch)
        self._note("")
        self._journals.begin_epoch(epoch)

    # Passive.

    def _turn_away(self, requests: Sequence[Request]) -> None:
        """Redirect clients to the other hub, or take over if it is time."""
        for at, each in enumerate(requests):
            if isinstance(each.request, Ended):
                self._shell.send(each.client, each.request)
            elif isinstance(each.request, FindSites):
                self._shell.send(each.client, self._shell.find_sites(each.request, each.key))
            elif self.state.may_take_over and self._talk.is_silent:
                is_new = self.state.kept.is_cut or self._pair.when_cut == "go_on"  # the other hub may use this epoch
                self._become_active("the other hub is silent, and a client asks", is_new_epoch=is_new)
                self._judge(requests[at:])
                return
            else:
                self._shell.send(each.client, Passive())

    def _take_lead(self, lead: Lead) -> None:
        """Process the peer's answer if the peer leads; else decide which hub must lead."""
        state, journals = self.state, self._journals
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
                raise HubError(why_not(state.feed, state.standing, lead.standing, _ALONE_TOO))
        self._note("another process leads")
        try:
            blocks = [journals.blocks_of(entry) for entry in entries]
        except BlockError as error:
            self._warn(f"received damaged puts from the other hub: {error}")
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
            journals.sync()
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
        if is_new_epoch or not state.kept.epoch or state.is_behind:
            self._begin_epoch(state.next_epoch(self._shell.now_ns()))
        else:
            self._journals.sync()  # the other hub may have answered puts as synced that are only in the page cache here
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
        state, journals = self.state, self._journals
        assert self.judge is not None
        while self._turns or self._find_turns():
            turn = self._turns[0]
            if not self._is_proposed:
                self._is_proposed = True
                self._proposed = journals.entry_of(turn) if turn.number else None
                state.propose(turn.number, turn.is_synced)
            if not state.has_followed():
                if self._talk.is_silent and self._pair.when_cut == "go_on":
                    if self._proposed is not None:  # the peer may have published it
                        self._append(self._proposed, journals.blocks_of(self._proposed))
                        self.judge.count(turn)
                    self._become_active("puts that the other hub answers are lost", is_new_epoch=True)
                    continue
                return
            if self._proposed is not None:
                self._append(self._proposed, journals.blocks_of(self._proposed))
                self._note("")
                if turn.is_synced:
                    journals.sync()
            self.judge.count(turn)
            self._turns.popleft()
            self._proposed, self._is_proposed = None, False
            for client, answer in turn.answers:
                self._shell.send(client, answer)

    def _find_turns(self) -> bool:
        """Add turns that delete expired topics or hold a snapshot, if they are due."""
        assert self.judge is not None
        turn = self.judge.deletion()
        self._turns.extend(self.judge.snapshot(self._journals.day()) if turn is None else [turn])
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
                self._warn("is not alone: the other hub is in step")
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
        known = {each.number: digest_of(each) for each in proposed} | self._log.digests
        if follow.standing.had > state.standing.newest or (newest and digest and known.get(newest, digest) != digest):
            return [], why_not(state.feed, follow.standing, state.standing, _ALONE_TOO)
        if newest == state.standing.newest:
            self._log.end_reading()
            return [], ""
        if newest == state.newest:
            return proposed, ""
        try:
            return self._log.after(newest, digest), ""
        except ConflictError:
            return [], why_not(state.feed, follow.standing, state.standing, _ALONE_TOO)
        except TooFarBehindError:
            return [], why_not(state.feed, follow.standing, state.standing, "lacks more than the journals still have")
        except JournalError as error:
            self._warn(f"cannot read the turns that the other hub lacks: {error}")
            return [], why_not(
                state.feed, follow.standing, state.standing, f"cannot get the turns that it lacks: {error}"
            )


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
