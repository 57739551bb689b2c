"""The connector's jar: made once, added to sessions, and what happens where it cannot be made."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blackbox import ConfigError
from blackbox.spark.connector import connector_jar, install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_gets_the_jar_once(spark: SparkSession) -> None:
    def there() -> int:
        return sum(connector_jar().name in row[0] for row in spark.sql("LIST JARS").collect())

    assert there() == 1
    install(spark)
    assert there() == 1


def test_two_that_make_the_jar_at_a_time_leave_one_whole_and_no_draft(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom blackbox.spark.connector import connector_jar\n"
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
