"""Sender of a client's puts: numbers them, sends them to the hub in requests, and repeats each until it is answered."""

from __future__ import annotations

import math
import os
import secrets
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy
import zmq

from blackbox.block.layout import VERSION
from blackbox.block.position import Place
from blackbox.errors import EndpointError, HubError, NotStoredError
from blackbox.feed.feed import Feed
from blackbox.hub.condition_columns import error_of
from blackbox.hub.protocol import (
    ANYWHERE,
    CONDITION,
    ENCODER,
    FIRST,
    MOST_BYTES,
    MOST_PUTS,
    Expected,
    Hello,
    Passive,
    Put,
    Refused,
    Stored,
    Welcome,
    decode_answer,
    offsets_of_one,
    unpack_places,
)
from blackbox.native.interrupts import interrupts_held
from blackbox.native.limits import Needs, start_thread
from blackbox.native.waits import join, step_of
from blackbox.transport.connections import Connections, Failure
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.curve import keys_of_hub, refusal_of, use_keys
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.server_thread import receive
from blackbox.transport.wakeup import Pipe

_QUEUE_REQUESTS: Final = 64
_AGAIN_S: Final = 0.5
_MOST_AGAIN_S: Final = 2.0
"""Delay before unanswered requests are sent again: the first, doubled each time up to the second."""
_PASSIVE_S: Final = 0.1
"""Delay before the other hub is asked, after one has answered that it is passive."""
_MOST_REQUESTS: Final = 8
"""Maximum unanswered requests; further puts share the next one."""
_NEEDS: Final = Needs(descriptors=9)
_POLLIN: Final = int(zmq.POLLIN)
_NUMBER: Final = struct.Struct("<q")


class Columns(msgspec.Struct, frozen=True):
    """Puts that share a request, and a callback for the answer."""

    topics: list[bytes]
    index: bytes
    offsets: bytes
    payloads: bytes
    times: bytes
    valid: bytes
    ids: list[bytes]
    count: int
    tell: Callable[[Stored | HubError], None]
    if_at: bytes = b""
    ttl: bytes = b""


class _Single(NamedTuple):
    """One put."""

    topic: bytes
    payload: bytes | None
    time_ns: int
    id: bytes
    if_at: Place | None
    ttl_ns: int
    future: Future[Place]


class _Question(NamedTuple):
    """A question to the hub."""

    prefix: bytes | None
    answer: Future[Welcome]


class _Sent(NamedTuple):
    """A request that the hub has not answered."""

    columns: Columns
    text: bytes


