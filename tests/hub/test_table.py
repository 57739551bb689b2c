"""The table in which a hub remembers its clients, and its renewal."""

from __future__ import annotations

import msgspec
import numpy
import pytest

from blackbox.services.hub.protocol import PLACE, Places, pack_places
from blackbox.services.hub.server import client_table as table_module
from blackbox.services.hub.server.client_table import Table
from blackbox.services.hub.server.notes import Client, Judged, Renewed


def judged(name: str, session: int, count: int) -> tuple[Judged, Places]:
    """Return a request with the first puts of a client, or the start of its session."""
    places = numpy.zeros(count, PLACE)
    places["is_new"] = 1
    client, packed = Client("", name), pack_places(places) if count else b""
    return Judged(client, session, int(count > 0), packed, "", [], b"", 0), places


def put_first(table: Table, *names: str) -> None:
    """Let clients begin a session and put once, one after the other."""
    for name in names:
        for count in (0, 1):
            table.take(table.number + 1, *judged(name, table.number + 1, count))


def test_an_answer_that_replaces_another_one_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MOST_ANSWER_BYTES", 4 * 32)
    table = Table(remember_puts=10, remember_ids=10, most_clients=1)
    put_first(table, *"abcab")
    assert [bool(table.answered(Client("", name), 1)) for name in "abc"] == [True, True, True]


def test_renewed_clients_are_restored_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MOST_READ", 4)
    table, turns = Table(10, 10, 10), list[tuple[int, Renewed]]()
    for name in "abcdef":
        put_first(table, name)
        if (renewed := table.renew()) != Renewed([], [], []):
            table.number += 1
            turns.append((table.number, renewed))
        assert table.number - table.floor < 8 or not table.floor
    assert len(turns) > 2
    again = Table(3, 10, 10)
    again.restore(turns)
    assert again.answered(Client("", "a"), 1) == table.answered(Client("", "a"), 1)
    put_first(again, "x")
    assert [bool(again.answered(Client("", name), 1)) for name in "abcdx"] == [False, False, True, True, True]


def test_forgotten_clients_need_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_SPARE", 10)
    table = Table(remember_puts=2, remember_ids=3, most_clients=1)
    request, places = judged("a", 1, 1)
    for number in range(1, 500):
        table.take(number, msgspec.structs.replace(request, first=number, ids=[b"%d" % number]), places)
    assert len(table._noted) < 25
