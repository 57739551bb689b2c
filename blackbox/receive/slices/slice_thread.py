"""The slice thread: owns the SUB and ROUTER sockets of one slice, runs the compiled loop, handles what needs Python."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy
import zmq

from blackbox.arguments import name_of
from blackbox.block.batch.block_handler import NO_HANDLER, BlockHandlerAt
from blackbox.block.batch.received_block import BatchFeed
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import (
    BlackBoxError,
    CallbackError,
    GapError,
    SubscriberError,
)
from blackbox.feed.endpoint import SHARED_MEMORY, transport_of
from blackbox.feed.feed import Feed
from blackbox.native.compile.jit import warm_up
from blackbox.native.memory.arrays import shared_array
from blackbox.native.system.limits import start_thread
from blackbox.native.tables.name_table import HINT_WORDS, Numbering
from blackbox.receive import state as codes
from blackbox.receive.callbacks.callbacks import IN_SLICE, Callback
from blackbox.receive.callbacks.checkpoint import Checkpoint
from blackbox.receive.callbacks.hung_callbacks import running_function
from blackbox.receive.callbacks.match_table import Table, WorkerTable
from blackbox.receive.callbacks.slice_callbacks import SliceCallbacks
from blackbox.receive.callbacks.slice_hooks import NO_HOOKS, SliceHookCaller, SliceHooks
from blackbox.receive.clocks import ClockState
from blackbox.receive.deliver.conflation import NO_CONFLATION, Conflation
from blackbox.receive.deliver.worker import Worker
from blackbox.receive.order.state import Order, Phase
from blackbox.receive.slice_memory import (
    DOUBTED_AT,
    HELD_MESSAGE_BYTES,
    HELD_MESSAGES,
    KEY_AT,
    MESSAGES,
    SCRATCH_WORDS,
    SliceAt,
)
from blackbox.receive.slices.catching_up import Archives, CatchUp, Since, Wanted
from blackbox.receive.slices.flood_guard import FloodGuard
from blackbox.receive.slices.log_warnings import CallbackErrors
from blackbox.receive.slices.options import Options, needs_of
from blackbox.receive.slices.receive_loop import finish, hand_control, renumber, run_slice
from blackbox.receive.slices.refusal import Refusal
from blackbox.receive.slices.slice_failure import SliceFailure
from blackbox.receive.slices.subscription import Subscription, open_sub
from blackbox.receive.slow_subscriber import ACTIONS, NO_LIMIT_NS
from blackbox.receive.state import LIVES, SliceLife, SliceState
from blackbox.receive.statistics import Counters
from blackbox.transport.context import close_context, open_context, pin_thread
from blackbox.transport.libzmq import close_messages, init_messages
from blackbox.transport.security.curve import keys_of_line
from blackbox.transport.shared_memory.layout import MOST_WAITING
from blackbox.transport.wakeup import Pipe

if TYPE_CHECKING:
    from blackbox.feed.schema.schema import Schema

log = logging.getLogger("blackbox")

_ROUTER_WAIT_MS = 20
_WORKER_START_S = 120.0
_MEAN_TOPIC_BYTES = 32
_KEPT_TABLES = 64
_DEAD_AFTER_HEARTBEATS = 3
_WORKER_END_S = 0.05
_END_SETTLES_NS = 50_000_000
"""Time after a reported end within which a further block disproves it."""


def _cover(prefixes: Iterable[bytes], filters: Iterable[bytes]) -> bool:
    """Return True if everything that the filters accept begins with one of the prefixes."""
    return all(any(each.startswith(prefix) for prefix in prefixes) for each in filters)


class SliceThread:
    """One slice of a subscriber: its sockets, order, topic numbers and workers.

    Life: see `SliceLife`. `ask_to_stop` delivers what was received, `ask_to_terminate` does not. Data for the owner is
    in shared memory: the thread may run in a process forked after its creation.

    `news` is poked when there is news for the owner. A `handler` gets every block; there are then no workers. `topics`:
    continue the topic numbers of an earlier slice.
    """

    def __init__(
        self,
        feed: Feed,
        slice_id: int,
        options: Options,
        schema: Schema,
        counters: Counters,
        table: Table,
        news: Pipe,
        handler: BlockHandlerAt = NO_HANDLER,
        hooks: Callable[[], SliceHooks] = lambda: NO_HOOKS,
        archives: Archives | None = None,
        since: Since | None = None,
        topics: Numbering | None = None,
    ) -> None:
        self.feed, self.slice_id, self.options = feed, slice_id, options
        self.feed_slice = feed.slices[slice_id]
        self.counters = counters
        self.state = SliceState()
        self.state.acts_from_ns = NO_LIMIT_NS
        if topics is None:
            topics = Numbering(feed.max_topics, _MEAN_TOPIC_BYTES, shared_array)
        self.topics = topics
        self._failure = SliceFailure()
        self._batch_feed = BatchFeed(feed.name, schema if schema.schema_id else None, feed.symbol_rule)
        self._news = news
        self._handler, self._hooks = handler, hooks
        self._table = table
        self._tables: dict[int, Table] = {table.version: table}
        self._started_ns = time.monotonic_ns()
        self._commands: deque[Callable[[], None]] = deque()
        self._checkpoints: deque[Checkpoint] = deque()
        """Checkpoints that wait for an exact position."""
        self._newest, self._filters, self._wanted = table.version, table.upstream, table.wanted
        self._timers = [timer for worker in table.workers for timer in worker.timers]
        self._wake_pipe = Pipe()
        lines = len(self.feed_slice.lines)
        asks = options.on_gap == "repair"
        self._archives, self._since = archives if asks or since is not None else None, since
        self._catch_up: CatchUp | None = None
        self.first_position: Position | None = None
        """Position at which a publisher first confirmed the filters, if the slice began live."""
        self.order = Order(
            feed.max_keys,
            lines,
            options.line_wait_ns,
            _DEAD_AFTER_HEARTBEATS * feed.heartbeat_ns,
            options.hwm_blocks * feed.block_bytes,
            counters.slice,
            repairs=asks,
        )
        if since is not None:
            is_full = not feed.key_rule or b"" in table.upstream
            self.order.begin(since.position, images=len(since.image or ()), is_full=is_full)
        self._clock = ClockState()
        self._subscription = Subscription(
            feed, slice_id, self.state, self.order, news, self._wake_pipe, options.slow._start_grace_ns
        )
        self._conflation = Conflation(feed.max_topics) if options.slow.action == "conflate" else None
        self._set_of_topic = numpy.zeros(feed.max_topics, numpy.int32)
        self._hints = numpy.zeros(feed.max_topics * HINT_WORDS, numpy.uint64)
        self._held = numpy.zeros(HELD_MESSAGES * HELD_MESSAGE_BYTES // 8, numpy.int64)
        self._scratch = numpy.zeros(SCRATCH_WORDS, numpy.int64)
        self.workers: list[Worker] = []
        self._slice_callbacks: SliceCallbacks | None = None
        self._guard: FloodGuard | None = None
        self._callback_errors = CallbackErrors(slice_id)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Errors are in `failure` once it is done."""
        # Created here: a thread object created before a fork cannot be started after it.
        self._thread = threading.Thread(target=self._run, name=f"blackbox-slice-{self.slice_id}", daemon=True)
        start_thread(self._thread)

    @property
    def is_confirmed(self) -> bool:
        """True if every line's publisher has confirmed the newest filters; with two hubs, one of them."""
        return self.confirmed_lines >= (1 if self.feed.hub_backup else len(self.feed_slice.lines))

    @property
    def confirmed_lines(self) -> int:
        """Number of lines whose publisher has confirmed the newest filters."""
        return self.state.confirmed_lines.bit_count() if self.state.confirmed_version == self._newest else 0

    @property
    def is_finished(self) -> bool:
        """True if every line's publisher has ended, or has died after the other line's ended.

        Delayed a little, since a later block disproves an end.
        """
        finished = self.state.finished_lines
        now_ns = time.monotonic_ns()
        lines = range(len(self.feed_slice.lines))
        settled = bool(finished) and now_ns - self.state.finished_ns >= _END_SETTLES_NS
        settled &= not self.is_catching_up and self.order.state.sent == self.order.state.taken
        settled &= not self.order.is_unsettled
        return settled and all(finished >> n & 1 or self.order.is_dead(n, now_ns) for n in lines)

    @property
    def is_catching_up(self) -> bool:
        """True while archives deliver the messages before the live ones."""
        return self.order.state.phase != Phase.LIVE

    def silence_s(self) -> float:
        """Return the seconds since the last message on any line; 0 once all have ended."""
        if self.is_finished:
            return 0.0
        lines = range(len(self.feed_slice.lines))
        heard_ns = max(self._started_ns, *(self.order.epochs.heard_ns[line] for line in lines))
        return max(0.0, (time.monotonic_ns() - heard_ns) / 1e9)

    @property
    def is_ready(self) -> bool:
        """True if everything is compiled and connected."""
        return self.life not in (SliceLife.NEW, SliceLife.OPENING)

    @property
    def transport(self) -> str:
        """Current transport of its blocks."""
        return SHARED_MEMORY if self.state.is_shared else transport_of(self.feed_slice.lines[0])

    @property
    def is_done(self) -> bool:
        """True if the thread and its workers have ended."""
        return self.life is SliceLife.ENDED

    def failure(self) -> BlackBoxError | None:
        """Return the error, if any; from another process, one of the same class with the traceback as text."""
        return self._failure.seen()

    def set_table(self, table: Table) -> None:
        """Switch to a new table and its filters, which must then be confirmed."""
        self._newest, self._filters, self._wanted = table.version, table.upstream, table.wanted
        self._command(lambda: self._switch(table))

    def note_first_position(self) -> None:
        """Record `first_position`, if the slice begins live."""
        weak = weakref.ref(self)  # a reference cycle would keep its memory

        def note() -> None:
            if (thread := weak()) is not None and not thread.is_catching_up:
                thread.first_position = thread.position

        self._subscription.note_first = note

    def refuse_alone(self, *, is_late: bool) -> None:
        """Make refused filters end only callbacks; if not `is_late`, once some were confirmed. See `take_refusals`."""
        self._subscription.refuses_alone, self._subscription.began_late = True, is_late

    def take_refusals(self) -> list[Refusal]:
        """Return the refusals of publishers since the last call."""
        refusals = self._subscription.refusals
        return [refusals.popleft() for _ in range(len(refusals))]

    def covers(self, filters: frozenset[bytes]) -> bool:
        """Return True if the current filters accept everything that these would."""
        return _cover(self._filters, filters)

    @property
    def is_needed(self) -> bool:
        """True if it has callbacks, timers, undelivered messages, or an ended publisher to report."""
        if self._filters or any(timer.active for timer in self._timers):
            return True
        is_idle = self.life is SliceLife.RUNNING and not self.busy_ns() and all(each.is_idle() for each in self.workers)
        return not is_idle or self.is_finished

    def is_past(self, version: int) -> bool:
        """Return True if everything matched by tables before a version was delivered."""
        switched = self._table.version >= version
        return switched and all(worker.table_version >= version or worker.is_idle() for worker in self.workers)

    def remove(self, callback: Callback) -> None:
        """Deliver no further batch to a callback."""
        for table in list(self._tables.values()):
            for worker in table.workers:
                worker.remove(callback)

    @property
    def position(self) -> Position | None:
        """Position after all messages handed over; None: unknown, or within an image."""
        state = self.order.state
        if state.images or not state.is_strict or self._awaits_start:
            return None
        return self.order.position if state.epoch or self.is_catching_up else None

    @property
    def _awaits_start(self) -> bool:
        """True if it starts at a time and archives have not reported the position of that time."""
        return bool(self.order.state.opens and self._since is not None and self._since.start_ns)

    def come_to(self, checkpoint: Checkpoint) -> None:
        """Hold a checkpoint until it is released."""
        self._command(lambda: self._checkpoints.append(checkpoint))

    def acknowledge(self, said: bytes) -> None:
        """Report to the publishers how far their messages are recorded."""
        self._command(lambda: self._subscription.acknowledge(said))

    def _command(self, command: Callable[[], None]) -> None:
        """Run a function in the slice thread between two blocks."""
        self._commands.append(command)
        self.state.asked = 1
        self._wake()

    def ask_to_stop(self) -> None:
        """Deliver what was received, then end."""
        if self.state.stopping == 0:
            self.state.drain_left = len(self.feed_slice.lines) * (self.options.hwm_blocks + 1) + MOST_WAITING
            self.state.stopping = codes.STOP
        self._wake()

    def ask_to_terminate(self) -> None:
        """End now; queued messages are lost."""
        self.state.stopping = codes.TERMINATE
        self._wake()

    def release(self, timeout: float) -> bool:
        """Wait for the workers to end; a slice thread that would exit the process then ends without it."""
        deadline = time.monotonic() + timeout
        for worker in tuple(self.workers):
            worker.thread.join(max(0.0, deadline - time.monotonic()))
            if worker.thread.is_alive():
                return False
        self.state.released = 1
        self._wake()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.is_done

    def report(self, failure: BlackBoxError) -> None:
        """Store the first error."""
        self._failure.keep(failure)
        self._notify()

    def _callback_raised(self, failure: CallbackError) -> bool:
        """Return True to continue after a callback has raised."""
        if self.options.on_error == "log":
            self._callback_errors.log(failure)
            return True
        self.report(failure)
        return False

    def _notify(self) -> None:
        self._news.poke()

    def _wake(self) -> None:
        self._wake_pipe.poke()

    def take_alert(self) -> tuple[int, int]:
        """Return and reset the worst lag and age (ns) for which the slow-subscriber policy applied; 0, 0: it did not.

        Also detects a callback that blocks the slice thread itself.
        """
        busy_ns = self.busy_ns()
        acts = time.monotonic_ns() >= self.state.acts_from_ns and self.state.stopping != codes.TERMINATE
        if acts and busy_ns > self.options.slow._limit_ns(self.feed):
            return busy_ns, 0
        if not self.state.alert:
            return 0, 0
        worst_ns = self.state.alert_lag_ns, self.state.alert_age_ns
        self.state.alert_lag_ns = self.state.alert_age_ns = self.state.alert = 0
        return worst_ns

    def put_policy_off(self) -> None:
        """Delay the slow-subscriber policy, since this process compiles."""
        if self.state.acts_from_ns != NO_LIMIT_NS:
            self.state.acts_from_ns = max(
                self.state.acts_from_ns, time.monotonic_ns() + self.options.slow._start_grace_ns
            )

    def running_callbacks(self) -> list[str]:
        """Return a text for each running callback: its name and running time."""
        found = []
        for thread, place in ((self._thread, IN_SLICE), *((worker.thread, worker.number) for worker in self.workers)):
            since_ns = self.counters.workers[place].busy_since_ns
            if thread is not None and since_ns > 0:
                names = [name_of(callback.function) for callback in self._table.workers[place].callbacks]
                seconds = (time.monotonic_ns() - since_ns) / 1e9
                found.append(f"callback {running_function(thread, names)} has been running for {seconds:.1f} s")
        return found

    def busy_ns(self) -> int:
        """Return how long a callback has been running in the slice thread, in ns; 0: none."""
        since_ns = self.counters.workers[IN_SLICE].busy_since_ns
        return since_ns and max(0, time.monotonic_ns() - since_ns)

    @property
    def refusal(self) -> str:
        """Reason why publishers reject our connections, from failed handshakes; empty: unknown."""
        return "" if self._guard is None else self._guard.refusal

    @property
    def is_current_thread(self) -> bool:
        """True in the slice thread itself."""
        return threading.current_thread() is self._thread

    @property
    def threads(self) -> list[threading.Thread]:
        """The slice thread and its workers, which run callbacks and hooks."""
        own = [] if self._thread is None else [self._thread]
        return own + [worker.thread for worker in self.workers]

    @property
    def life(self) -> SliceLife:
        """Current stage of its life."""
        return LIVES[self.state.life]

    def _enter(self, life: SliceLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self.state.life = LIVES.index(self.life.enter(life, f"slice {self.slice_id}"))

    # The following runs in the slice thread.

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] | None = None
        sockets: list[zmq.Socket[bytes]] = []
        self._enter(SliceLife.OPENING)
        try:
            *_, sockets_and_workers = needs_of(self.feed_slice, self.options)
            context = open_context(self.feed_slice, f"slice {self.slice_id}", sockets_and_workers)
            pin_thread(self.feed_slice.cpus)
            self._open(context, sockets)
            self._serve()
        except BlackBoxError as error:
            self.report(error)
        except Exception as error:  # any error that ends this thread must be raised by run()
            log.exception("slice %d: slice thread failed", self.slice_id)
            failure = SubscriberError(f"slice {self.slice_id}: slice thread failed: {error}")
            failure.__cause__ = error
            self.report(failure)
        finally:
            self._close(context, sockets)

    def _open(self, context: zmq.Context[zmq.Socket[bytes]], sockets: list[zmq.Socket[bytes]]) -> None:
        endpoint = f"inproc://blackbox-slice-{id(self)}"
        hook_caller = SliceHookCaller(self.slice_id, self._hooks, self.workers)
        router = context.socket(zmq.ROUTER)
        sockets.append(router)
        router.router_mandatory = True
        router.sndhwm = 1  # the worker keeps the rest of the queue
        queue_blocks = self.options.queue_blocks
        if self.options.slow.action == "conflate":
            # libzmq reports progress of a worker only after half of the queue. Conflation has its own count, and must
            # not wait while there is room by its count.
            queue_blocks = 2 * queue_blocks + 2
        router.sndtimeo = _ROUTER_WAIT_MS
        router.linger = 0
        router.bind(endpoint)
        for number in range(self.options.workers):
            worker = Worker(
                number,
                self.slice_id,
                endpoint,
                context,
                self.state,
                self.counters,
                self._table.workers[number],
                self._worker_table(number),
                self._batch_feed,
                queue_blocks,
                self.feed_slice.cpus,
                self.report,
                self._callback_raised,
                hook_caller,
            )
            start_thread(worker.thread)
            self.workers.append(worker)  # workers in the list can be joined
        self._slice_callbacks = SliceCallbacks(
            self.slice_id,
            self._batch_feed,
            self.state,
            self.counters,
            self._table,
            self._callback_raised,
            self.report,
            hook_caller,
        )
        self._await_workers(router)
        self._router = router
        if self._archives is not None:
            self._catch_up = CatchUp(
                self.slice_id,
                self._archives,
                self.options.repair_wait_ns,
                self.order.state,
                self._since,
                lambda: Wanted(self._filters, self._wanted),
                context,
                self._wake_pipe.poke,
                self.threads,
                lambda: self.confirmed_lines > 0,
                self.report,
            )
        sub = open_sub(context, self.options.hwm_blocks)
        sockets.append(sub)
        self._at = self._addresses(sub, router, self._slice_callbacks)
        warm_up(run_slice, self._at, self._table.at, self._table.topics, self._table.keys)
        warm_up(hand_control, self._at, 0, 0, 0)
        warm_up(finish, self._at, self._table.at, self._table.topics)
        keys = [keys_of_line(self.feed, line, endpoint) for line, endpoint in enumerate(self.feed_slice.lines)]
        self._guard = FloodGuard(
            sub,
            self.feed_slice.lines,
            self.counters.slice,
            self.order.epochs.heard_ns.__getitem__,
            lambda: self.options.hwm_blocks * max(self.feed.block_bytes, self.state.largest_body),
            lambda: self.state.reads,
            self.slice_id,
            next((each for each in keys if each is not None), None),
        )
        self._guard.start()
        self._subscription.connect(sub, keys)
        init_messages(self._scratch.ctypes.data + KEY_AT, MESSAGES)
        self._switch(self._table)
        self._slice_callbacks.begin()
        if self._catch_up is not None:
            self._catch_up.start()
        self._enter(SliceLife.RUNNING)

    def _await_workers(self, router: zmq.Socket[bytes]) -> None:
        """Wait until every worker is connected; raise the error of one that failed."""
        deadline = time.monotonic() + _WORKER_START_S
        for _ in self.workers:
            while not router.poll(_ROUTER_WAIT_MS):
                if self._failure.error is not None:
                    raise self._failure.error
                if time.monotonic() > deadline:
                    raise SubscriberError(f"slice {self.slice_id}: a worker did not start in {_WORKER_START_S} s")
            router.recv_multipart()

    def _addresses(self, sub: zmq.Socket[bytes], router: zmq.Socket[bytes], slice_callbacks: SliceCallbacks) -> SliceAt:
        return SliceAt(
            sub.underlying,
            router.underlying,
            self._wake_pipe.reader,
            self._news.writer,
            self.state.address,
            self._scratch.ctypes.data,
            self.counters.slice.address,
            self.counters.workers_address,
            self.options.workers,
            self.topics.at,
            self._set_of_topic.ctypes.data,
            self._hints.ctypes.data,
            self.order.at,
            self._clock.address,
            self._held.ctypes.data,
            self.slice_id,
            self.feed.key_rule,
            ACTIONS[self.options.slow.action],
            self.options.queue_blocks,
            self._conflation.at if self._conflation else NO_CONFLATION,
            self.options.slow._limit_ns(self.feed),
            self.options.slow._age_limit_ns,
            self.options.slow._grace_ns,
            self._handler,
            slice_callbacks.addresses(self._table),
            self._table.workers[IN_SLICE].at,
            slice_callbacks.ask,
            self._subscription.shared,
            0 if self._catch_up is None else self._catch_up.socket.underlying,
            int(self.options.on_gap == "stop"),
            self.feed_slice.spin_ns,
        )

    def _worker_table(self, number: int) -> Callable[[int], WorkerTable]:
        return lambda version: self._tables[version].workers[number]

    def _serve(self) -> None:
        while True:
            reason = run_slice(self._at, self._table.at, self._table.topics, self._table.keys)
            if reason == codes.CONTROL:
                reason = self._subscription.read_control(self._at)
                self._at = self._at._replace(shared=self._subscription.shared)
            if reason == 0:
                self._come_to_checkpoints()
                continue
            if reason == codes.COMMAND:
                self.state.asked = 0
                for _ in range(len(self._commands)):  # not commands added meanwhile, so that blocks get their turn
                    self._commands.popleft()()
                self._come_to_checkpoints()
                self._subscription.look_at_shared()
                self._at = self._at._replace(shared=self._subscription.shared)
                if time.monotonic_ns() > self.state.look_again_at_ns:
                    self._subscription.reconnect_silent_lines()
            elif reason == codes.FAILED and self.state.gap_count:
                self._end_workers()
                self._await_end_of_workers()
                raise self._gap_error()
            elif reason == codes.FAILED and self._failure.error is None:
                raise SubscriberError(f"slice {self.slice_id}: libzmq failed: {zmq.strerror(self.state.errno)}")
            elif reason == codes.DRAINED:
                self._end_workers()
                return
            else:
                return

    def _switch(self, table: Table) -> None:
        self._table = self._tables[table.version] = table
        assert self._slice_callbacks is not None
        self._at = self._at._replace(own=self._slice_callbacks.addresses(table), own_table=table.workers[IN_SLICE].at)
        renumber(self._at, table.topics)
        in_use = [
            worker.table_version
            for worker, counts in zip(self.workers, self.counters.workers[:IN_SLICE], strict=True)
            if counts.sent != counts.blocks
        ]
        for version in sorted(self._tables)[:-_KEPT_TABLES]:
            if version < min(in_use, default=table.version):
                del self._tables[version]
        self._subscription.ask(table)

    def _come_to_checkpoints(self) -> None:
        """Hold the waiting checkpoints if the position is exact."""
        while self._checkpoints and self.order.is_clean and not self._awaits_start:
            self._hold(self._checkpoints.popleft())
        self.state.wants_clean = int(bool(self._checkpoints))

    def _hold(self, checkpoint: Checkpoint) -> None:
        """Deliver nothing and call no timers until the checkpoint is released or the slice is terminated."""

        def is_idle() -> bool:
            if self.state.stopping == codes.TERMINATE or self._failure.error is not None:
                raise SubscriberError("the subscriber ended meanwhile")
            return all(worker.is_idle() and worker.hold_timers() for worker in self.workers)

        try:
            checkpoint.hold(self.slice_id, is_idle, lambda: self.position)
        except SubscriberError:
            log.debug("slice %d: it ended during a checkpoint", self.slice_id)
        finally:
            for worker in self.workers:
                worker.release_timers()

    def _end_workers(self) -> None:
        for number in range(len(self.workers)):
            while self.state.stopping != codes.TERMINATE and self.workers[number].thread.is_alive():
                try:
                    self._router.send_multipart([bytes([number + 1]), b"", b""])
                    break
                except zmq.ZMQError as error:
                    if error.errno == zmq.EHOSTUNREACH:
                        break  # it has ended meanwhile
                    if error.errno != zmq.EAGAIN:
                        raise
                    continue  # the worker's queue is still full; the subscriber watches slow workers

    def _await_end_of_workers(self) -> None:
        while self.state.stopping != codes.TERMINATE and any(worker.thread.is_alive() for worker in self.workers):
            for worker in self.workers:
                worker.thread.join(_WORKER_END_S)

    @property
    def lost(self) -> Gap | None:
        """Loss that ended the subscriber, without its key; None: none."""
        state = self.state
        if not state.gap_count:
            return None
        is_upper_bound = bool(state.gap_is_upper_bound)
        return Gap(self.slice_id, state.gap_epoch, b"", state.gap_sequence, state.gap_count, 0, is_upper_bound)

    def _gap_error(self) -> GapError:
        state = self.state
        of_key = f" of key {self.order.keys.name(state.gap_key)!r}" if state.gap_key >= 0 else ""
        many = f"{'at most ' * state.gap_is_upper_bound}{state.gap_count}"
        return GapError(
            f"feed {self.feed.name!r} slice {self.slice_id}: {many} messages{of_key} were lost, from "
            f"sequence {state.gap_sequence} of epoch {state.gap_epoch} on, expected none with on_gap='stop'"
        )

    def _close(self, context: zmq.Context[zmq.Socket[bytes]] | None, sockets: list[zmq.Socket[bytes]]) -> None:
        if self._failure.error is not None:
            self.state.stopping = codes.TERMINATE
        if self.state.stopping == codes.TERMINATE and self.life is SliceLife.RUNNING:
            finish(self._at, self._table.at, self._table.topics)
        self._enter(SliceLife.CLOSING)
        if self._catch_up is not None:
            self._catch_up.close()
            self._catch_up = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        for socket in sockets[1:]:  # a publisher must not queue blocks for it while callbacks return or hang
            socket.close()
        for worker in self.workers:
            worker.thread.join()
        if self._slice_callbacks is not None:
            self._slice_callbacks.close()
            self._slice_callbacks = None
        self._callback_errors.close()
        for socket in sockets:
            socket.close()
        if context is not None:
            close_context(context)
        close_messages(self._scratch.ctypes.data + KEY_AT, MESSAGES)
        self._subscription.close()
        for place in (*range(self.order.state.used + 1), DOUBTED_AT, DOUBTED_AT + 1):
            close_messages(self._held.ctypes.data + place * HELD_MESSAGE_BYTES + HEADER_BYTES, 1)
        self._enter(SliceLife.ENDED)
        self._notify()
