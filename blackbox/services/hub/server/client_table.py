"""Table of a hub's clients: their sessions and last puts, recent answers, and ids."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.services.hub.protocol import PlaceRow, Places, is_derived
from blackbox.services.hub.server.notes import Client, Judged, Renewed

_MOST_ANSWER_BYTES: Final = 256 << 20
_MOST_READ: Final = 100_000
"""Requests before the newest snapshot that a hub reads from its journals at its start. Newer notes have the rest."""
_SPARE: Final = 10_000


class Table:
    """State that follows from the notes of the journals, in order, within the bounds of the hub's settings.

    Attributes: `number`, number of the last turn.
    """

    def __init__(self, remember_puts: int, remember_ids: int, most_clients: int) -> None:
        self.number = 0
        self._most_answers, self._most_ids, self._most_clients = remember_puts, remember_ids, most_clients
        self._clients: OrderedDict[Client, tuple[int, int]] = OrderedDict()
        """Session and last put by client, the least recently active client first."""
        self._answers: OrderedDict[tuple[Client, int], tuple[int, int, bytes, str]] = OrderedDict()
        """Turns, places and reasons by client and first put. Turns are two numbers, here and below: of the turn that
        judged the request, and of the last one that has a note of it."""
        self._answer_bytes = 0
        self._ids: OrderedDict[tuple[str, bytes], tuple[int, int, PlaceRow]] = OrderedDict()
        """Turns and place by public key and id."""
        self._partial: dict[tuple[Client, int, int], tuple[int, int, dict[int, PlaceRow]]] = {}
        """Turns and stored rows by client, session and first put of a request that a killed hub has stored in part."""
        self._recent: deque[int] = deque(maxlen=_MOST_READ)
        """Turns of the last requests."""
        self._noted: deque[tuple[int, int, Any]] = deque()
        """Last turn with a note, place in `_remembered`, and key, the oldest turn first. Forgotten keys may be here."""

    # Queries.

    def client(self, client: Client) -> tuple[int, int] | None:
        """Return a client's session and the number of its last put; None if it is not known."""
        return self._clients.get(client)

    def answered(self, client: Client, first: int) -> tuple[bytes, str] | None:
        """Return the places and reasons answered to a request; None if they were forgotten."""
        found = self._answers.get((client, first))
        return None if found is None else found[2:]

    def places_of(self, key: str, ids: Sequence[bytes]) -> dict[bytes, PlaceRow]:
        """Return the remembered places of puts of a key with these ids."""
        return {each: found[2] for each in ids if (found := self._ids.get((key, each))) is not None}

    def stored(self, client: Client | None, session: int, first: int) -> dict[int, PlaceRow]:
        """Return the rows of a request that a killed hub has stored without an answer."""
        if not self._partial or client is None:
            return {}
        return self._partial.get((client, session, first), (0, 0, {}))[2]

    @property
    def floor(self) -> int:
        """Number of the first turn to read at a start; 0: all turns. Earlier notes are not needed after `renew`."""
        return self._recent[0] if len(self._recent) == _MOST_READ else 0

    def _remembered(self) -> tuple[dict[Any, tuple[Any, ...]], ...]:
        return self._answers, self._ids, self._partial

    def clients(self) -> list[tuple[Client, int, int]]:
        """Return session and last put of each client, for a snapshot."""
        return [(client, *known) for client, known in self._clients.items()]

    # Updates.

    def renew(self) -> Renewed:
        """Return answers, ids and partial requests that only notes before `floor` have. Note them in the next turns."""
        floor, number, found = self.floor, self.number + 1, Renewed([], [], [])
        lists: tuple[list[Any], ...] = found.answers, found.ids, found.partial
        while self._noted and self._noted[0][0] < floor:
            oldest = self._noted.popleft()
            if self._is_remembered(oldest):
                _, kind, key = oldest
                known = self._remembered()[kind]
                lists[kind].append((key, known[key]))
                known[key] = known[key][0], number, *known[key][2:]
                self._noted.append((number, kind, key))
        return found

    def _is_remembered(self, noted: tuple[int, int, Any]) -> bool:
        turn, kind, key = noted
        value = self._remembered()[kind].get(key)
        return value is not None and value[1] == turn

    def restore(self, turns: Iterable[tuple[int, Renewed]]) -> None:
        """Restore the items that turns have renewed. Then take the requests of all turns from `floor` on."""
        found: tuple[dict[Any, Any], ...] = {}, {}, {}
        for number, renewed in turns:
            lists: tuple[list[Any], ...] = renewed.answers, renewed.ids, renewed.partial
            for items, each in zip(lists, found, strict=True):
                each.update([(key, (turn, number, *rest)) for key, (turn, _, *rest) in items])
        for kind, (known, each) in enumerate(zip(self._remembered(), found, strict=True)):
            known.update(sorted(each.items(), key=lambda item: item[1][0]))  # the oldest is forgotten first
            self._noted.extend([(value[1], kind, key) for key, value in each.items()])
        self._answer_bytes = sum(len(places) + len(why) for _, _, places, why in self._answers.values())

    def set_clients(self, number: int, clients: Iterable[tuple[Client, int, int]]) -> None:
        """Set the clients to those of a snapshot after a turn."""
        self.number = number
        self._noted = deque(sorted(self._noted, key=itemgetter(0)))
        self._clients = OrderedDict((client, (session, last)) for client, session, last in clients)

    def take(self, number: int, request: Judged, places: Places) -> None:
        """Take a request with a complete result."""
        client, self.number = request.client, number
        self._recent.append(number)
        if client is not None and len(places):
            if self._partial:
                self._partial.pop((client, request.session, request.first), None)
            self._hear(client, request.session, request.first + len(places) - 1)
            self._forget_answer(client, request.first)  # of an earlier client of this name
            self._answers[client, request.first] = number, number, request.places, request.why
            self._noted.append((number, 0, (client, request.first)))
            self._answer_bytes += len(request.places) + len(request.why)
            while len(self._answers) > self._most_answers or self._answer_bytes > _MOST_ANSWER_BYTES:
                self._forget_answer(*next(iter(self._answers)))
        elif client is not None:
            self._begin_session(client, request.session)
        if request.ids:
            self._remember_ids(number, request, places, places["is_new"] != 0)

    def take_partly(self, number: int, request: Judged, places: Places, is_there: NDArray[numpy.bool_]) -> None:
        """Take a request that a killed hub has stored in part. When it is repeated, the other rows are judged.

        `is_there`: False for places without a message. Rows that an earlier hub had stored have a place, too.
        """
        assert request.client is not None
        self.number = number
        self._recent.append(number)
        rows = numpy.flatnonzero(is_there & (places["is_refused"] == 0))
        stored = {row: _known(place) for row, place in zip(rows.tolist(), places[rows].tolist(), strict=True)}
        key = request.client, request.session, request.first
        self._partial[key] = number, number, stored
        self._noted.append((number, 2, key))
        self._remember_ids(number, request, places, is_there & (places["is_new"] != 0))

    def _forget_answer(self, client: Client, first: int) -> None:
        _, _, places, why = self._answers.pop((client, first), (0, 0, b"", ""))
        self._answer_bytes -= len(places) + len(why)

    def _remember_ids(self, number: int, request: Judged, places: Places, are_new: NDArray[numpy.bool_]) -> None:
        """Remember the places of new puts with ids; forget the oldest ids if there are too many."""
        if request.client is None or not any(request.ids):
            return
        key, ids = sys.intern(request.client.key), request.ids
        rows = numpy.flatnonzero(are_new)
        for row, place in zip(rows.tolist(), places[rows].tolist(), strict=True):
            if ids[row]:
                self._ids[key, ids[row]] = number, number, _known(place)
                self._ids.move_to_end((key, ids[row]))
                self._noted.append((number, 1, (key, ids[row])))
        while len(self._ids) > self._most_ids:
            _, (turn, *_) = self._ids.popitem(last=False)  # with all ids of its message, which is known or new as one
            while self._ids:
                (_, put_id), (of_turn, *_) = next(iter(self._ids.items()))
                if of_turn != turn or not is_derived(put_id):
                    break
                self._ids.popitem(last=False)
        if len(self._noted) > 2 * sum(map(len, self._remembered())) + _SPARE:
            self._noted = deque(filter(self._is_remembered, self._noted))

    def _begin_session(self, client: Client, session: int) -> None:
        """Begin a client's session; forget the least recently active clients if there are too many."""
        _, last = self._clients.get(client, (0, 0))
        self._hear(client, session, last)
        if self._partial:
            self._partial = {key: each for key, each in self._partial.items() if key[0] != client}
        while len(self._clients) > self._most_clients:
            self._clients.popitem(last=False)

    def _hear(self, client: Client, session: int, last: int) -> None:
        self._clients[client] = session, last
        self._clients.move_to_end(client)


def _known(place: PlaceRow) -> PlaceRow:
    """Return the place of a known put."""
    slice_id, _, _, epoch, sequence = place
    return slice_id, 0, 0, epoch, sequence
