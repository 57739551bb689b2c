"""Schedules of faults of a pair of hubs in virtual time: it answers as one register per topic, and loses nothing."""

from __future__ import annotations

from typing import Any, Literal
from unittest.mock import patch

import msgspec
import pytest

from blackbox.errors import HubError
from blackbox.services.hub.pair.leadership import PairState
from blackbox.services.hub.pair.protocol import Kept
from blackbox.services.hub.protocol import ANYWHERE
from tests.examples import first_of
from tests.simulation.pair_client import Row, SimClient
from tests.simulation.pair_hub import SimHub
from tests.simulation.pair_world import PairWorld, pair_finding_of

SCHEDULES = 100
FOUND = (920_036, 920_362, 941_303)
"""Schedules that failed once: the passive hub had a later epoch; after a power cut both hubs led, twice."""


@pytest.mark.parametrize("first", first_of(range(0, 600, SCHEDULES), keep=1))
def test_two_hubs_answer_as_one_that_loses_nothing(first: int) -> None:
    assert [finding for finding in map(pair_finding_of, range(first, first + SCHEDULES)) if finding] == []


@pytest.mark.parametrize("seed", FOUND)
def test_a_schedule_that_failed_once_passes(seed: int) -> None:
    assert not pair_finding_of(seed)


# Scripts, in the same world without random faults.


def state_of(hub: SimHub) -> PairState:
    assert hub.machine is not None
    return hub.machine.state


def wait(world: PairWorld, seconds: float) -> None:
    world.loop.run(world.loop.now + seconds)


def in_step(when_cut: Literal["wait", "go_on"] = "wait") -> tuple[PairWorld, SimHub, SimHub]:
    """Return a world with two clients more, all idle; its active hub; and its armed one."""
    world = PairWorld(0)
    world.are_faults_over = True
    world.pairs = [msgspec.structs.replace(each, when_cut=when_cut) for each in world.pairs]
    world.clients += [SimClient(world, number) for number in (8, 9)]
    world.settle(100.0)
    leads, follows = sorted(world.hubs, key=lambda hub: not state_of(hub).is_active)
    return world, leads, follows


def link_cut(world: PairWorld) -> Any:
    """Lose what the hubs send to each other."""
    return patch.object(world, "carry", lambda *_: None)


def move(client: SimClient, hub: SimHub) -> None:
    """Let a client use one hub only."""
    client._hub, client._again_at = hub.at, -1.0
    client._connect()


def put_at(world: PairWorld, client: SimClient, hub: SimHub) -> None:
    move(client, hub)
    client.put([Row(b"A", world.model.new_payload(), b"", ANYWHERE, 0)])
    wait(world, 1.0)


def test_a_hub_that_may_have_been_replaced_answers_no_read() -> None:
    world, leads, follows = in_step()
    writer, reader = world.clients[-2:]
    with link_cut(world):
        wait(world, 12.0)  # the silence after which the armed hub takes over
        put_at(world, writer, follows)
        assert state_of(follows).is_active
        assert not writer.sent
        move(reader, leads)
        reader._hello()
        wait(world, 5.0)
        assert state_of(leads).is_active  # it does not know better
        assert reader.hellos
    reader._send_again_in(0.0)
    world.settle(100.0)


def test_a_hub_that_gave_way_does_not_lead_when_it_restarts() -> None:
    world, leads, follows = in_step("go_on")
    writer, reader = world.clients[-2:]
    with link_cut(world):
        wait(world, 12.0)
        move(reader, follows)
        reader._hello()
        wait(world, 1.0)
        put_at(world, writer, leads)
        assert all(state_of(hub).kept.is_alone for hub in world.hubs)
        assert state_of(leads).kept.term > state_of(follows).kept.term
    with pytest.raises(HubError, match="has puts that the other hub lacks"):
        wait(world, 5.0)
    assert not follows.disk.kept.is_alone
    follows.kill()
    follows.start()
    with pytest.raises(HubError, match="has puts that the other hub lacks"):
        wait(world, 5.0)
    assert state_of(leads).is_active


def test_two_hubs_that_continue_alone_give_no_place_twice() -> None:
    world, leads, follows = in_step("go_on")
    near, far = world.clients[-2:]
    with link_cut(world):
        wait(world, 12.0)
        put_at(world, far, follows)
        put_at(world, near, leads)
        assert all(state_of(hub).kept.is_alone for hub in world.hubs)


def test_a_lone_hub_stays_alone_while_it_begins_another_epoch() -> None:
    world, leads, follows = in_step()
    before, kept, keep = state_of(leads).kept.epoch, list[Kept](), leads.keep

    def noting(each: Kept) -> None:
        kept.append(each)
        keep(each)

    follows.kill()
    follows.disk.kept = msgspec.structs.replace(follows.disk.kept, epoch=before + 10**12)
    with patch.object(leads, "keep", noting):
        follows.start()
        world.settle(100.0)
    assert next(each for each in kept if each.epoch != before).is_alone


def test_a_turn_counts_once_it_is_appended() -> None:
    world, leads, _ = in_step()
    assert leads.machine is not None
    judge = leads.machine.judge
    assert judge is not None
    before = dict(judge.counts)
    with link_cut(world):
        put_at(world, world.clients[-1], leads)
        assert judge.counts == before
    wait(world, 5.0)
    assert judge.counts["stored"] == before["stored"] + 1
