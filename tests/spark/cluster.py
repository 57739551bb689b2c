"""A Spark cluster on this machine: daemons in separate processes, all ended at exit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark

from blackbox.analysis.spark.java import find_java
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.support import ROOT

HOST: Final = "127.0.0.1"
HOME: Final = Path(pyspark.__file__).parent
SPARK_CLASS: Final = HOME / "bin" / "spark-class"
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_START_S: Final = 90.0
_END_S: Final = 15.0


def environment() -> dict[str, str]:
    """Return the environment of Spark's scripts and daemons: pip's Spark, this Python, a Java, and one address."""
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": str(find_java()),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "640m",
        # Each Java runs for seconds only, and would spend most of them on compilation.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }


def free_port() -> int:
    """Return a port that is free now."""
    return int(free_endpoints("tcp", "spark", 1, 1)[0][0].rpartition(":")[2])


class Daemon:
    """A process that logs when it is ready. Entering the context waits for that; leaving it ends all its processes.

    Its standard input stays open until the context is left.
    """

    def __init__(self, log: Path, pattern: str, *words: object) -> None:
        """Start `words`; the context returns the text that the group of `pattern` matches in the log."""
        self._log, self._pattern = log, pattern
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environment(),
                start_new_session=True,
            )

    def __enter__(self) -> str:
        try:
            wait_until(lambda: self._found() is not None or self._process.poll() is not None, _START_S)
            found = self._found()
            assert found is not None, self._log.read_text()
        except BaseException:
            self.__exit__()
            raise
        return found

    def _found(self) -> str | None:
        match = re.search(self._pattern, self._log.read_text(errors="replace"))
        return None if match is None else match[1]

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):  # the whole group is gone
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)


@contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """Run a standalone master and workers of one core each; yield the master's URL."""
    anywhere = ("--host", HOST, "--port", 0, "--webui-port", 0)
    with ExitStack() as stack:
        master = Daemon(
            directory / "master.log", r"Starting Spark master at (spark://\S+)", SPARK_CLASS, MASTER, *anywhere
        )
        url = stack.enter_context(master)
        room = "--cores", 1, "--memory", "768m"
        daemons = [
            Daemon(
                directory / f"worker-{number}.log",
                "(Successfully registered with master)",
                *(SPARK_CLASS, WORKER, *anywhere, *room, "--work-dir", directory / f"worker-{number}", url),
            )
            for number in range(workers)
        ]
        for daemon in daemons:
            stack.push(daemon)
        for daemon in daemons:
            daemon.__enter__()
        yield url
