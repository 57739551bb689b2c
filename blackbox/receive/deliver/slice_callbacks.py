"""Callbacks that run in the slice thread: compiled ones, and all if there are no workers. Their Python side."""

from __future__ import annotations

import ctypes
from typing import Final

from blackbox.errors import SubscriberError
from blackbox.receive.callbacks.callback_turns import warm_up_python_callbacks
from blackbox.receive.callbacks.callbacks import IN_SLICE
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.deliver.live_delivery import CallbackHost, LiveDelivery
from blackbox.receive.deliver.worker_state import WorkerAt, WorkerReason
from blackbox.receive.state import Stopping

_ASK: Final = ctypes.CFUNCTYPE(None, ctypes.c_int64)
# Once per block; a look-up in an enum takes six times as long.
_DELIVER: Final = int(WorkerReason.DELIVER)
_FEW: Final = int(WorkerReason.FEW)
_RAISED: Final = int(WorkerReason.RAISED)
_TRACED: Final = int(WorkerReason.TRACED)


class SliceCallbacks:
    """Delivers to the callbacks of the slice thread. Compiled code calls `ask` for everything that needs Python.

    `ask`: address of that C function.
    """

    def __init__(self, host: CallbackHost, table: Table) -> None:
        self._host = host
        self._live = LiveDelivery(host, IN_SLICE, table.workers[IN_SLICE])
        self._function = _ASK(self._answer)
        self.ask = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def addresses(self, table: Table) -> WorkerAt:
        """Return the addresses for compiled code, with scratch for a table's callbacks."""
        return self._live.set_table(table.workers[IN_SLICE], 0)

    def begin(self) -> None:
        """Start: compile everything and start timers."""
        warm_up_python_callbacks()
        self._live.begin_timers()

    def close(self) -> None:
        """Remove references to the slice thread; no compiled code may call afterwards."""
        del self._function, self._live, self._host

    def _answer(self, reason: int) -> None:
        live = self._live
        delivery = live.delivery
        try:
            if reason == _FEW:
                delivery.deliver_few()
            elif reason in (_DELIVER, _RAISED):
                if delivery.state.raised:
                    delivery.compiled_raised()
                if reason == _DELIVER:
                    delivery.deliver()
            elif reason == _TRACED:
                live.deliver_traced()
            elif reason == WorkerReason.GROW:
                delivery.memory.grow()
            elif reason == WorkerReason.EPOCH:
                live.enter_epoch()
            elif reason == WorkerReason.GAP:
                live.take_notice()
            else:
                live.call_timers()
        except BaseException as error:  # noqa: BLE001 - nothing can be raised through compiled code
            failure = SubscriberError(f"slice {self._host.slice_id}: its callbacks failed: {error}")
            failure.__cause__ = error
            self._host.report(failure)
            delivery.quit = True
        if delivery.quit:
            self._host.state.stopping = Stopping.TERMINATE
