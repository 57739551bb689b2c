"""The choice of the leading hub of a pair, without sockets, files or clocks."""

from __future__ import annotations

import msgspec
import pytest

from blackbox.errors import HubError
from blackbox.services.hub.pair.leadership import PairLife, PairState
from blackbox.services.hub.pair.protocol import Entry, Kept, Lead


def state(role: str = "primary", newest: int = 0, **kept: object) -> PairState:
    return PairState("pair", Kept(role, run=1 + (role == "backup"), **kept), newest, b"")  # type: ignore[arg-type]


def talk(leads: PairState, follows: PairState, entries: tuple[Entry, ...] = ()) -> Lead:
    """Let one hub ask and the other answer, and append the entries sent."""
    follow = follows.question(1)
    assert leads.hears(follow.standing)
    leads.hear_follow(follow)
    lacks = [each for each in entries if each.number > follow.standing.newest]
    leads.take_in(follow, lacks)
    lead = leads.answer(follow, lacks, "")
    assert follows.hears(lead.standing)
    if lead.standing.is_active:
        for entry in follows.hear_lead(lead):
            follows.appended(entry.number, b"")
        if follows.end_following(lead):
            follows.kept = msgspec.structs.replace(follows.kept, epoch=lead.epoch)
    return lead


def pair() -> tuple[PairState, PairState]:
    """Return two states that are in step, the active one first."""
    leads, follows = state(), state("backup")
    leads.lead()
    for _ in range(3):
        talk(leads, follows)
    assert (leads.life, follows.life) == (PairLife.ACTIVE, PairLife.ARMED)
    return leads, follows


def test_a_new_epoch_is_later_than_all_that_either_hub_has() -> None:
    """The clock of the hub that leads may be behind. Epochs of the primary are odd, like its terms."""
    less, more = state(epoch=2_000), state("backup", epoch=5_000)
    assert less.hears(more.standing)
    assert less.is_behind
    assert less.next_epoch(3_000) == 5_001
    assert less.next_epoch(7_000) == 7_001
    assert more.hears(less.standing)
    assert not more.is_behind
    assert more.next_epoch(3_000) == 5_002
    assert more.next_epoch(7_000) == 7_000


def test_a_turn_is_appended_once_the_peer_has_it() -> None:
    leads, follows = pair()
    entry = Entry(1, 0, [])
    leads.propose(1, is_synced=True)
    assert not leads.has_followed()
    assert talk(leads, follows, (entry,)).is_synced
    assert not leads.has_followed(), "the peer has not confirmed it"
    talk(leads, follows, (entry,))
    assert leads.has_followed()
    leads.appended(1, b"")
    assert leads.newest == follows.newest == 1


def test_a_late_message_of_an_earlier_term_makes_no_hub_follow() -> None:
    leads, follows = pair()
    late = leads.answer(follows.question(1), [Entry(7, 0, [])], "")
    follows.lead()
    follows.give_way()
    assert follows.hear_lead(late) == []
    assert not follows.end_following(late)
    assert follows.newest == 0


def test_a_damaged_hub_follows_a_peer_that_has_all() -> None:
    damaged, whole = state(newest=3, damaged=5, damage="a file. "), state("backup", newest=5)
    assert damaged.settle(whole.standing) is None
    assert whole.settle(damaged.standing) is not None
    whole.lead()
    for _ in range(3):
        talk(whole, damaged, tuple(Entry(number, 0, []) for number in (4, 5)))
        assert (damaged.life is PairLife.ARMED) == (damaged.kept.damaged == 0)
    assert damaged.life is PairLife.ARMED


def test_a_damaged_hub_ends_if_its_peer_is_behind_or_damaged() -> None:
    damaged, less = state(newest=3, damaged=5, damage="a file. "), state("backup", newest=4)
    too = state("backup", newest=4, damaged=9, damage="another. ")
    assert less.settle(damaged.standing) is None
    for one, other in ((damaged, less), (damaged, too), (too, damaged)):
        with pytest.raises(HubError, match=r"^an?.*\. Turns . to . are lost here; the other hub has turns up to ."):
            one.settle(other.standing)
