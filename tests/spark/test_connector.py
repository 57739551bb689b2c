"""The connector: its jar, built once and added to sessions; a failed build; and its window into a file."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from blackbox import ConfigError
from blackbox.spark.jar import connector_jar, install
from tests.journals import Day
from tests.spark.reading import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_gets_the_jar_once(spark: SparkSession) -> None:
    def there() -> int:
        return sum(connector_jar().name in row[0] for row in spark.sql("LIST JARS").collect())

    assert there() == 1
    install(spark)
    assert there() == 1


def test_concurrent_builds_leave_one_complete_jar_and_no_draft(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom blackbox.spark.jar import connector_jar\n"
    code += "print(connector_jar(cache=pathlib.Path(sys.argv[1])))"
    makers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)]
    said = {maker.communicate(timeout=120)[0] for maker in makers}
    assert len(said) == 1
    jar = Path(said.pop().decode().strip())
    assert list(tmp_path.iterdir()) == [jar]
    assert zipfile.ZipFile(jar).testzip() is None
    made = jar.stat().st_mtime_ns
    assert connector_jar(cache=tmp_path) == jar
    assert jar.stat().st_mtime_ns == made


def test_a_java_that_cannot_compile_it_is_named(tmp_path: Path) -> None:
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match=f"did not compile with {java}: no such luck"):
        connector_jar(tmp_path / "home", tmp_path / "cache")


def test_window_of_a_file_grows_by_doubling(spark: SparkSession, written: Day) -> None:
    jvm: Any = spark.sparkContext._jvm
    gateway: Any = spark.sparkContext._gateway

    def array(*values: Any) -> Any:
        made = gateway.new_array(jvm.Object, len(values))
        for i, value in enumerate(values):
            made[i] = value
        return made

    table = load(spark, written.path, "java")._jdf.queryExecution().analyzed().collectLeaves().apply(0).table()
    kind = table.getClass().getClassLoader().loadClass("blackbox.Bytes")
    methods = {method.getName(): method for method in kind.getDeclaredMethods()}
    opened = kind.getDeclaredConstructors()[0]
    for each in (opened, *methods.values()):
        each.setAccessible(True)
    small, settings = jvm.java.nio.ByteBuffer.allocateDirect(1_000), jvm.org.apache.hadoop.conf.Configuration()
    window = opened.newInstance(array(str(written.segments[0].path), 0, small, settings))
    sizes = []
    for size in (1_100, 1_200, 1_900, 2_100):
        methods["need"].invoke(window, array(0, size))
        sizes.append(methods["buffer"].invoke(window, array()).capacity())
    methods["close"].invoke(window, array())
    assert sizes == [2_000, 2_000, 2_000, 4_000]
