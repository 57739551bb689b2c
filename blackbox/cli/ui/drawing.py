"""Compute a page of a recorded day in Spark, draw it, and write it."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec
from rich.console import Console

from blackbox.cli.ui.status import warn
from blackbox.cli.ui.terminal import stderr
from blackbox.errors import BlackBoxError, ConfigError

if TYPE_CHECKING:
    from blackbox.analysis.report.day_report import DayReport

_SETTINGS: Final = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.log.level": "ERROR"}
"""Settings of a Spark started here; a server has its own."""


def draw(
    recording: Path,
    page: Path,
    symbols: Sequence[str] = (),
    top: int = 3,
    master: str | None = None,
    name: str | None = None,
    broken: bool = False,
) -> DayReport:
    """Write the page and return its figures; it shows `name` instead of the recording's path.

    `broken`: True to include trades that the venue cancelled.

    Raises:
        ConfigError: Spark is not installed, or a symbol is not in the day.
        JournalError: the recording does not exist, or the page cannot be written.
        BlackBoxError: Spark could not be started, or failed.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from blackbox.analysis.spark.session import remote_of, session
    except ImportError as error:
        raise ConfigError(f"this needs pyspark: pip install 'blackbox-md[spark]' ({error})") from error
    with tempfile.TemporaryFile() as said:
        try:
            with (
                warnings.catch_warnings(record=True, action="always", category=RuntimeWarning) as warned,
                _told_to(said) as console,
                console.status("starting Spark"),
            ):
                spark = session(master, "blackbox analyse", _SETTINGS if remote_of(master) is None else None)
            for warning in warned:
                warn(str(warning.message))
            from blackbox.analysis.measure_day import measure_day
            from blackbox.analysis.report.page import page as page_of

            with stderr.status("reading") as shown:
                report = measure_day(spark, recording, symbols, top, shown.update, broken)
        except (PySparkException, Py4JError) as error:
            said.seek(0)
            why = [str(error).strip().partition("\n")[0], *said.read().decode(errors="replace").splitlines()[-1:]]
            raise BlackBoxError(f"Spark failed: {'; its output: '.join(why)}") from error
    _write(page, page_of(report if name is None else msgspec.structs.replace(report, recording=name)))
    return report


@contextmanager
def _told_to(file: IO[bytes]) -> Iterator[Console]:
    """Redirect the stderr of processes started meanwhile to a file, permanently. Yield a console for the real stderr.

    Java and Spark print a screenful at the start, and idle workers end with a traceback.
    """
    sys.stderr.flush()
    own = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        with os.fdopen(os.dup(own), "w") as screen:
            yield Console(file=screen)
    finally:
        os.dup2(own, 2)
        os.close(own)


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        from blackbox.archive.files.day import as_journal_error

        raise as_journal_error(error, f"{path} cannot be written") from error
