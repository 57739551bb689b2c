"""Run a subscriber until it ends; in the main thread signals end it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import partial

from blackbox.errors import SilentPublisherError, SubscriberError
from blackbox.receive.supervise.shared_slices import EndedEarlyError, Share
from blackbox.receive.supervise.stop_signals import stopping_at_signals
from blackbox.receive.supervise.supervisor import TICK_S, SubscriberLife

log = logging.getLogger("blackbox")


def run(
    share: Share,
    start: Callable[[float | None], object],
    *,
    until_end: bool,
    timeout: float | None,
    silence_timeout: float | None,
) -> None:
    """Start (unless running), wait, stop. In the main thread signals stop it; a second one terminates.

    Ends when `stop` or `terminate` is called elsewhere; with `until_end` also when every publisher has closed and
    everything is delivered. Raises the error that ended it; SilentPublisherError after `silence_timeout` seconds
    without a message in a slice; SystemExit(143) after SIGTERM, (129) after SIGHUP; KeyboardInterrupt after SIGINT
    during the start. `timeout` is `start`'s.
    """
    supervisor = share.supervisor
    supervisor.check_process()
    terminate = partial(share.request_end, at_once=True)
    with stopping_at_signals(partial(_stop_at_signal, share), terminate) as came:
        if share.state is SubscriberLife.NEW:
            try:
                start(timeout)
            except SubscriberError as error:
                _raise_signal(came)  # it interrupted the start
                if not isinstance(error, EndedEarlyError):
                    raise
        with supervisor.lock:
            supervisor.stop_at_end = (*supervisor.stop_at_end, *[share] * until_end)
        try:
            while not share.wait_ended(TICK_S):
                try:
                    share.check_silence(silence_timeout)
                except SilentPublisherError:
                    share.stop()
                    raise
        finally:
            with supervisor.lock:
                supervisor.stop_at_end = tuple(each for each in supervisor.stop_at_end if each is not share)
    share.raise_failure()
    for number in came - {signal.SIGINT}:
        raise SystemExit(128 + number)


def _stop_at_signal(share: Share, number: int) -> None:
    is_running = share.state is SubscriberLife.RUNNING
    if is_running:
        log.info("%s: stopping", signal.Signals(number).name)
    share.request_end(at_once=not is_running)


def _raise_signal(came: set[int]) -> None:
    """Raise the exception for a signal received during the start, if any."""
    if signal.SIGINT in came:
        raise KeyboardInterrupt from None
    for number in came:
        raise SystemExit(128 + number) from None
