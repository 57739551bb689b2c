"""Sender of a client's puts: sends them to the hub in requests, and repeats each until it is answered."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Final

import zmq

from blackbox.errors import HubError, NotStoredError
from blackbox.feed.feed import Feed
from blackbox.native.system.interrupts import interrupts_held
from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import join, step_of
from blackbox.services.hub.client.hub_connection import HubConnection
from blackbox.services.hub.client.put_queue import Columns, Put, PutQueue
from blackbox.services.hub.client.requests_sent import Questions, RequestsSent
from blackbox.services.hub.protocol import Expected, Passive, Refused, Stored, Welcome, decode_answer
from blackbox.transport.wakeup import Pipe

_MOST_WAIT_S: Final = 2.0


class _Driver:
    """Which thread uses the connection: the sender's own, or that of a caller. The lock of its owner protects it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.is_there = False
        """True if some thread is the driver."""
        self.stands_in = 0
        """Identifier of a caller's thread that is the driver; 0: none."""
        self.process = 0
        """PID of the process that owns the socket; forked children must not use it. 0: not started."""
        self.sleeps = True
        """True if the driver must be woken to send something."""
        self.error: BaseException | None = None
        """Error of the driver if that was a caller's thread."""
        self.called = threading.Lock()
        """Released to make the own thread the driver."""
        self.called.acquire()

    def wake(self) -> None:
        """Let a thread send the waiting puts and questions."""
        if not self.is_there:
            self.is_there = True
            self.called.release()
        elif self.sleeps:
            self.sleeps = False
            self._pipe.poke()