class Sender:
    """Owns a client's socket, from `start` to `close`. It sends puts in their order.

    At most `most` puts, of 64 MiB in total, are unanswered; further calls wait.

    One thread at a time, the driver, uses the socket: the sender's own thread while puts are unanswered. If there are
    none, a caller that puts one message and waits for it is the driver, so that the answer wakes it directly.
    """

    def __init__(self, feed: Feed, name: str, *, synced: bool, most: int) -> None:
        self.name, self._feed, self._synced, self._most = name, feed, synced, most
        self._changed = threading.Condition()
        self._singles: list[_Single] = []
        self._columns: deque[Columns] = deque()
        """Puts to send, before singles: these become columns when columns follow them."""
        self._puts = self._bytes = 0
        """Unanswered puts, and bytes of their payloads."""
        self._asked: dict[int, _Question] = {}
        self._unsaid: deque[int] = deque()
        """Numbers of questions to send."""
        self._has_driver = False
        """True if a thread uses the socket and the fields of the driver."""
        self._stands_in = 0
        """Identifier of a caller's thread that is the driver; 0: none."""
        self._process = 0
        """PID of the process that owns the socket; forked children must not use it."""
        self._sleeps = True
        """True if the driver must be woken to send something."""
        self._called = threading.Lock()
        """Released to make the own thread the driver."""
        self._called.acquire()
        self._error: BaseException | None = None
        """Error of the driver if that was a caller's thread."""
        self._failure: HubError | None = None
        self._is_ended = False
        self._pipe = Pipe()
        self._thread = threading.Thread(target=self._run, name="blackbox-client", daemon=True)
        self.why = ""
        """Reason why the hub refuses the connection, if it is known."""
        # Fields of the driver:
        self._session, self._replaces = secrets.randbits(62), 0
        self._next = 0
        """Number of the next put; 0: not known from the hub yet."""
        self._sent: dict[int, _Sent] = {}
        """Unanswered requests by number of their first put."""
        self._unsent: deque[int] = deque()
        self._hubs = tuple(filter(None, (feed.hub, feed.hub_backup)))
        self._hub = 0
        """Index of the hub that it is connected to."""
        self._again_at, self._again_s = 0.0, _AGAIN_S
        self._expected = 0

    # For the client, in any thread.

    def start(self) -> None:
        """Connect, even if the hub is away. Raises EndpointError, ConfigError or LimitError."""
        with ExitStack() as stack:
            context = stack.enter_context(new_context("hub client", _NEEDS))
            socket = stack.enter_context(context.socket(zmq.DEALER))
            socket.linger, socket.sndhwm = 0, _QUEUE_REQUESTS
            socket.setsockopt(zmq.IMMEDIATE, 1)  # messages for a hub that is away wait only here
            for hub in self._hubs:
                allow_ipv6(socket, hub)
            keep_alive(socket)
            self._poller, self._wants_room = zmq.Poller(), False
            for source in (self._pipe.reader, socket):
                self._poller.register(source, zmq.POLLIN)
            self._connections = Connections(socket)
            stack.callback(self._connections.close)
            self._socket = socket
            self._connect()
            self.ask()
            self._stack = stack.pop_all()
        self._process = os.getpid()
        try:
            start_thread(self._thread)
        except BaseException:
            self._stack.close()
            raise

    def put(
        self,
        topic: bytes,
        payload: bytes | None,
        time_ns: int,
        put_id: bytes,
        until: float,
        if_at: Place | None,
        ttl_ns: int,
        *,
        waits: bool,
    ) -> Future[Place]:
        """Queue one message. `waits`: wait until it is answered or its time is over, if no other is unanswered.

        Raises NotStoredError if there is no room in time, HubError.
        """
        single = _Single(topic, payload, time_ns, put_id, if_at, ttl_ns, Future())
        single.future.set_running_or_notify_cancel()  # it cannot be cancelled
        with self._changed:
            self._take_room(1, len(payload or b""), until)
            self._singles.append(single)
            if not waits:
                self._wake()
        if waits:
            self._stand_in(single.future, until)
        return single.future

    def put_columns(self, columns: Columns, until: float) -> None:
        """Queue the puts of a request, after earlier ones."""
        with self._changed:
            self._take_room(columns.count, len(columns.payloads), until)
            self._gather()
            self._columns.append(columns)
            self._wake()

    def ask(self, prefix: bytes | None = None) -> Future[Welcome]:
        """Ask for this client's last put, and for the position of topics with a prefix."""
        asked = _Question(prefix, Future())
        with self._changed:
            self._check()
            number = secrets.randbits(62)
            self._asked[number] = asked
            self._unsaid.append(number)
            self._sleeps = True  # the driver must send the question
            self._wake()
        return asked.answer

    def ask_no_more(self, answer: Future[Welcome]) -> None:
        """Drop a question that no longer needs an answer."""
        with self._changed:
            self._asked = {number: each for number, each in self._asked.items() if each.answer is not answer}

    def flush(self, until: float) -> None:
        """Wait until the hub has answered all puts. Raises NotStoredError, HubError."""
        with self._changed:
            self._check()
            if self._puts:
                self._wake()  # Ctrl-C may have kept a put from doing this
            while self._puts:
                self._wait(until, f"{self._puts} puts")
                self._check()

    def close(self) -> None:
        """End; unanswered puts fail."""
        with self._changed:
            self._is_ended = self._sleeps = True
            self._wake()
        if self._thread.ident is not None and self._stands_in != threading.get_ident():  # else it ends after its put
            join(self._thread)

    def not_stored(self, what: str) -> NotStoredError:
        """Return the error for an answer that took too long."""
        why = f": {self.why}" if self.why else ""
        return NotStoredError(f"hub {' or '.join(self._hubs)} did not answer in time that it has {what}{why}")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_ended:
            raise HubError(f"client {self.name!r} was closed, expected an open one")

    def _take_room(self, count: int, size: int, until: float) -> None:
        self._check()
        while self._puts and (self._puts + count > self._most or self._bytes + size > _QUEUE_REQUESTS * MOST_BYTES):
            self._wake()  # Ctrl-C may have kept a put from doing this
            self._wait(until, f"the {self._puts} puts that are on their way, so that there is room for more")
            self._check()
        self._puts += count
        self._bytes += size

    def _wait(self, until: float, what: str) -> None:
        if (left := until - time.monotonic()) <= 0:
            raise self.not_stored(what)
        self._changed.wait(step_of(left))

    def _wake(self) -> None:
        if not self._has_driver:
            self._has_driver = True
            self._called.release()
        elif self._sleeps:
            self._sleeps = False
            self._pipe.poke()

    def _gather(self) -> None:
        """Pack single puts into columns that fit a request."""
        singles, self._singles = self._singles, []
        begin = size = 0
        for at, single in enumerate(singles):
            size += len(single.payload or b"")
            if at - begin == MOST_PUTS or (size > MOST_BYTES and at > begin):
                self._columns.append(_columns_of(singles[begin:at]))
                begin, size = at, len(single.payload or b"")
        if begin < len(singles):
            self._columns.append(_columns_of(singles[begin:]))

    def _stand_in(self, put: Future[Place], until: float) -> None:
        """Be the driver, if there is no other one, until a put is done, its time is over, or Ctrl-C is pressed.

        The own thread then continues if needed; an error that ends the client ends it, too.
        """
        with interrupts_held(self._pipe.poke) as interrupts:
            is_mine = False
            try:  # a signal's handler may raise anything, anywhere
                with self._changed:
                    if self._has_driver or os.getpid() != self._process:
                        self._wake()
                        return
                    is_mine = self._has_driver = True
                    self._stands_in = threading.get_ident()
                while not (put.done() or interrupts or self._is_ended) and (left := until - time.monotonic()) > 0:
                    self._drive(step_of(left))
            except BaseException as error:
                if is_mine:
                    self._error = error
                if not isinstance(error, HubError):
                    raise
            finally:
                if is_mine:
                    self._stands_in = 0
                    if not self._rests():
                        self._called.release()

    def _rests(self) -> bool:
        """Stop being the driver if there is nothing to do; return True if so."""
        with self._changed:
            self._has_driver = bool(self._puts or self._asked or self._is_ended or self._error is not None)
            return not self._has_driver

    # In its thread.

    def _run(self) -> None:
        with self._stack:
            try:
                self._work()
                self._fail(HubError(f"client {self.name!r} was closed before the hub had answered"))
            except HubError as error:
                self._fail(error)
            except BaseException as error:  # noqa: BLE001 - any error must reach the waiting threads
                self._fail(HubError(f"client {self.name!r} failed: {error!r}"))

    def _work(self) -> None:
        self._called.acquire()
        while not self._is_ended:
            if self._error is not None:
                raise self._error
            if self._rests():
                self._called.acquire()
            else:
                self._drive(_MOST_AGAIN_S)

    # In the driver's thread.

    def _drive(self, most_s: float) -> None:
        """Send what is ready, wait for answers, at most `most_s` seconds, and process them."""
        self._send()
        if self._wants_room != (wanted := bool(self._unsent or self._unsaid)):
            self._wants_room = wanted
            self._poller.register(self._socket, zmq.POLLIN | zmq.POLLOUT if wanted else zmq.POLLIN)
        is_waiting = self._sent or self._asked
        left_s = max(0.0, min(most_s, self._again_at - time.monotonic())) if is_waiting else most_s
        ready = dict(self._poller.poll(math.ceil(1e3 * left_s)))
        if self._pipe.reader in ready:
            with suppress(BlockingIOError):
                os.read(self._pipe.reader, 4096)
        is_answered = ready.get(self._socket, 0) & _POLLIN
        while is_answered:
            self._take(receive(self._socket, zmq.NOBLOCK)[0].bytes)
            is_waiting = self._sent or self._asked
            is_answered = int(self._socket.get(zmq.EVENTS)) & _POLLIN if is_waiting else 0
        if is_waiting and time.monotonic() >= self._again_at:
            self._send_again()

    def _send(self) -> None:
        """Number and send puts, and send questions, as far as the connection accepts them."""
        while self._next and len(self._sent) < _MOST_REQUESTS and (columns := self._next_columns()) is not None:
            put = Put(
                self.name,
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
            )
            self._sent[self._next] = _Sent(columns, ENCODER.encode(put))
            self._unsent.append(self._next)
            self._next += columns.count
        with suppress(zmq.Again):
            while self._unsaid:
                if (asked := self._asked.get(self._unsaid[0])) is not None:
                    number = self._unsaid[0]
                    feed = self._feed.name
                    hello = Hello(self.name, self._session, feed, number, asked.prefix, VERSION, self._replaces)
                    self._send_one(ENCODER.encode(hello))
                self._unsaid.popleft()
            while self._unsent:
                if (sent := self._sent.get(self._unsent[0])) is not None:
                    self._send_one(sent.text)
                self._unsent.popleft()

    def _send_one(self, text: bytes) -> None:
        self._socket.send(text, zmq.NOBLOCK)
        self._again_at = time.monotonic() + self._again_s

    def _next_columns(self) -> Columns | None:
        with self._changed:
            if not self._columns:
                self._gather()
            self._sleeps = not self._columns
            return self._columns.popleft() if self._columns else None

    def _connect(self) -> None:
        endpoint = self._hubs[self._hub]
        self._keys = keys_of_hub(self._feed, self._hub, endpoint)
        use_keys(self._socket, self._keys)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise EndpointError(error.errno, f"cannot connect to hub {endpoint}: {error.strerror}") from error

    def _send_again(self) -> None:
        if len(self._hubs) > 1:  # the other hub may be active by now
            self._socket.disconnect(self._hubs[self._hub])
            self._hub = 1 - self._hub
            self._connect()
        else:
            self._again_s = min(2 * self._again_s, _MOST_AGAIN_S)
        self._again_at = time.monotonic() + self._again_s
        self._expected = 0
        self._unsent = deque(self._sent)
        with self._changed:
            self._unsaid = deque(self._asked)
        self._connections.look()
        self.why = refusal_of(self._connections.failures.keys() - {Failure.LEFT}, self._keys)

    def _take(self, text: bytes) -> None:
        answer = decode_answer(self._feed.hub, text)
        if isinstance(answer, Stored):
            self._answered(answer.first, answer)
        elif isinstance(answer, Refused):
            self._answered(
                answer.first, HubError(f"hub refused put {answer.first} of client {self.name!r}: {answer.why}")
            )
        elif isinstance(answer, Expected):
            self._resume(answer.first)
        elif isinstance(answer, Welcome):
            self._next = self._next or answer.last + 1
            with self._changed:
                asked = self._asked.pop(answer.number, None)
            if asked is not None:
                asked.answer.set_result(answer)
        elif isinstance(answer, Passive):
            self._again_at = min(self._again_at, time.monotonic() + _PASSIVE_S)
        elif answer.session is not None and not self._next:
            self._replaces = answer.session
            with self._changed:
                self._unsaid = deque(self._asked)
        else:
            raise HubError(f"hub {self._feed.hub} ended client {self.name!r}: {answer.why}")

    def _answered(self, first: int, result: Stored | HubError) -> None:
        if (sent := self._sent.pop(first, None)) is not None:
            self._again_s, self._expected = _AGAIN_S, 0
            self._again_at = time.monotonic() + _AGAIN_S
            sent.columns.tell(result)
            self._give_room(sent.columns)

    def _resume(self, expected: int) -> None:
        """Send requests again from the one that the hub expects, once."""
        if expected == self._expected or not self._sent:
            return
        if expected not in self._sent:
            raise HubError(
                f"hub {self._feed.hub} expected put {expected} of client {self.name!r}, which it had answered before: "
                f"the next one is {next(iter(self._sent))}"
            )
        self._expected = expected
        self._unsent = deque(self._sent)

    def _give_room(self, columns: Columns) -> None:
        with self._changed:
            self._puts -= columns.count
            self._bytes -= len(columns.payloads)
            self._changed.notify_all()

    def _fail(self, error: HubError) -> None:
        with self._changed:
            self._failure = error
            self._gather()
            left = [*(sent.columns for sent in self._sent.values()), *self._columns]
            asked, self._asked = list(self._asked.values()), {}
            self._puts = 0
            self._changed.notify_all()
        for columns in left:
            columns.tell(error)
        for each in asked:
            each.answer.set_exception(error)


