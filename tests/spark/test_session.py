"""Spark sessions for recordings."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import blackbox.analysis.spark
from blackbox.analysis.spark.jar import connector_jar, install
from blackbox.analysis.spark.session import PUSHDOWN
from tests.journals import Day, Put, Row, feed_of
from tests.spark.reading import load


def test_session_is_set_up_with_the_jars_of_the_user_and_the_connector(spark: SparkSession, own_jar: Path) -> None:
    settings = dict(spark.sparkContext.getConf().getAll())
    assert settings["spark.master"] == "local[2]"
    assert settings["spark.app.name"] == "blackbox"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.driver.host"] in ("localhost", "127.0.0.1")
    assert settings["spark.ui.enabled"] == "false"
    assert spark.conf.get(PUSHDOWN) == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    install(spark)  # changes nothing
    jars = sorted(row[0].rpartition("/")[2] for row in spark.sql("LIST JARS").collect())
    assert jars == sorted([own_jar.name, connector_jar().name])
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    assert {bean.getName() for bean in beans} == {"PS MarkSweep", "PS Scavenge"}


def count(spark: SparkSession, path: Path) -> int:
    return load(spark, path, "java").count()


def test_the_connector_is_available_in_every_thread_and_session(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A.t", b"one"),)))
    with ThreadPoolExecutor(1) as other:  # a thread of Java, too
        for each in (spark, spark.newSession()):
            assert other.submit(count, each, day.path).result(200) == 1


def test_existing_session_is_kept_and_its_pushdown_switched_on(spark: SparkSession) -> None:
    spark.conf.set(PUSHDOWN, "false")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        again = blackbox.analysis.spark.session("local[7]", conf={"spark.sql.ansi.enabled": False})
        assert again.sparkContext is spark.sparkContext
        assert again.conf.get(PUSHDOWN) == "true"
        assert again.conf.get("spark.sql.ansi.enabled") == "false"
        assert again.conf.get("spark.sql.session.timeZone") == "America/New_York"
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_missing_pyspark_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ImportError, match=r"this needs pyspark: pip install 'blackbox-md\[spark\]'"):
        blackbox.analysis.spark.session()
