"""The slice thread: owns the SUB and ROUTER sockets of one slice, runs the compiled loop, answers what needs Python."""

from __future__ import annotations

import logging
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import string_at
from typing import TYPE_CHECKING

import msgspec
import numpy
import zmq
from numpy.typing import NDArray

from blackbox import slice_memory as memory
from blackbox.callbacks import Callback
from blackbox.check import read_header
from blackbox.conflate import Conflation
from blackbox.contexts import MAX_SUBSCRIPTIONS, close_context, open_context, pin_thread
from blackbox.counters import WorkerCount
from blackbox.errors import BlackBoxError, CallbackError, EndpointError, SubscriberError
from blackbox.feed import Feed
from blackbox.guards import HELD_BLOCKS, NEW, STALE, Sequences, enter_epoch, forget_uncovered, note_sequences
from blackbox.layout import (
    ACCEPT_KEY,
    CONFIRM_KEY,
    FLAG_END,
    FLAG_LINE_B,
    HEADER_BYTES,
    HEARTBEAT_KEY,
    MAX_BODY_BYTES,
    NONCE_BYTES,
)
from blackbox.memory import shared_array
from blackbox.pipe import Pipe
from blackbox.sink import NO_SINK, SinkAt
from blackbox.slice_loop import deliver_held_first, finish, renumber, run_slice
from blackbox.slice_memory import SliceAt
from blackbox.statistics import SliceCounters
from blackbox.tables import Table, WorkerTable
from blackbox.topics import Numbering
from blackbox.warmup import warm_up
from blackbox.worker import Worker
from blackbox.zmqlib import close_messages, init_messages, message_bytes

if TYPE_CHECKING:
    from blackbox.schema import Schema

log = logging.getLogger("blackbox")

