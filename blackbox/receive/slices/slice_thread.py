"""The slice thread: owns the SUB socket of one slice, runs the compiled loop, handles what needs Python."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack

import zmq

from blackbox.block.batch.received_block import BatchFeed
from blackbox.errors import BlackBoxError, SubscriberError
from blackbox.feed.slice import Slice
from blackbox.native.compile.jit import WARM_UP_NEEDS, warm_up
from blackbox.native.system.limits import Needs, start_thread
from blackbox.receive.callbacks.callbacks import IN_SLICE
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.callbacks.slice_hooks import SliceHookCaller
from blackbox.receive.deliver.live_delivery import CallbackHost
from blackbox.receive.deliver.slice_callbacks import SliceCallbacks
from blackbox.receive.publishers.flood_guard import GUARD_NEEDS, FloodGuard
from blackbox.receive.publishers.lines import open_sub
from blackbox.receive.publishers.subscription import Subscription
from blackbox.receive.slices.catching_up import CATCH_UP_NEEDS, CatchUp
from blackbox.receive.slices.commands import Commands
from blackbox.receive.slices.loop_memory import LoopMemory
from blackbox.receive.slices.options import Options, SliceSettings
from blackbox.receive.slices.receive_loop import finish, hand_control, renumber, run_slice
from blackbox.receive.slices.slice_errors import SliceErrors
from blackbox.receive.slices.slice_status import Kept, SliceStatus
from blackbox.receive.slices.tables import Tables
from blackbox.receive.slices.worker_pool import WorkerPool
from blackbox.receive.state import Reason, SliceLife, Stopping
from blackbox.transport.context import CONTEXT_NEEDS, close_context, open_context, pin_thread
from blackbox.transport.security.curve import keys_of_line
from blackbox.transport.shared_memory.layout import MOST_WAITING
from blackbox.transport.udp.open_lines import RECEIVER_NEEDS
from blackbox.transport.wakeup import PIPE_NEEDS

log = logging.getLogger("blackbox")


def needs_of(feed_slice: Slice, options: Options) -> tuple[Needs, ...]:
    """Return what a `SliceThread` opens and starts: ROUTER, a DEALER per worker, SUB, a connection per line, its guard.

    With shared memory also a connection, a pidfd of the publisher, its bell, and briefly the memory.
    """
    lines = len(feed_slice.lines) + 5 * bool(feed_slice.shared_memory)
    lines += RECEIVER_NEEDS.descriptors * bool(feed_slice.multicast)
    threads = 1 + options.workers
    return (
        PIPE_NEEDS,
        CONTEXT_NEEDS,
        *[WARM_UP_NEEDS] * threads,
        GUARD_NEEDS,
        *(CATCH_UP_NEEDS if options.on_gap == "repair" else ()),
        Needs(2 + options.workers + lines, threads),
    )


class SliceThread:
    """One slice of a subscriber. The owner uses it, and the thread that it starts.

    Life: see `SliceLife`. After STOP it delivers what was received, after TERMINATE it does not. Data for the owner is
    in shared memory: the thread may run in a process forked after its creation.
    """

    def __init__(self, settings: SliceSettings, slice_id: int, table: Table, kept: Kept | None = None) -> None:
        """`kept`: continue the counters and topic numbers of an earlier slice, which begins live."""
        self.settings, self.slice_id = settings, slice_id
        self._since = settings.since(slice_id) if kept is None else None
        self.status = SliceStatus(settings, slice_id, self._since, kept)
        self.status.state.newest_version = table.version
        if self._since is not None:
            images, is_full = len(self._since.image or ()), self.status.is_full(table.upstream)
            self.status.order.begin(self._since.position, images=images, is_full=is_full)
        self.errors = SliceErrors(slice_id, settings.news, logs=settings.options.on_error == "log")
        self.tables = Tables(table)
        self.commands = Commands(self.status)
        self.subscription = Subscription(settings, self.status, self.commands.bell)
        self.workers = WorkerPool(settings, self.status, self.tables, self.errors)
        self._memory = LoopMemory(settings, self.status, self.commands.bell)
        self._guard: FloodGuard | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. See `failure` once it is done."""
        # Created here: a thread object created before a fork cannot be started after it.
        self._thread = threading.Thread(target=self._run, name=f"blackbox-slice-{self.slice_id}", daemon=True)
        start_thread(self._thread)

    def failure(self) -> BlackBoxError | None:
        """Return the error, if any; from another process, one of the same class with the traceback as text."""
        return self.errors.seen()

    @property
    def is_done(self) -> bool:
        """True if the thread and its workers have ended."""
        return self.status.life is SliceLife.ENDED

    @property
    def threads(self) -> list[threading.Thread]:
        """The slice thread and its workers, which run callbacks and hooks."""
        return [*([] if self._thread is None else [self._thread]), *self.workers.threads]

    def running_callbacks(self) -> list[str]:
        """Return a text for each running callback: its name and running time."""
        return self.workers.running_callbacks(self._thread)

    @property
    def refusal(self) -> str:
        """Reason why publishers reject our connections, from failed handshakes; empty: unknown."""
        return "" if self._guard is None else self._guard.refusal

    @property
    def addresses(self) -> tuple[str, ...]:
        """Our own addresses of the TCP connections to publishers, unless the slice runs in another process."""
        return () if self._guard is None else self._guard.addresses

    @property
    def is_needed(self) -> bool:
        """True if it has callbacks, timers, undelivered messages, or an ended publisher to report."""
        if self.tables.newest.upstream or self.tables.has_timers:
            return True
        is_free = self.status.life is SliceLife.RUNNING and not self.status.counters.busy_ns(IN_SLICE)
        return not (is_free and self.workers.is_idle()) or self.status.is_finished

    def is_past(self, version: int) -> bool:
        """Return True if everything matched by tables before a version was delivered."""
        return self.tables.current.version >= version and self.workers.is_past(version)

    def set_table(self, table: Table) -> None:
        """Switch to a new table and its filters, which must then be confirmed."""
        self.tables.newest, self.status.state.newest_version = table, table.version
        self.commands.put(lambda: self._switch(table))

    def acknowledge(self, said: bytes) -> None:
        """Report to the publishers how far their messages are recorded."""
        self.commands.put(lambda: self.subscription.acknowledge(said))

    def ask_to_stop(self) -> None:
        """Deliver what was received, then end."""
        state = self.status.state
        if state.stopping == 0:
            state.drain_left = len(self.status.lines) * (self.settings.options.hwm_blocks + 1) + MOST_WAITING
            state.stopping = Stopping.STOP
        self.commands.bell.poke()

    def ask_to_terminate(self) -> None:
        """End now; queued messages are lost."""
        self.status.state.stopping = Stopping.TERMINATE
        self.commands.bell.poke()

    def release(self, timeout: float) -> bool:
        """Wait for the workers to end; a slice thread that would exit the process then ends without it."""
        deadline = time.monotonic() + timeout
        for thread in self.workers.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                return False
        self.status.state.released = 1
        self.commands.bell.poke()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.is_done

    # The following runs in the slice thread.

    def _run(self) -> None:
        self.status.enter(SliceLife.OPENING)
        with ExitStack() as stack:
            try:
                self._open(stack)
                self._serve()
            except BlackBoxError as error:
                self.errors.report(error)
            except Exception as error:  # any error that ends this thread must be raised by run()
                log.exception("slice %d: slice thread failed", self.slice_id)
                failure = SubscriberError(f"slice {self.slice_id}: slice thread failed: {error}")
                failure.__cause__ = error
                self.errors.report(failure)
            if self.errors.first is not None:
                self.status.state.stopping = Stopping.TERMINATE
            if self.status.state.stopping == Stopping.TERMINATE and self.status.life is SliceLife.RUNNING:
                finish(self._at, self.tables.current.at, self.tables.current.topics)
            self.status.enter(SliceLife.CLOSING)
        self.status.enter(SliceLife.ENDED)
        self.settings.news.poke()

    def _open(self, stack: ExitStack) -> None:
        """Open everything and start the workers. `stack` closes it in the opposite order."""
        settings, status, table = self.settings, self.status, self.tables.current
        feed, part = settings.feed, settings.feed.slices[self.slice_id]
        stack.callback(self.subscription.close)
        stack.callback(self._memory.close)
        *_, sockets_and_workers = needs_of(part, settings.options)
        context = open_context(part, f"slice {self.slice_id}", sockets_and_workers)
        stack.callback(close_context, context)
        pin_thread(part.cpus)
        stack.callback(self.errors.close)
        hook_caller = SliceHookCaller(self.slice_id, settings.hooks, self.workers.workers)
        batch_feed = BatchFeed(feed.name, settings.schema if settings.schema.schema_id else None, feed.symbol_rule)
        stack.callback(self.workers.close)
        errors = self.errors
        host = CallbackHost(
            self.slice_id,
            batch_feed,
            status.state,
            status.counters,
            hook_caller,
            errors.callback_raised,
            errors.report,
            0 if self._since is None else self._since.image_epoch,
        )
        self.workers.open(context, host)
        self._callbacks = SliceCallbacks(host, table)
        stack.callback(self._callbacks.close)
        router = self.workers.wait_connected()
        # A publisher must not queue blocks for it while callbacks return or hang: it is closed before the workers end.
        sub = stack.enter_context(open_sub(context, settings.options.hwm_blocks))
        catch_up = None
        if settings.archives is not None and (settings.options.on_gap == "repair" or self._since is not None):
            catch_up = CatchUp(settings, status, self._since, self.tables, self.errors, context)
            stack.callback(catch_up.close)
        repair_socket = 0 if catch_up is None else catch_up.socket.underlying
        self._at = self._memory.open(
            sub.underlying, router.underlying, repair_socket, table, self._callbacks, self.subscription.shared
        )
        warm_up(run_slice, self._at, table.at, table.topics, table.keys)
        warm_up(hand_control, self._at, 0, 0, 0)
        warm_up(finish, self._at, table.at, table.topics)
        keys = [keys_of_line(feed, line, endpoint) for line, endpoint in enumerate(part.sockets)]
        own_keys = next((each for each in keys if each is not None), None)
        commands, subscription = self.commands, self.subscription  # a bound method would keep the thread alive

        def report_lost(count: int) -> None:
            commands.put(lambda: subscription.report_lost(count))

        self._guard = FloodGuard(sub, status, settings.options.hwm_blocks, own_keys, report_lost)
        stack.callback(self._guard.close)
        self._guard.start()
        self.subscription.connect(sub, keys)
        self._at = self._at._replace(multicast=self.subscription.multicast)
        self._switch(table)
        self._callbacks.begin()
        if catch_up is not None:
            catch_up.start(context, self.commands.bell.poke, self.threads)
        status.enter(SliceLife.RUNNING)

    def _serve(self) -> None:
        """Run the compiled loop, and do what it returns for."""
        state = self.status.state
        while True:
            table = self.tables.current
            reason = run_slice(self._at, table.at, table.topics, table.keys)
            if reason == Reason.CONTROL:
                reason = self.subscription.read_control(self._at)
                self._at = self._at._replace(shared=self.subscription.shared)
            if reason == Reason.COMMAND:
                self.commands.run()
                self.subscription.look_again()
                self._at = self._at._replace(shared=self.subscription.shared)
            elif reason == Reason.FAILED and state.gap_count:
                self.workers.send_end()
                self.workers.wait_ended()
                raise self.status.gap_error()
            elif reason == Reason.FAILED and self.errors.first is None:
                raise SubscriberError(f"slice {self.slice_id}: libzmq failed: {zmq.strerror(state.errno)}")
            elif reason == Reason.DRAINED:
                self.workers.send_end()
                return
            elif reason != 0:
                return
            self.commands.hold_checkpoints(self.workers, self.errors)

    def _switch(self, table: Table) -> None:
        """Use a table, and ask the publishers for what it needs."""
        self.tables.switch(table, self.workers.versions_in_use())
        self._at = self._at._replace(own=self._callbacks.addresses(table), own_table=table.workers[IN_SLICE].at)
        renumber(self._at, table.topics)
        self.subscription.ask(table)