class Sender:
    """Owns a client's connection, from `start` to `close`. It sends puts in their order.

    At most `most` puts, of 64 MiB in total, are unanswered; further calls wait.

    One thread at a time, the driver, uses the connection: the sender's own thread while puts are unanswered. If there
    are none, a caller that puts one message and waits for it is the driver, so that the answer wakes it directly.
    """

    def __init__(self, feed: Feed, name: str, *, synced: bool, most: int) -> None:
        self.name, self._hub = name, feed.hub
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue = PutQueue(most)
        self._questions = Questions()
        self._failure: HubError | None = None
        self._is_ended = False
        self._pipe = Pipe()
        self._driver = _Driver(self._pipe)
        self._thread = threading.Thread(target=self._run, name="blackbox-client", daemon=True)
        # For the driver only:
        self._connection = HubConnection(feed, self._pipe)
        self._requests = RequestsSent(name, feed.name, synced=synced)

    # For the client, in any thread.

    def start(self) -> None:
        """Connect, even if the hub is away. Raises EndpointError, ConfigError or LimitError."""
        with ExitStack() as stack:
            self._connection.open(stack)
            self._driver.process = os.getpid()
            self.ask()
            self._stack = stack.pop_all()
        try:
            start_thread(self._thread)
        except BaseException:
            self._stack.close()
            raise

    def put(self, put: Put, until: float) -> None:
        """Queue one message, and wait until it is answered or its time is over, if no other is unanswered.

        Raises as `put_soon`.
        """
        with self._lock:
            self._check_may_wait()
            self._add(put, until)
        self._stand_in(put, until)

    def put_soon(self, put: Put, timeout: float) -> None:
        """Queue one message. Raises NotStoredError if there is no room in time, HubError."""
        with self._lock:
            self._check()
            if not self._queue.add(put):
                self._add(put, time.monotonic() + timeout)
            self._driver.wake()

    def _add(self, put: Put, until: float) -> None:
        self._check()
        while not self._queue.add(put):
            self._wait_until_room(until)

    def put_columns(self, columns: Columns, until: float) -> None:
        """Queue the puts of a request, after earlier ones."""
        with self._lock:
            self._check_may_wait()
            while not self._queue.has_room(columns.count, len(columns.payloads)):
                self._wait_until_room(until)
            self._queue.add_columns(columns)
            self._driver.wake()

    def ask(self, prefix: bytes | None = None) -> Future[Welcome]:
        """Ask for this client's last put, and for the position of topics with a prefix."""
        with self._lock:
            self._check_may_wait()
            answer = self._questions.ask(prefix)
            self._driver.sleeps = True  # it must send the question
            self._driver.wake()
        return answer

    def ask_no_more(self, answer: Future[Welcome]) -> None:
        """Drop a question that no longer needs an answer."""
        with self._lock:
            self._questions.drop(answer)

    def flush(self, until: float) -> None:
        """Wait until the hub has answered all puts. Raises NotStoredError, HubError."""
        with self._lock:
            self._check()
            while puts := self._queue.unanswered:
                self._wait(until, f"{puts} puts")

    def close(self) -> None:
        """End; unanswered puts fail."""
        with self._lock:
            self._is_ended = self._driver.sleeps = True
            self._driver.wake()
        if self._thread.ident is not None and not self._is_driver():  # else it ends after this
            join(self._thread)

    def not_stored(self, what: str) -> NotStoredError:
        """Return the error for an answer that took too long."""
        hubs, why = " or ".join(self._connection.hubs), self._connection.why
        return NotStoredError(f"hub {hubs} did not answer in time that it has {what}{f': {why}' if why else ''}")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it keeps the frames of all earlier calls
        if self._is_ended or not self._driver.process:
            what = "closed" if self._is_ended else "not started"
            raise HubError(f"client {self.name!r} was {what}, expected an open one")

    def _check_may_wait(self) -> None:
        """Raise HubError if the caller may not wait for answers."""
        self._check()
        if self._is_driver():
            raise HubError("a callback of a put waited for an answer, which this thread receives")

    def _is_driver(self) -> bool:
        """Return True in the thread that receives the answers."""
        return threading.get_ident() in (self._thread.ident, self._driver.stands_in)

    def _wait_until_room(self, until: float) -> None:
        unanswered = self._queue.unanswered
        self._wait(until, f"the {unanswered} puts that are on their way, so that there is room for more")

    def _wait(self, until: float, what: str) -> None:
        """Wait for an answer to some put."""
        self._check_may_wait()
        self._driver.wake()  # Ctrl-C may have kept a put from doing this
        if (left := until - time.monotonic()) <= 0:
            raise self.not_stored(what)
        self._changed.wait(step_of(left))
        self._check()

    def _stand_in(self, put: Put, until: float) -> None:
        """Be the driver, if there is no other one, until a put is done, its time is over, or Ctrl-C is pressed.

        The own thread then continues if needed; an error that ends the client ends it, too.
        """
        driver, is_mine = self._driver, False
        with interrupts_held(self._pipe.poke) as interrupts:
            try:  # a signal's handler may raise anything, anywhere
                with self._lock:
                    if driver.is_there or os.getpid() != driver.process:
                        driver.wake()
                        return
                    is_mine = driver.is_there = True
                    driver.stands_in = threading.get_ident()
                while not (put.done() or interrupts or self._is_ended) and (left := until - time.monotonic()) > 0:
                    self._drive(step_of(left))
            except BaseException as error:
                if is_mine:
                    driver.error = error
                if not isinstance(error, HubError):
                    raise
            finally:
                if is_mine:
                    driver.stands_in = 0
                    if not self._rests():
                        driver.called.release()

    def _rests(self) -> bool:
        """Stop being the driver if there is nothing to do; return True if so."""
        driver = self._driver
        with self._lock:
            is_busy = self._queue.unanswered or self._questions or self._is_ended or driver.error is not None
            driver.is_there = bool(is_busy)
            return not is_busy

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
        driver = self._driver
        driver.called.acquire()
        while not self._is_ended:
            if driver.error is not None:
                raise driver.error
            if self._rests():
                driver.called.acquire()
            else:
                self._drive(_MOST_WAIT_S)

    def _fail(self, error: HubError) -> None:
        with self._lock:
            self._failure = error
            left = self._requests.close() + self._queue.close()
            questions = self._questions.close()
            self._changed.notify_all()
        for columns in left:
            columns.tell(error)
        for each in questions:
            each.set_exception(error)

    # In the driver's thread.

    def _drive(self, most_s: float) -> None:
        """Send what is ready, wait for answers, at most `most_s` seconds, and process them."""
        connection, requests, questions = self._connection, self._requests, self._questions
        self._send()
        is_waiting, wants_room = bool(requests or questions), requests.has_unsent or questions.has_unsent
        is_answered = connection.wait(most_s, is_waiting=is_waiting, wants_room=wants_room)
        while is_answered:
            self._take(connection.receive())
            is_waiting = bool(requests or questions)
            is_answered = is_waiting and connection.has_answer()
        if is_waiting and connection.must_repeat():
            requests.repeat()
            self._repeat_questions()

    def _send(self) -> None:
        """Send puts and questions, as far as the connection accepts them."""
        requests, questions, connection = self._requests, self._questions, self._connection
        while requests.has_room and (columns := self._next_columns()) is not None:
            requests.make(columns)
        with suppress(zmq.Again):
            while questions.has_unsent:
                if (text := questions.unsent(requests)) is not None:
                    connection.send(text)
                questions.is_sent()
            while requests.has_unsent:
                if (text := requests.unsent()) is not None:
                    connection.send(text)
                requests.is_sent()

    def _next_columns(self) -> Columns | None:
        with self._lock:
            columns = self._queue.take()
            self._driver.sleeps = columns is None
            return columns

    def _repeat_questions(self) -> None:
        with self._lock:
            self._questions.repeat()

    def _take(self, text: bytes) -> None:
        answer = decode_answer(self._hub, text)
        if isinstance(answer, Stored):
            self._answered(answer.first, answer)
        elif isinstance(answer, Refused):
            why = f"hub refused put {answer.first} of client {self.name!r}: {answer.why}"
            self._answered(answer.first, HubError(why))
        elif isinstance(answer, Expected):
            self._requests.resume(self._hub, answer.first)
        elif isinstance(answer, Welcome):
            self._connection.is_answered()
            self._requests.welcome(answer)
            with self._lock:
                asked = self._questions.answered(answer.number)
            if asked is not None:
                asked.set_result(answer)
        elif isinstance(answer, Passive):
            self._connection.is_passive()
        elif self._requests.replace(answer.session):
            self._repeat_questions()
        else:
            raise HubError(f"hub {self._hub} ended client {self.name!r}: {answer.why}")

    def _answered(self, first: int, result: Stored | HubError) -> None:
        if (columns := self._requests.answered(first)) is not None:
            self._connection.is_answered()
            columns.tell(result)
            with self._lock:
                self._queue.answered(columns)
                self._changed.notify_all()