POLICIES = {
    "terminate": memory.POLICY_TERMINATE,
    "conflate": memory.POLICY_CONFLATE,
    "drop": memory.POLICY_DROP,
    "warn": memory.POLICY_WARN,
}
_PATIENT_BEATS = 3
"""Heartbeats of an unconfirmed line after which a confirmation is asked for again."""
_ROUTER_WAIT_MS = 20
_WORKER_START_S = 120.0
_MEAN_TOPIC_BYTES = 32
_KEPT_TABLES = 64
_DEAD_AFTER_HEARTBEATS = 3
_ERROR_TEXT_BYTES = 16_384
_RELEASE_TICK_S = 0.001


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a subscriber behaves; the same for each of its slices. The cards are in `Subscriber`."""

    workers: int
    max_lag_ns: int
    on_slow: str
    queue_blocks: int
    hwm_blocks: int
    on_error: str
    line_wait_ns: int
    grace_ns: int


class SliceThread:
    """One slice of a subscriber: its sockets, sequence guards, topic numbers and workers.

    Life: NEW, `start`, RUNNING, `ask_to_stop` (finishes what was received) or `ask_to_terminate`, DONE. What the owner
    may ask and read lives in shared memory: the thread may run in a process that was forked after this was made.

    `news` is poked whenever there is some for the owner. With a `sink` there are no workers: it gets every block.
    """

    def __init__(
        self,
        feed: Feed,
        slice_id: int,
        options: Options,
        schema: Schema,
        counters: SliceCounters,
        table: Table,
        news: Pipe,
        sink: SinkAt = NO_SINK,
    ) -> None:
        self.feed, self.slice_id, self.options = feed, slice_id, options
        self.part = feed.slices[slice_id]
        self.counters = counters
        self.words: NDArray[numpy.int64] = shared_array((memory.WORDS_SHARED,), numpy.int64)
        self.topics = Numbering(feed.max_topics, _MEAN_TOPIC_BYTES, shared_array)
        self.error: BlackBoxError | None = None
        self._error_text: NDArray[numpy.uint8] = shared_array((_ERROR_TEXT_BYTES,), numpy.uint8)
        self._schema = schema
        self._news = news
        self._sink = sink
        self._table = table
        self._tables: dict[int, Table] = {table.version: table}
        self._commands: deque[Callable[[], None]] = deque()
        self._asked_upstream: frozenset[bytes] = frozenset()
        self._nonce = b""
        self._accepted: list[bytes] = []
        self._confirmed = 0
        self._epoch_of_line: dict[int, int] = {}
        self._silent: set[int] = set()
        self._beats_without_answer = 0
        self._newest = table.version
        try:
            self._wake_pipe = Pipe()
        except OSError as error:
            raise SubscriberError(f"no pipe could be opened for slice {slice_id}: {error.strerror}") from error
        lines = len(self.part.endpoints)
        self._sequences = Sequences(
            feed.max_topics if feed.key_bytes else 1,
            lines,
            options.line_wait_ns,
            _DEAD_AFTER_HEARTBEATS * feed.heartbeat_ns,
            counters.counts,
        )
        self._conflation = Conflation(feed.max_topics) if options.on_slow == "conflate" else None
        self._set_of_topic = numpy.zeros(feed.max_topics, numpy.int32)
        self._held = numpy.zeros((HELD_BLOCKS + 1) * memory.HELD_MESSAGE_BYTES // 8, numpy.int64)
        self._scratch = numpy.zeros(memory.SCRATCH_WORDS, numpy.int64)
        self.workers: list[Worker] = []
        self._thread = threading.Thread(target=self._run, name=f"blackbox-slice-{slice_id}", daemon=True)

    def start(self) -> None:
        """Begin. What goes wrong is in `failure` once it is done."""
        self._thread.start()

    @property
    def is_confirmed(self) -> bool:
        """Whether every line's publisher has confirmed the filters of the newest table."""
        return self.confirmed_lines == len(self.part.endpoints)

    @property
    def confirmed_lines(self) -> int:
        """How many lines' publishers have confirmed the filters of the newest table."""
        current = self.words[memory.CONFIRMED_VERSION] == self._newest
        return int(self.words[memory.CONFIRMED_LINES]).bit_count() if current else 0

    @property
    def is_finished(self) -> bool:
        """Whether every line's publisher has said that it ends, or has died where the other has said so."""
        finished = int(self.words[memory.FINISHED_LINES])
        now_ns = time.time_ns()
        lines = range(len(self.part.endpoints))
        return bool(finished) and all(finished >> n & 1 or self._sequences.is_dead(n, now_ns) for n in lines)

    @property
    def is_ready(self) -> bool:
        """Whether everything is compiled and connected."""
        return bool(self.words[memory.READY])

    @property
    def is_done(self) -> bool:
        """Whether the thread and its workers have ended."""
        return bool(self.words[memory.DONE])

    def failure(self) -> BlackBoxError | None:
        """What went wrong, if anything; from another process, as text."""
        text = self._error_text.tobytes().rstrip(b"\0").decode(errors="replace")
        return self.error or (SubscriberError(text) if text else None)

    def set_table(self, table: Table) -> None:
        """Put a new version in force, filters and all; it is then confirmed anew."""
        self._newest = table.version
        self._commands.append(lambda: self._switch(table))
        self.words[memory.ASKED] = 1
        self._wake()

    def remove(self, callback: Callback) -> None:
        """Let no further batch reach a callback."""
        for table in list(self._tables.values()):
            for worker in table.workers:
                worker.remove(callback)

    def ask_to_stop(self) -> None:
        """Finish what was received, then end."""
        if self.words[memory.STOPPING] == 0:
            self.words[memory.DRAIN_LEFT] = len(self.part.endpoints) * (self.options.hwm_blocks + 1)
            self.words[memory.STOPPING] = memory.STOP
        self._wake()

    def ask_to_terminate(self) -> None:
        """End now; what is queued is lost."""
        self.words[memory.STOPPING] = memory.TERMINATE
        self._wake()

    def release(self, timeout: float) -> bool:
        """Wait for the workers to end, then let a slice thread that decided to die end without killing the process."""
        deadline = time.monotonic() + timeout
        for worker in tuple(self.workers):
            worker.thread.join(max(0.0, deadline - time.monotonic()))
            if worker.thread.is_alive():
                return False
        self.words[memory.RELEASED] = 1
        self._wake()
        # In a process that was forked after the thread was made, Python takes it for one that has ended.
        while not self.is_done and time.monotonic() < deadline:
            time.sleep(_RELEASE_TICK_S)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.is_done

    def report(self, failure: BlackBoxError) -> None:
        """Keep the first thing that went wrong."""
        if self.error is None:
            self.error = failure
            text = "".join(traceback.format_exception(failure)).encode()[-_ERROR_TEXT_BYTES:]
            self._error_text[: len(text)] = numpy.frombuffer(text, numpy.uint8)
        self._notify()

    def _callback_raised(self, failure: CallbackError) -> bool:
        """Whether to go on after a callback raised."""
        if self.options.on_error == "log":
            log.error("%s", failure, exc_info=failure.__cause__ or failure)
            return True
        self.report(failure)
        return False

    def _notify(self) -> None:
        self._news.poke()

    def _wake(self) -> None:
        self._wake_pipe.poke()

    def take_trouble(self) -> int:
        """The worst lag, ns, since this was last asked, if the slow-subscriber policy had a say; else 0."""
        if not self.words[memory.TROUBLE]:
            return 0
        lag = int(self.words[memory.TROUBLE_LAG])
        self.words[memory.TROUBLE_LAG] = 0
        self.words[memory.TROUBLE] = 0
        return lag

    # What follows runs in the slice thread.

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] | None = None
        sockets: list[zmq.Socket[bytes]] = []
        try:
            context = open_context(self.part)
            pin_thread(self.part.cpus)
            self._open(context, sockets)
            self._serve()
        except BlackBoxError as error:
            self.report(error)
        except Exception as error:  # whatever ends this thread must reach run()
            log.exception("slice %d: slice thread failed", self.slice_id)
            failure = SubscriberError(f"slice {self.slice_id}: slice thread failed: {error}")
            failure.__cause__ = error
            self.report(failure)
        finally:
            self._close(context, sockets)

    def _open(self, context: zmq.Context[zmq.Socket[bytes]], sockets: list[zmq.Socket[bytes]]) -> None:
        endpoint = f"inproc://blackbox-slice-{id(self)}"
        router = context.socket(zmq.ROUTER)
        sockets.append(router)
        router.router_mandatory = True
        router.sndhwm = 1  # the rest of the queue is the worker's
        router.sndtimeo = _ROUTER_WAIT_MS
        router.linger = 0
        router.bind(endpoint)
        for number in range(self.options.workers):
            worker = Worker(
                number,
                self.slice_id,
                endpoint,
                context,
                self.words,
                self.counters,
                self._table.workers[number],
                self._worker_table(number),
                self._schema,
                self.options.queue_blocks,
                self.part.cpus,
                self.report,
                self._callback_raised,
            )
            worker.thread.start()
            self.workers.append(worker)  # those in the list can be joined
        self._await_workers(router)
        self._router = router
        sub = context.socket(zmq.SUB)
        sockets.append(sub)
        sub.rcvhwm = self.options.hwm_blocks
        sub.sndhwm = MAX_SUBSCRIPTIONS
        sub.maxmsgsize = MAX_BODY_BYTES
        sub.linger = 0
        sub.reconnect_ivl = 50
        sub.reconnect_ivl_max = 1000
        sub.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._at = self._addresses(sub, router)
        warm_up(run_slice, self._at, self._table.at, self._table.topics, self._table.keys)
        warm_up(finish, self._at, self._table.at, self._table.topics)
        for line_endpoint in self.part.endpoints:
            self._connect(sub, line_endpoint)
        self._sub = sub
        init_messages(self._scratch.ctypes.data + memory.KEY_AT, memory.MESSAGES)
        sub.subscribe(HEARTBEAT_KEY)
        self._switch(self._table)
        self.words[memory.READY] = 1

    def _await_workers(self, router: zmq.Socket[bytes]) -> None:
        """Wait until every worker can be reached; raises what went wrong in one."""
        deadline = time.monotonic() + _WORKER_START_S
        for _ in self.workers:
            while not router.poll(_ROUTER_WAIT_MS):
                if self.error is not None:
                    raise self.error
                if time.monotonic() > deadline:
                    raise SubscriberError(f"slice {self.slice_id}: a worker did not start in {_WORKER_START_S} s")
            router.recv_multipart()

    def _address(self, endpoint: str) -> str:
        if not self.part.interface:
            return endpoint
        host = f"[{self.part.interface}]" if ":" in self.part.interface else self.part.interface
        return endpoint.replace("tcp://", f"tcp://{host}:0;")

    def _connect(self, sub: zmq.Socket[bytes], endpoint: str) -> None:
        address = self._address(endpoint)
        try:
            sub.connect(address)
        except zmq.ZMQError as error:
            raise EndpointError(
                error.errno,
                f"feed {self.feed.name!r} slice {self.slice_id}: cannot connect to {address}: {error.strerror}",
            ) from error

    def _addresses(self, sub: zmq.Socket[bytes], router: zmq.Socket[bytes]) -> SliceAt:
        return SliceAt(
            sub.underlying,
            router.underlying,
            self._wake_pipe.reader,
            self._news.writer,
            self.words.ctypes.data,
            self._scratch.ctypes.data,
            self.counters.counts.ctypes.data,
            self.counters.workers.ctypes.data,
            self.options.workers,
            self.topics.at,
            self._set_of_topic.ctypes.data,
            self._sequences.at,
            self._held.ctypes.data,
            self.slice_id,
            POLICIES[self.options.on_slow],
            self.options.queue_blocks,
            self._conflation.at if self._conflation else None,
            self.options.max_lag_ns,
            self.options.grace_ns,
            self._sink,
        )

    def _worker_table(self, number: int) -> Callable[[int], WorkerTable]:
        return lambda version: self._tables[version].workers[number]

    def _serve(self) -> None:
        while True:
            reason = run_slice(self._at, self._table.at, self._table.topics, self._table.keys)
            if reason == memory.CONTROL:
                reason = self._read_control()
            if reason == 0:
                continue
            if reason == memory.COMMAND:
                self.words[memory.ASKED] = 0
                while self._commands:
                    self._commands.popleft()()
                if time.time_ns() > self.words[memory.LOOK_AGAIN_AT]:
                    self._reconnect_silent_lines()
            elif reason == memory.FAILED and self.error is None:
                raise SubscriberError(
                    f"slice {self.slice_id}: libzmq failed: {zmq.strerror(int(self.words[memory.ERRNO]))}"
                )
            elif reason == memory.DRAINED:
                self._end_workers()
                return
            else:
                return

    def _switch(self, table: Table) -> None:
        for prefix in table.upstream - self._asked_upstream:
            self._sub.subscribe(prefix)
        for prefix in self._asked_upstream - table.upstream:
            self._sub.unsubscribe(prefix)
        self._asked_upstream = table.upstream
        self._table = self._tables[table.version] = table
        renumber(self._at, table.topics)
        forget_uncovered(self._sequences.at, table.keys)
        in_use = [
            worker.table_version
            for worker, counts in zip(self.workers, self.counters.workers, strict=True)
            if counts[WorkerCount.SENT] != counts[WorkerCount.BLOCKS]
        ]
        for version in sorted(self._tables)[:-_KEPT_TABLES]:
            if version < min(in_use, default=table.version):
                del self._tables[version]
        self.words[memory.SUBSCRIPTIONS] = len(table.upstream)
        self._ask_to_confirm()

    def _reconnect_silent_lines(self) -> None:
        """Connect anew where nothing has come for some heartbeats and nothing is queued.

        libzmq does so by itself, except after what it takes for an attack: a frame above `maxmsgsize`, say.
        """
        now_ns = time.time_ns()
        self.words[memory.LOOK_AGAIN_AT] = now_ns + self._sequences.line_dead_ns
        if int(self._sub.get(zmq.EVENTS)) & zmq.POLLIN:
            return
        for line in self._epoch_of_line:
            if not self._sequences.is_dead(line, now_ns):
                self._silent.discard(line)
                continue
            address = self._address(self.part.endpoints[line])
            finished = bool(self.words[memory.FINISHED_LINES] >> line & 1)
            if not finished and line not in self._silent:
                log.warning("slice %d: the publisher at %s fell silent without an end", self.slice_id, address)
                self._silent.add(line)
            # Inproc never connects again by itself, and its connection goes with the publisher.
            if not finished or address.startswith("inproc:"):
                with suppress(zmq.ZMQError):
                    self._sub.disconnect(address)
                self._sub.connect(address)

    def _ask_to_confirm(self) -> None:
        """Subscribe to a fresh nonce: a publisher that answers has all filters set before it in force."""
        if self._nonce:
            self._sub.unsubscribe(CONFIRM_KEY + self._nonce)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._beats_without_answer = 0
        self._confirmed = 0
        self._sequences.set_told(False)
        self.words[memory.CONFIRMED_LINES] = 0
        self.words[memory.CONFIRMED_VERSION] = self._table.version
        self._sub.subscribe(CONFIRM_KEY + self._nonce)

    def _accept(self, epoch: int, line: int) -> None:
        """Tell a publisher that its answer came: from now on it counts this subscriber, and stays for it at its end."""
        accepted = ACCEPT_KEY + self._nonce + _of_line(epoch, line)
        self._sub.subscribe(accepted)
        self._accepted.append(accepted)
        self._withdraw(bytes([line]), accepted)  # also of a publisher that was killed

    def _withdraw(self, of_line: bytes, but: bytes = b"") -> None:
        for accepted in [a for a in self._accepted if a.endswith(of_line) and a != but]:
            self._accepted.remove(accepted)
            self._sub.unsubscribe(accepted)

    def _read_control(self) -> int:
        """Take in a confirmation, or a heartbeat that begins or ends something; why to end, or 0."""
        scratch = self._scratch.ctypes.data
        key = string_at(*message_bytes(scratch + memory.KEY_AT))
        ours = key == CONFIRM_KEY + self._nonce
        if key != HEARTBEAT_KEY and not ours:
            return 0
        header = read_header(scratch + memory.HEAD_AT)
        line = 1 if header.flags & FLAG_LINE_B and len(self.part.endpoints) > 1 else 0
        epoch = int(numpy.uint64(header.epoch).astype(numpy.int64))
        now_ns = time.time_ns()
        entered = enter_epoch(self._sequences.at, epoch, line, now_ns)
        if entered == STALE:
            return 0
        if entered == NEW:
            log.info("slice %d: publisher epoch %016x began", self.slice_id, header.epoch)
            result = self._deliver_held(force=1)
            if result:
                return result
        reconnected = ours and (self._confirmed >> line & 1 or self._epoch_of_line.get(line, epoch) != epoch)
        fresh = int(self._epoch_of_line.get(line) != epoch)
        self._epoch_of_line[line] = epoch
        body = message_bytes(scratch + memory.BODY_AT)[0]
        baseline = int(ours and not reconnected)
        note_sequences(
            self._sequences.at, self._table.keys, scratch + memory.HEAD_AT, body, line, epoch, baseline, now_ns
        )
        result = self._deliver_held(force=0)
        if reconnected:
            # libzmq sends filters again in an order of its own, the nonce first: this answer proves nothing.
            self._ask_to_confirm()
        elif ours:
            self._confirmed |= 1 << line
            self._sequences.set_told(True)
            self._accept(epoch, line)
            self.words[memory.CONFIRMED_LINES] = self._confirmed
            self._notify()
        elif not self._confirmed >> line & 1:
            # A full queue at the publisher may have passed over the answer: libzmq does so without a word.
            self._beats_without_answer += 1
            if self._beats_without_answer >= _PATIENT_BEATS:
                self._ask_to_confirm()
        ended = 1 if header.flags & FLAG_END else 0
        # An end is final: an answer that was on its way may still come behind it.
        self.words[memory.FINISHED_LINES] = self.words[memory.FINISHED_LINES] & ~(fresh << line) | ended << line
        if ended:
            self._withdraw(_of_line(epoch, line))
            self._notify()
        return result

    def _deliver_held(self, force: int) -> int:
        return int(deliver_held_first(self._at, self._table.at, self._table.topics, force))

    def _end_workers(self) -> None:
        for number in range(len(self.workers)):
            while self.words[memory.STOPPING] != memory.TERMINATE and self.workers[number].thread.is_alive():
                try:
                    self._router.send_multipart([bytes([number + 1]), b"", b""])
                    break
                except zmq.ZMQError as error:
                    if error.errno == zmq.EHOSTUNREACH:
                        break  # it has ended meanwhile
                    if error.errno != zmq.EAGAIN:
                        raise
                    continue  # a worker that still has a full queue; a slow one is watched by the subscriber

    def _close(self, context: zmq.Context[zmq.Socket[bytes]] | None, sockets: list[zmq.Socket[bytes]]) -> None:
        if self.error is not None:
            self.words[memory.STOPPING] = memory.TERMINATE
        if self.words[memory.STOPPING] == memory.TERMINATE and self.words[memory.READY]:
            finish(self._at, self._table.at, self._table.topics)
        for worker in self.workers:
            worker.thread.join()
        for socket in sockets:
            socket.close()
        if context is not None:
            close_context(context)
        close_messages(self._scratch.ctypes.data + memory.KEY_AT, memory.MESSAGES)
        for place in range(HELD_BLOCKS + 1):
            close_messages(self._held.ctypes.data + place * memory.HELD_MESSAGE_BYTES + HEADER_BYTES, 1)
        self.words[memory.DONE] = 1
        self._notify()


def _of_line(epoch: int, line: int) -> bytes:
    return epoch.to_bytes(8, "little", signed=True) + bytes([line])
