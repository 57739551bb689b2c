"""Exit statuses, and their mapping from errors and signals."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType
from typing import Final, NoReturn

import typer

from blackbox.cli.interrupts import TEXT, raised
from blackbox.cli.ui.log import Level, is_shown
from blackbox.cli.ui.terminal import drop_output, say
from blackbox.errors import BlackBoxError, LimitError, SlowSubscriberError
from blackbox.native.system.limits import LOAD_NEEDS, MEMORY, check_limits
from blackbox.receive.supervise.stop_signals import stop_signals


class Status(IntEnum):
    """The exit statuses of all commands. `operations` in the docs lists remedies."""

    OK = 0
    ERROR = 1
    """An error; one line on stderr describes it."""
    USAGE = 2
    """The command line was wrong; nothing was opened."""
    SLOW = 3
    """The subscriber was too slow and ended itself."""
    LOST = 4
    """Messages were lost: gaps in what was received, or messages that no subscriber took in time."""
    INTERRUPTED = 130
    """Ctrl-C. SIGTERM gives 143, SIGHUP 129."""


STATUS_HELP = (
    "Exit status: 0 fine, 1 error (one line on stderr), 2 wrong usage, 3 the subscriber was too slow and ended itself, "
    "4 messages were lost, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM."
)


_TEXTS: Final = {signal.SIGINT: TEXT, signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class _Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP; ends a command like Ctrl-C."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def exit_statuses() -> Iterator[None]:
    """Turn an error or a signal into an exit status, and an error into one line on stderr.

    System errors, such as a full disk for output, count as errors; a closed output pipe does not. SIGTERM and SIGHUP
    act as Ctrl-C.
    """
    before = {number: signal.signal(number, _terminate) for number in stop_signals() if number != signal.SIGINT}
    try:
        check_limits("blackbox", LOAD_NEEDS)  # before a command's imports, which would report a missing module
        import numba  # noqa: F401 - Ctrl-C ends the process here; within a later import it becomes an ImportError

        with raised():
            yield
        sys.stdout.flush()
    except SlowSubscriberError as error:
        _fail(error, Status.SLOW)
    except BlackBoxError as error:
        _fail(error, Status.ERROR)
    except MemoryError as error:
        _fail(_out_of_memory(error), Status.ERROR)
    except BrokenPipeError:
        drop_output(sys.stdout)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            _fail(LimitError(f"{error} (RLIMIT_NOFILE, ulimit -n)"), Status.ERROR)
        if error.errno == errno.ENOMEM:
            _fail(_out_of_memory(error), Status.ERROR)
        drop_output(sys.stdout)
        _fail(BlackBoxError(f"{error.filename or 'output'}: {error.strerror or error}"), Status.ERROR)
    except _Terminated as came:
        with suppress(OSError):  # the terminal may be closed
            say(_TEXTS[signal.Signals(came.number)])
        if came.number == signal.SIGHUP:
            drop_output(sys.stdout, sys.stderr)
        raise typer.Exit(128 + came.number) from None
    except KeyboardInterrupt:
        say(TEXT)
        raise typer.Exit(Status.INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_at_once(*cleanups: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP call `cleanups` and end the process, although other threads run.

    Use it within `exit_statuses`. A second signal ends the process without waiting for them.
    """
    try:
        yield
    except KeyboardInterrupt as came:  # raised by the signal's handler, so that no lock of the console is held here
        number = came.number if isinstance(came, _Terminated) else signal.SIGINT
        try:
            with suppress(OSError):  # the terminal may be closed
                for clean in cleanups:
                    clean()
                say(_TEXTS[signal.Signals(number)])
        finally:
            os._exit(128 + number)


def _out_of_memory(error: Exception) -> LimitError:
    return LimitError(f"out of memory: {error} ({MEMORY})")


def lose(text: str) -> NoReturn:
    """Print a description of lost messages, and exit with `Status.LOST`."""
    say(text, Level.ERROR, before="lost: ")
    raise typer.Exit(Status.LOST)


def warn(text: str) -> None:
    """Print a warning if the log level shows warnings, and continue."""
    if is_shown(Level.WARNING):
        say(text, Level.WARNING, before="warning: ")


def _fail(error: BlackBoxError, status: Status) -> NoReturn:
    lines = str(error).strip().splitlines() or [
        type(error).__name__
    ]  # an error of another process is a whole traceback
    say(lines[-1], Level.ERROR, before="error: ")
    raise typer.Exit(status) from error


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated(number)
