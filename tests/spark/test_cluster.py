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


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    return record(tmp_path_factory.mktemp("recordings"), "tops", lambda: Iex(shared_data / TOPS))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(place: Path) -> Iterator[str]:
    with cluster(place) as url:
        yield url


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def submitted(master: str, place: Path, feed: Path, port: int) -> Iterator[dict[str, Any]]:
    """Return the job's output; its application keeps running as a Spark Connect server at `port`."""
    settings = SETTINGS | {"spark.connect.grpc.binding.address": HOST, "spark.connect.grpc.binding.port": port}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with Daemon(place / "submitted.log", r"(?m)^(\{.*\})$", SUBMIT, "--master", master, *words, JOB, feed) as said:
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


def finished_tasks(place: Path) -> list[int]:
    """Return the number of tasks that the executors of each worker have finished."""
    return logged(place, "INFO Executor: Finished task")


def test_job_by_spark_submit_runs_on_both_workers(submitted: dict[str, Any], place: Path, feed: Path) -> None:
    check(submitted, feed, "pyspark.sql.session")
    assert all(finished_tasks(place))


def test_a_query_of_the_first_rows_leaves_no_broken_pipe_in_the_logs(submitted: dict[str, Any], place: Path) -> None:
    assert submitted["first"] == 3
    assert sum(finished_tasks(place)) > 0
    assert logged(place, "BrokenPipe") == [0, 0]


def test_job_by_spark_connect_runs_on_the_cluster(
    submitted: dict[str, Any], place: Path, feed: Path, port: int
) -> None:
    before = finished_tasks(place)
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
    assert sum(finished_tasks(place)) > sum(before)
