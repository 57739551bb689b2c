"""Commands that run an event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress

from blackbox.receive.supervise.stop_signals import stop_signals


def run_in_loop(
    work: Coroutine[None, None, None], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> None:
    """Run it until it ends. Ctrl-C, SIGTERM and SIGHUP cancel it, and then end the command as usual."""
    before = {number: signal.getsignal(number) for number in stop_signals()}
    came: list[int] = []

    async def run() -> None:
        task = asyncio.ensure_future(work)

        def end(number: int) -> None:
            came.append(number)
            task.cancel()

        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, end, number)
        with suppress(asyncio.CancelledError):
            await task

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