def _columns_of(singles: list[_Single]) -> Columns:
    if len(singles) == 1:
        return _columns_of_one(singles)
    numbers: dict[bytes, int] = {}
    index = [numbers.setdefault(each.topic, len(numbers)) for each in singles]
    payloads = [each.payload or b"" for each in singles]
    offsets = numpy.zeros(len(singles) + 1, numpy.int64)
    numpy.cumsum([*map(len, payloads)], out=offsets[1:])
    times = [each.time_ns for each in singles]
    ids = [each.id for each in singles]
    is_null = any(each.payload is None for each in singles)
    ttl = [each.ttl_ns for each in singles]
    if_at = [ANYWHERE if each.if_at is None else each.if_at[1:] for each in singles]

    return Columns(
        list(numbers),
        numpy.array(index, numpy.int32).tobytes(),
        offsets.tobytes(),
        b"".join(payloads),
        numpy.array(times, numpy.int64).tobytes() if any(times) else b"",
        bytes(each.payload is not None for each in singles) if is_null else b"",
        ids if any(ids) else [],
        len(singles),
        partial(_tell, singles),
        numpy.array(if_at, CONDITION).tobytes() if any(each is not ANYWHERE for each in if_at) else b"",
        numpy.array(ttl, numpy.int64).tobytes() if any(ttl) else b"",
    )


def _columns_of_one(singles: list[_Single]) -> Columns:
    ((topic, payload, time_ns, put_id, if_at, ttl_ns, _),) = singles
    data = payload or b""
    return Columns(
        [topic],
        FIRST,
        offsets_of_one(len(data)),
        data,
        _NUMBER.pack(time_ns) if time_ns else b"",
        b"\0" if payload is None else b"",
        [put_id] if put_id else [],
        1,
        partial(_tell, singles),
        b"" if if_at is None else _NUMBER.pack(if_at.epoch) + _NUMBER.pack(if_at.sequence),
        _NUMBER.pack(ttl_ns) if ttl_ns else b"",
    )


def _tell(singles: list[_Single], result: Stored | HubError) -> None:
    if isinstance(result, HubError):
        for each in singles:
            each.future.set_exception(result)
        return
    why = result.why.split("\n")
    for each, place in zip(singles, unpack_places(result.places).tolist(), strict=True):
        slice_id, _, is_refused, epoch, sequence = place
        if is_refused:
            each.future.set_exception(error_of(each.topic, each.if_at, place, why))
        else:
            each.future.set_result(Place(slice_id, epoch, sequence))
