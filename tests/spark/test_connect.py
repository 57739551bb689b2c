"""A client of a Spark Connect server on which only our Python package is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journals import Day, Put, Row, feed_of
from tests.spark.cluster import HOST, Daemon, environment, free_port
from tests.support import ROOT

SERVER = ROOT / "tests" / "spark" / "connect_server.py"
CLIENT = ROOT / "tests" / "spark" / "connect_client.py"


@pytest.mark.long
def test_a_client_reads_in_java_and_draws_a_page(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, *(Put((Row(b"A.t", b"", 10**18 + k),), sequence=k, ts_out=10**18, ts_recv=10**18) for k in range(9)))
    port = free_port()
    with Daemon(tmp_path / "server.log", "(?m)^(serving)$", sys.executable, SERVER, port):
        ran = subprocess.run(
            [sys.executable, CLIENT, f"sc://{HOST}:{port}", day.path, tmp_path / "day.html"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(),
        )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["rows"] == 9
    assert f"BatchScan blackbox {day.path}" in said["plan"]
    assert said["refused"] == (
        "conf had spark.executor.memory = 1g, which an existing session cannot change; it was None"
    )
    assert "<title>recorded, 2026-11-20</title>" in (tmp_path / "day.html").read_text()
