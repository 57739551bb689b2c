"""The same job on a standalone cluster of this machine, by spark-submit and by Spark Connect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from blackbox_feeds.iex import Iex

from blackbox import Recording
from tests.recorded import AS_SENT, record
from tests.spark.cluster import HOME, HOST, Daemon, cluster, environment, free_port
from tests.support import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

JOB: Final = ROOT / "tests" / "spark" / "cluster_job.py"
SUBMIT: Final = HOME / "bin" / "spark-submit"
TOPS: Final = "iex/goiex_TOPS16.pcapng.gz"
SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "640m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Otherwise one executor may finish all tasks before the other has registered.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.cores.max": "2",
    # The job's driver also serves clients of Spark Connect.
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
}


@pytest.fixture
def feed(tmp_path: Path, shared_data: Path) -> Path:
    return record(tmp_path / "recordings", "tops", lambda: Iex(shared_data / TOPS))


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def submitted(tmp_path: Path, feed: Path, port: int) -> Iterator[dict[str, Any]]:
    """Return the job's output; its application keeps running as a Spark Connect server at `port`."""
    settings = SETTINGS | {"spark.connect.grpc.binding.address": HOST, "spark.connect.grpc.binding.port": port}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with (
        cluster(tmp_path) as master,
        Daemon(tmp_path / "submitted.log", r"(?m)^(\{.*\})$", SUBMIT, "--master", master, *words, JOB, feed) as said,
    ):
        yield json.loads(said)


def check(said: dict[str, Any], feed: Path, client: str) -> None:
    (day,) = feed.glob("*-*-*")
    trades = Recording.open(day).to_pandas(message_type="T", **AS_SENT)
    seconds = trades.groupby([trades["symbol"], trades["ts_event"] // 10**9], observed=True).ngroups
    high = f"{trades['price'].max() / 10_000:.4f}"
    assert (said["bars"], said["trades"], said["high"]) == (seconds, 6_390, high)
    assert said["volume"] == trades["size"].sum()
    assert said["client"] == client


def logged(place: Path, text: str) -> list[int]:
    """Return for each worker how often its executors have logged a text."""
    logs = [list((place / f"worker-{worker}").glob("app-*/*/stderr")) for worker in range(2)]
    return [sum(log.read_text().count(text) for log in each) for each in logs]


def test_job_runs_on_both_workers_by_spark_submit_and_by_spark_connect(
    submitted: dict[str, Any], tmp_path: Path, feed: Path, port: int
) -> None:
    check(submitted, feed, "pyspark.sql.session")
    before = logged(tmp_path, "INFO Executor: Finished task")
    assert all(before)
    assert submitted["first"] == 3
    assert logged(tmp_path, "BrokenPipe") == [0, 0], "of a query of the first rows"
    ran = subprocess.run(
        [sys.executable, JOB, feed],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        env=environment() | {"SPARK_REMOTE": f"sc://{HOST}:{port}"},
    )
    assert ran.returncode == 0, ran.stderr
    check(json.loads(ran.stdout), feed, "pyspark.sql.connect.session")
    assert sum(logged(tmp_path, "INFO Executor: Finished task")) > sum(before)
