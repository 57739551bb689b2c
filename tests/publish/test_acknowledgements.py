"""Acknowledgements of recorders, compared with a reference that counts message by message."""

from __future__ import annotations

from typing import get_args

import numpy
from hypothesis import given
from hypothesis import strategies as st

from blackbox.block.form.ack_format import MOST_BYTES, NEVER_SYNCED, NOTHING_MISSING, Acknowledgement
from blackbox.block.form.format import RECORDED_KEY
from blackbox.publish.listeners.ack_tracker import Acknowledgements, What

EPOCH = 7
END = 30

positions = st.integers(0, END)


def told(nonce: int, begin: int, recorded: int, synced: int, epoch: int = EPOCH) -> Acknowledgement:
    return Acknowledgement(
        nonce.to_bytes(8, "little"), epoch, begin, recorded, synced, NOTHING_MISSING, f"recorder {nonce}"
    )


@st.composite
def told_in_turn(draw: st.DrawFn) -> list[Acknowledgement]:
    """Draw acknowledgements of a few recorders with growing positions."""
    said = []
    for nonce in range(draw(st.integers(0, 4))):
        begin, *rest = sorted(draw(st.lists(positions, min_size=3, max_size=9)))
        is_never = draw(st.booleans())
        for synced, recorded in zip(rest, rest[1:], strict=False):
            said.append(told(nonce, begin, recorded, NEVER_SYNCED if is_never else synced))
    return said


@given(told_in_turn(), st.integers(1, 3), positions, st.data())
def test_reached_positions_are_those_that_enough_recorders_have(
    said: list[Acknowledgement], by: int, goal: int, data: st.DataObject
) -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.begin_epoch(EPOCH)
    has = {what: numpy.zeros((4, END + 1), bool) for what in get_args(What)}
    for what in said:
        acknowledgements.note(data.draw(st.integers(0, 1)), what.encode(), what)
        nonce = what.nonce[0]
        has["recorded"][nonce, what.begin : what.recorded] = True
        has["synced"][nonce, what.begin : max(what.begin, what.synced)] = True
        for name in get_args(What):
            enough = has[name].sum(axis=0) >= by
            assert acknowledgements.reached(name, by, goal) == min(goal, int(enough.argmin()))


@given(st.binary(max_size=MOST_BYTES + 20))
def test_any_bytes_are_accepted_as_acknowledgement(rest: bytes) -> None:
    what = Acknowledgement.decode(RECORDED_KEY + rest)
    assert what is None or 0 <= what.begin <= what.recorded >= what.synced >= NEVER_SYNCED


@given(st.text())
def test_an_encoded_acknowledgement_decodes_to_the_same_values(name: str) -> None:
    what = told(1, 2, 4, 3)._replace(missing=5, name=name.encode(errors="replace").decode())
    said = what.encode()
    read = Acknowledgement.decode(said)
    assert read is not None
    assert len(said) <= MOST_BYTES
    assert read[:-1] == what[:-1]
    assert len(name.encode(errors="replace")) > 40 or read.name == what.name


def test_a_claim_beyond_what_was_sent_does_not_cover_later_messages() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.begin_epoch(EPOCH)
    acknowledgements.note(0, b"", told(1, 0, 1 << 62, 1 << 62))
    assert acknowledgements.reached("recorded", 1, 10) == 10
    acknowledgements.withdraw(0, b"")
    acknowledgements.note(0, b"", told(1, 0, 11, 11, epoch=EPOCH + 1))
    assert acknowledgements.reached("recorded", 2, 20) == 0


def test_recorders_beyond_the_limit_are_evicted() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.begin_epoch(EPOCH)
    for nonce in range(2_000):
        acknowledgements.note(0, b"", told(nonce, 0, 1, 1))
    assert [position.recorder for position in acknowledgements.positions(0, 1)] == [
        f"recorder {nonce}" for nonce in range(2_000 - 1_024, 2_000)
    ]
