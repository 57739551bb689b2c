"""What a hub remembers of its clients: how far back its journals must be read for it."""

from __future__ import annotations

import numpy
import pytest

from blackbox.hub import table as table_module
from blackbox.hub.notes import Client, Judged
from blackbox.hub.protocol import PLACE, Places, pack_places
from blackbox.hub.table import Table


def judged(name: str, session: int, count: int) -> tuple[Judged, Places]:
    """Return a request with the first puts of a client, or the start of its session."""
    places = numpy.zeros(count, PLACE)
    places["is_new"] = 1
    client, packed = Client("", name), pack_places(places) if count else b""
    return Judged(0, client, session, int(count > 0), packed, "", [], b"", 0), places


def put_first(table: Table, *names: str) -> None:
    """Have clients begin a session, one after the other, and put once."""
    for name in names:
        for count in (0, 1):
            table.take(table.number + 1, *judged(name, table.number + 1, count))


def test_notes_are_read_from_the_oldest_answer_on_when_a_forgotten_client_comes_again() -> None:
    table = Table(remember_puts=10, remember_ids=10, most_clients=2)
    put_first(table, "a", "b", "c", "a")
    assert table.floor == 4
    assert table.answered(Client("", "b"), 1)


def test_an_answer_that_replaces_another_one_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MOST_ANSWER_BYTES", 4 * 32)
    table = Table(remember_puts=10, remember_ids=10, most_clients=1)
    put_first(table, *"abcab")
    assert [bool(table.answered(Client("", name), 1)) for name in "abc"] == [True, True, True]


def test_notes_are_read_from_the_oldest_partial_request_on() -> None:
    table, is_there = Table(10, 10, 10), numpy.ones(1, numpy.bool_)
    for number, name in enumerate("aba", 1):
        table.take_partly(number, *judged(name, 1, 1), is_there)
    assert table.floor == 2
