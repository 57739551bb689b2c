"""Exit statuses, and how errors and signals become one."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType
from typing import NoReturn

import typer

from blackbox.cli.interrupts import TEXT, raised
from blackbox.cli.ui.terminal import say
from blackbox.errors import BlackBoxError, LimitError, SlowSubscriberError
from blackbox.native.limits import LOAD_NEEDS, MEMORY, check_limits


class Status(IntEnum):
    """The exit statuses of all commands. `docs/operations.md` says what to do about each."""

    OK = 0
    ERROR = 1
    """Something failed; one line on stderr says what."""
    USAGE = 2
    """The command line was wrong; nothing was opened."""
    SLOW = 3
    """The subscriber was too slow and ended itself."""
    LOST = 4
    """Messages were lost: gaps in what was received, or messages that no subscriber took in time."""
    INTERRUPTED = 130
    """Ctrl-C. SIGTERM gives 143."""


STATUS_HELP = (
    "Exit status: 0 fine, 1 error (one line on stderr), 2 wrong usage, 3 the subscriber was too slow and ended itself, "
    "4 messages were lost, 130 Ctrl-C, 143 SIGTERM."
)


class _Terminated(KeyboardInterrupt):
    """SIGTERM ends a command as Ctrl-C does."""


@contextmanager
def exit_statuses() -> Iterator[None]:
    """Turn an error or a signal into an exit status, and an error into one line on stderr. SIGTERM acts as Ctrl-C.

    So does what the system refuses, such as output to a full disk; whoever closes a pipe has seen enough.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        check_limits("blackbox", LOAD_NEEDS)  # before a command's imports, which would say that a module is not there
        import numba  # noqa: F401 - here Ctrl-C ends the process; raised in the midst of it, it becomes an ImportError

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
        _drop_output()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            _fail(LimitError(f"{error} (RLIMIT_NOFILE, ulimit -n)"), Status.ERROR)
        if error.errno == errno.ENOMEM:
            _fail(_out_of_memory(error), Status.ERROR)
        _drop_output()
        _fail(BlackBoxError(f"{error.filename or 'output'}: {error.strerror or error}"), Status.ERROR)
    except _Terminated:
        say("terminated")
        raise typer.Exit(128 + signal.SIGTERM) from None
    except KeyboardInterrupt:
        say(TEXT)
        raise typer.Exit(Status.INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _out_of_memory(error: Exception) -> LimitError:
    return LimitError(f"out of memory: {error} ({MEMORY})")


def _drop_output() -> None:
    """Drop what is in the buffer of stdout, or Python would try to write it again at the exit."""
    with suppress(OSError):  # it has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def lose(text: str) -> NoReturn:
    """Print what was lost, and exit with `Status.LOST`."""
    say(f"lost: {text}", "bold red")
    raise typer.Exit(Status.LOST)


def warn(text: str) -> None:
    """Print a warning and continue."""
    say(f"warning: {text}", "yellow")


def _fail(error: BlackBoxError, status: Status) -> NoReturn:
    lines = str(error).strip().splitlines() or [
        type(error).__name__
    ]  # the error of another process is a whole traceback
    say(f"error: {lines[-1]}", "bold red")
    raise typer.Exit(status) from error


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated
