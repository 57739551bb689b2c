"""The jar of the connector, built once, and a failed build."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blackbox import ConfigError
from blackbox.analysis.spark.jar import connector_jar


def test_concurrent_builds_leave_one_complete_jar_and_no_draft(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:  # two compilers
        (jar,) = set(pool.map(lambda _: connector_jar(cache=tmp_path), range(2)))
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
