"""Decide which of the two hubs of a feed leads, and when a client may be answered.

Rules without sockets, files or clocks. `machine.py` talks to the peer, appends, and stores `kept` on the disk
before it sends messages that depend on it.

::

    PASSIVE -- `end_following`: it has all turns, as the active hub confirms -------------->  ARMED
    PASSIVE -- `settle`: neither is armed, and the peer has no more ----------------------->  ACTIVE, in a new epoch
    PASSIVE -- `--alone` was given, or it was alone before -------------------------------->  ACTIVE
    PASSIVE -- it was alone and lost power, has heard nothing of the peer since, and a client asks -> in a new epoch
    PASSIVE -- `settle`: its journals were damaged, and the peer lacks some of their turns ->  an error
    ARMED   -- `hear_lead`: another process leads, or continues without it ---------------->  PASSIVE
    ARMED   -- the active hub is silent, and a client asks; or `settle`: it has ended ----->  ACTIVE, in the same epoch,
               or in a new one if `when_cut` is "go_on" and the active hub is silent
    ACTIVE  -- `hears`: the peer has a later term ----------------------------------------->  PASSIVE
    ACTIVE  -- the peer is silent and `when_cut` is "go_on" ------------------------------->  ACTIVE, in a new epoch

An active hub that is not alone has a peer that may take over. It appends and answers only turns that the peer has
appended (`propose`, `has_followed`).
"""

from __future__ import annotations

import msgspec

from blackbox.block.form.layout import VERSION
from blackbox.errors import HubError
from blackbox.life import Life
from blackbox.services.hub.pair.protocol import Entry, Follow, Kept, Lead, Standing, next_term
from blackbox.services.hub.protocol import wrong_version


class PairLife(Life):
    """Role of a hub in its pair at this moment."""

    PASSIVE = "passive", "armed", "active"
    """It may lack turns. ARMED once it has all, ACTIVE if its peer has no more."""
    ARMED = "armed", "passive", "active"
    """It has all turns that the active hub has answered, and takes over if that is silent and a client asks."""
    ACTIVE = "active", "passive"
    """It takes puts. PASSIVE once it hears that the other hub has taken over."""


class OutdatedError(Exception):
    """The other hub has taken over."""


