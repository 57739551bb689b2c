"""Process of a subscriber with many prefixes that change constantly."""

from __future__ import annotations

import threading
import time
from typing import Any

import zmq

from bench.processes.child import answer, orders
from blackbox.block.form.format import WANT_KEY

_SLICE_S = 0.01


def want(address: str, prefixes: int, changes_per_s: int) -> None:
    """Subscribe to `prefixes` prefixes. Order True starts changes; False stops them, answered with their number."""
    stop, changed = threading.Event(), [0]

    def change(sub: zmq.Socket[bytes]) -> None:
        began, changed[0] = time.perf_counter(), 0
        while not stop.wait(_SLICE_S):
            while changed[0] < (time.perf_counter() - began) * changes_per_s:
                prefix = WANT_KEY + b"%07d." % (changed[0] // 2 * 7_919 % prefixes)
                (sub.unsubscribe if changed[0] % 2 == 0 else sub.subscribe)(prefix)
                changed[0] += 1

    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger, sub.sndhwm = 0, 0
        sub.connect(address)
        for number in range(prefixes):
            sub.subscribe(WANT_KEY + b"%07d." % number)
        running: Any = None
        for order in orders():
            if order:
                stop.clear()
                running = threading.Thread(target=change, args=(sub,))
                running.start()
            elif running is not None:
                stop.set()
                running.join()
            answer(changes=changed[0])
