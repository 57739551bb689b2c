"""The jar of the connector, built once, and a failed build."""

from __future__ import annotations

import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blackbox import ConfigError
from blackbox.analysis.spark import jar
from blackbox.analysis.spark.jar import SOURCES, connector_jar


@pytest.mark.long
def test_concurrent_builds_leave_one_complete_jar_and_no_draft(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:  # two compilers
        (made,) = set(pool.map(lambda _: connector_jar(cache=tmp_path), range(2)))
    assert list(tmp_path.iterdir()) == [made]
    assert zipfile.ZipFile(made).testzip() is None
    written = made.stat().st_mtime_ns
    assert connector_jar(cache=tmp_path) == made
    assert made.stat().st_mtime_ns == written


def test_a_java_that_cannot_compile_it_is_named(tmp_path: Path) -> None:
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match=f"did not compile with {java}: no such luck"):
        connector_jar(tmp_path / "home", tmp_path / "cache")


def test_the_jar_of_a_wheel_is_used_for_its_version_of_spark_and_its_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    installed = tmp_path / "connector"
    shutil.copytree(SOURCES, installed)
    monkeypatch.setattr(jar, "SOURCES", installed)
    monkeypatch.setattr(jar, "_COMPILE", installed / "Compile.java")
    monkeypatch.setattr(jar, "_compile", lambda *_: pytest.fail("compiled"))
    sources = sorted(path for path in installed.glob("*.java") if path.name != "Compile.java")
    digest = jar._digest([*sources, installed / "Compile.java"], jar._spark().name)
    packed = installed / f"blackbox-spark-{digest}.jar"
    packed.touch()
    assert connector_jar() == packed
    (installed / "Xxh3.java").write_text("// other sources")
    with pytest.raises(pytest.fail.Exception, match="compiled"):
        connector_jar(tmp_path)
