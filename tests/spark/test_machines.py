"""The source in separate processes: on a machine without Java, and in a session that the user created."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journals import Day, Put, Row, feed_of
from tests.support import ROOT

READ = """
frame = spark.read.format("blackbox").load(sys.argv[1])
row = frame.where("symbol = 'A1'").selectExpr("count(*) AS n", "sum(ts_event) AS t").collect()[0]
version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
metrics = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0).metrics()
engine = "java" if metrics.contains("blocksRead") else "python"
pushdown = spark.conf.get("spark.sql.python.filterPushdown.enabled")
print("read", row["n"], row["t"], version.partition(".")[0], pushdown, engine)
spark.stop()
"""


def run(script: str, day: Path, **environment: str) -> str:
    """Run a script with a minimal environment and return its last line of output."""
    names = ("HOME", "LANG", "PYTHONPATH", "TMPDIR", "JAVA_TOOL_OPTIONS")
    known = {name: os.environ[name] for name in names if name in os.environ}
    ran = subprocess.run(
        [sys.executable, "-c", script + READ, str(day)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env=known | environment,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip().splitlines()[-1]


@pytest.fixture
def day(tmp_path: Path) -> Path:
    rows = tuple(Row(b"A%d.t" % (k % 3), b"", k) for k in range(30))
    Day(tmp_path / "day", feed_of()).put(0, Put(rows))
    return tmp_path / "day"


@pytest.mark.long
def test_machine_without_java_gets_one_from_pypi(day: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "basename", "cat", "dirname", "env", "ps", "readlink", "rm", "sh", "uname"):
        place = shutil.which(tool)
        assert place is not None
        (tools / tool).symlink_to(place)
    script = """
import shutil, sys
import blackbox.analysis.spark
assert shutil.which("java") is None
spark = blackbox.analysis.spark.session("local[1]", conf={"spark.ui.enabled": False})
"""
    said = run(script, day, PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert said == "read 10 145 21 true java"
    made = sorted(path.name.partition("-")[0] for path in (tmp_path / "cache" / "blackbox").iterdir())
    assert made == ["blackbox", "java"]  # the connector's jar, and the shim


@pytest.mark.long
def test_session_created_by_the_user_finds_the_source(day: Path) -> None:
    script = """
import os, sys
from blackbox.analysis.spark.java import find_java
from pyspark.sql import SparkSession
os.environ["JAVA_HOME"] = str(find_java())
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
"""
    said = run(script, day, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", SPARK_LOCAL_IP="127.0.0.1")
    assert said.split()[:3] == ["read", "10", "145"]
    assert said.endswith(" false python")