class PairState:
    """State of a hub of a pair. Attributes: `kept`, for the disk; `life`; `peer`, the peer's last standing."""

    def __init__(self, feed: str, kept: Kept, newest: int, digest: bytes, *, part: int = 0) -> None:
        """`newest`, `digest`: the last turn that its journals have completely, and its digest. See also `Standing`."""
        self.kept = kept
        self.life = PairLife.PASSIVE
        self.peer: Standing | None = None
        self.newest, self.digest, self.part = newest, digest, part
        self.proposed = 0
        """The turn that the peer must have before it is appended here; 0: none."""
        self.feed = feed
        # State of a passive hub:
        self._leader = self._done = 0
        # State of an active hub:
        self._follower = self._batch = 0
        self._is_synced = self._is_left = False
        """True if the follower must have the proposed turn on its disk; True if the follower has restarted."""
        self._followed: Follow | None = None

    @property
    def is_active(self) -> bool:
        """True if it leads."""
        return self.life is PairLife.ACTIVE

    @property
    def standing(self) -> Standing:
        """Standing of this hub, for the peer."""
        kept, newest = self.kept, self.proposed or self.newest
        is_armed = self.life is PairLife.ARMED
        own = newest, self.is_active, is_armed, VERSION, kept.damaged, self.part, kept.epoch
        return Standing(self.feed, kept.role, kept.run, kept.term, *own)

    @property
    def is_behind(self) -> bool:
        """True if the peer's journals have a later epoch, so that it cannot follow in this one."""
        return self.peer is not None and self.peer.epoch > self.kept.epoch

    def next_epoch(self, now_ns: int) -> int:
        """Return an epoch later than all that either hub is known to have, and another one than the other hub would."""
        before = max(now_ns - 1, self.kept.epoch, 0 if self.peer is None else self.peer.epoch)
        return next_term(before, self.kept.role)

    @property
    def may_take_over(self) -> bool:
        """True if it may lead although the other hub does not answer."""
        return self.life is PairLife.ARMED or self.kept.is_cut

    def question(self, number: int) -> Follow:
        """Return what to ask the peer."""
        return Follow(number, self.standing, self._done, self._leader, self.digest)

    def hears(self, standing: Standing) -> bool:
        """Note the peer's standing. Return False for an earlier one than is known, or one of another version.

        Raises HubError for another version if this hub is passive, OutdatedError if the peer has taken over.
        """
        if why := wrong_version("other hub", standing.version):
            if not self.is_active:
                raise HubError(why)
            return False
        if self.peer is not None and (standing.run, standing.term) < (self.peer.run, self.peer.term):
            return False
        self.peer = standing
        if self.kept.is_cut:  # that hub may lead from the next answer on, so this one must not lead without it
            self.kept = msgspec.structs.replace(self.kept, is_cut=False)
        if self.is_active and standing.term > self.kept.term:
            raise OutdatedError
        return True

    def appended(self, number: int, digest: bytes) -> None:
        """Note that the journals have a turn."""
        self.newest, self.digest, self.proposed, self.part = number, digest, 0, 0
        if self._is_left:
            self._go_alone()

    # Passive.

    def settle(self, peer: Standing) -> tuple[str, bool] | None:
        """Return why it must lead if the peer does not, and True for a new epoch; None if it must not lead.

        Raises HubError if it must lead but is damaged, or if both are damaged.
        """
        if self.life is PairLife.ARMED:
            return "the active hub has ended or restarted", False
        if peer.is_armed or (self.standing.rank < peer.rank and not (self.kept.damaged and peer.damaged)):
            return None
        if self.kept.damaged:
            raise HubError(
                f"{self.kept.damage}Turns {self.newest + 1} to {self.kept.damaged} are lost here; the other hub has "
                f"turns up to {peer.newest}: restore the files, or give up lost turns and start one hub with --alone"
            )
        return "no hub was active, and the other hub has no more", True

    def hear_lead(self, lead: Lead) -> list[Entry]:
        """Return entries to append; then call `end_following`. Raises HubError if it cannot follow the active hub."""
        if lead.why:
            raise HubError(lead.why)
        if lead.standing.term < self.kept.term:
            return []  # it will hear of the later term
        if lead.standing.run != self._leader:
            self._leader, self._done = lead.standing.run, 0
            self.enter(PairLife.PASSIVE)
        entries = [each for each in lead.entries if each.number > self.newest]
        return entries if entries and entries[0].number == self.newest + 1 else []

    def end_following(self, lead: Lead) -> bool:
        """Note that its entries were appended. Return True if the active hub's epoch must begin here."""
        peer = lead.standing
        if peer.term < self.kept.term:
            return False
        self.kept = msgspec.structs.replace(self.kept, term=peer.term)
        has_all = self.newest == peer.newest
        if has_all:
            self._done = lead.batch
            self.kept = msgspec.structs.replace(self.kept, is_cut=False)
        if lead.is_in_step and has_all:
            self.kept = msgspec.structs.replace(self.kept, damaged=0, damage="")
            self.enter(PairLife.ARMED)
        elif not lead.is_in_step:
            self.enter(PairLife.PASSIVE)
        return has_all and lead.epoch != self.kept.epoch

    def enter(self, life: PairLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current one."""
        if life is not self.life:
            self.life = self.life.enter(life, f"hub of feed {self.feed!r}")

    # Active.

    def lead(self) -> None:
        """Become the active hub, alone at first."""
        term = next_term(max(self.kept.term, self.peer.term if self.peer is not None else 0), self.kept.role)
        self.kept = msgspec.structs.replace(self.kept, term=term, is_alone=True, is_cut=False)
        self._follower, self._followed, self.proposed, self._is_left = 0, None, 0, False
        self.enter(PairLife.ACTIVE)

    def give_way(self) -> None:
        """Become passive, as the other hub has taken over, or may have."""
        self.kept = msgspec.structs.replace(self.kept, is_alone=False)
        self.proposed, self._is_left = 0, False
        self.enter(PairLife.PASSIVE)

    def propose(self, number: int, is_synced: bool) -> None:
        """Begin a turn that the peer must have, on its disk if `is_synced`, unless this hub is alone.

        `number`: 0 for a turn that appends nothing. The peer confirms that it still follows: otherwise an active hub
        does not know that it still leads.
        """
        self._batch += 1
        self.proposed, self._is_synced = number, is_synced

    def has_followed(self) -> bool:
        """Return True if the proposed turn may be appended, or the answers may be sent."""
        follow = self._followed
        newest = self.proposed or self.newest
        has_it = follow is not None and follow.done == self._batch and follow.standing.newest == newest
        return self.kept.is_alone or self._is_left or has_it

    def _go_alone(self) -> None:
        self.kept, self._is_left = msgspec.structs.replace(self.kept, is_alone=True), False

    def hear_follow(self, follow: Follow) -> None:
        """Note the progress of the peer, if it follows."""
        if not self.is_active or follow.standing.is_active:
            return
        if follow.standing.run != self._follower:  # the earlier process has ended, and cannot take over
            self._follower, self._is_left = follow.standing.run, True
            if not self.proposed:
                self._go_alone()  # else after the proposed turn, which that process may have
        self._followed = follow if follow.leader == self.kept.run else None

    def take_in(self, follow: Follow, entries: list[Entry]) -> bool:
        """Note that the peer is in step once the answer to it has all turns. Return True if it was not before.

        Later turns wait for the peer: else it would never have all turns of a busy hub.
        """
        newest = entries[-1].number if entries else follow.standing.newest
        is_in_step = self._followed is follow and newest == self.standing.newest
        if not (is_in_step and self.kept.is_alone):
            return False
        self.kept = msgspec.structs.replace(self.kept, is_alone=False)
        return True

    def has_news(self, follow: Follow) -> bool:
        """Return True if the peer must be answered at once."""
        return follow.done != self._batch or follow.leader != self.kept.run

    def answer(self, follow: Follow, entries: list[Entry], why: str) -> Lead:
        """Return the answer to the peer."""
        is_in_step = self.is_active and not self.kept.is_alone and self._followed is not None
        epoch, batch = self.kept.epoch, self._batch
        return Lead(follow.number, self.standing, epoch, batch, self._is_synced, is_in_step, entries, why)


def why_not(feed: str, passive: Standing, active: Standing, why: str) -> str:
    """Return the error of a passive hub that cannot follow the active hub."""
    return (
        f"hub of feed {feed!r}, the {passive.role}, {why} (the {active.role}, turn {active.newest}): "
        f"move its directory away, and copy the other hub's directory there"
    )
