"""Requests and questions of a client that its hub has not answered: they are sent again in their order. No I/O."""

from __future__ import annotations

import secrets
from collections import deque
from concurrent.futures import Future
from typing import Final, NamedTuple

from blackbox.block.form.layout import VERSION
from blackbox.errors import HubError
from blackbox.services.hub.client.put_queue import Columns
from blackbox.services.hub.protocol import ENCODER, Hello, Put, Welcome

_MOST_REQUESTS: Final = 8
"""Maximum unanswered requests; further puts share the next one."""


class _Sent(NamedTuple):
    columns: Columns
    text: bytes


class RequestsSent:
    """Numbers the puts of a session and keeps each request until it is answered."""

    def __init__(self, name: str, feed: str, *, synced: bool) -> None:
        self._name, self._feed, self._synced = name, feed, synced
        self._session, self._replaces = secrets.randbits(62), 0
        self._next = 0
        """Number of the next put; 0: not known from the hub yet."""
        self._sent: dict[int, _Sent] = {}
        """Unanswered requests by number of their first put."""
        self._unsent: deque[int] = deque()
        self._expected = 0
        """The put from which requests are being sent again, as the hub expects it."""

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def has_room(self) -> bool:
        """True if another request may be made."""
        return self._next > 0 and len(self._sent) < _MOST_REQUESTS

    @property
    def has_unsent(self) -> bool:
        """True if a request must be sent."""
        return bool(self._unsent)

    def make(self, columns: Columns) -> None:
        """Make a request of puts, which get the next numbers."""
        put = Put(
            self._name,
            self._session,
            self._next,
            columns.count,
            self._synced,
            columns.topics,
            columns.index,
            columns.offsets,
            columns.payloads,
            columns.times,
            columns.valid,
            columns.ids,
            columns.if_at,
            columns.ttl,
            columns.is_one,
        )
        self._sent[self._next] = _Sent(columns, ENCODER.encode(put))
        self._unsent.append(self._next)
        self._next += columns.count

    def unsent(self) -> bytes | None:
        """Return the next request to send; None: it was answered meanwhile. Then call `is_sent`."""
        sent = self._sent.get(self._unsent[0])
        return None if sent is None else sent.text

    def is_sent(self) -> None:
        """Note that the request of `unsent` was sent."""
        self._unsent.popleft()

    def hello(self, number: int, prefix: bytes | None) -> bytes:
        """Return a question to the hub."""
        hello = Hello(self._name, self._session, self._feed, number, VERSION, prefix, self._replaces)
        return ENCODER.encode(hello)

    def welcome(self, answer: Welcome) -> None:
        """Note the last put that the hub has, unless it is known."""
        self._next = self._next or answer.last + 1

    def replace(self, session: int | None) -> bool:
        """Replace an earlier session of this name. Return False if this session has begun, which is replaced then."""
        if session is None or self._next:
            return False
        self._replaces = session
        return True

    def answered(self, first: int) -> Columns | None:
        """Remove and return the puts of a request; None: it was answered before."""
        sent = self._sent.pop(first, None)
        if sent is None:
            return None
        self._expected = 0
        return sent.columns

    def resume(self, hub: str, expected: int) -> None:
        """Send requests again from the one that the hub expects, once. Raises HubError if it was answered before."""
        if expected == self._expected or not self._sent:
            return
        if expected not in self._sent:
            raise HubError(
                f"hub {hub} expected put {expected} of client {self._name!r}, which it had answered before: "
                f"the next one is {next(iter(self._sent))}"
            )
        self._expected = expected
        self._unsent = deque(self._sent)

    def repeat(self) -> None:
        """Send all requests again."""
        self._expected = 0
        self._unsent = deque(self._sent)

    def close(self) -> list[Columns]:
        """Return the puts of all unanswered requests."""
        return [sent.columns for sent in self._sent.values()]


class _Question(NamedTuple):
    prefix: bytes | None
    answer: Future[Welcome]


class Questions:
    """Questions for the last put that the hub has. The lock of its owner protects it, except in the driver's calls."""

    def __init__(self) -> None:
        self._asked: dict[int, _Question] = {}
        self._unsent: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def has_unsent(self) -> bool:
        """True if a question must be sent."""
        return bool(self._unsent)

    def ask(self, prefix: bytes | None) -> Future[Welcome]:
        """Add a question, which also asks for the position of topics with a prefix. Return its answer."""
        number, asked = secrets.randbits(62), _Question(prefix, Future())
        self._asked[number] = asked
        self._unsent.append(number)
        return asked.answer

    def drop(self, answer: Future[Welcome]) -> None:
        """Remove a question that no longer needs an answer."""
        self._asked = {number: each for number, each in self._asked.items() if each.answer is not answer}

    def unsent(self, requests: RequestsSent) -> bytes | None:
        """Return the next question to send; None: it was dropped meanwhile. Then call `is_sent`. For the driver."""
        number = self._unsent[0]
        asked = self._asked.get(number)
        return None if asked is None else requests.hello(number, asked.prefix)

    def is_sent(self) -> None:
        """Note that the question of `unsent` was sent."""
        self._unsent.popleft()

    def repeat(self) -> None:
        """Send all questions again."""
        self._unsent = deque(self._asked)

    def answered(self, number: int) -> Future[Welcome] | None:
        """Remove a question and return its answer; None: it was dropped."""
        asked = self._asked.pop(number, None)
        return None if asked is None else asked.answer

    def close(self) -> list[Future[Welcome]]:
        """Remove all questions, and return their answers."""
        asked, self._asked = self._asked, {}
        return [each.answer for each in asked.values()]
