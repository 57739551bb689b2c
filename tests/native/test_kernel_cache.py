"""Compiled kernels are cached by all that is compiled into them, so that none is stale."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from blackbox.native import kernel_cache
from blackbox.native.kernel_cache import digest_of
from tests.support import Script

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*sorted((ROOT / "blackbox").rglob("*.py")), *sorted((ROOT / "feeds").rglob("*.py"))]

ASK = """
from blackbox_feeds.made import ask
from numba.core.dispatcher import Dispatcher
print(ask(), sum(ask.stats.cache_hits.values()), ask._cache.cache_path)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of feeds with one kernel, and a constant of another file in it."""
    place = tmp_path / "blackbox_feeds"
    place.mkdir()
    (place / "__init__.py").touch()
    (place / "constant.py").write_text("ANSWER = 41\n")
    (place / "between.py").write_text("from blackbox_feeds.constant import (\n    ANSWER,\n)\n")
    (place / "unrelated.py").write_text("OTHER = 1\n")
    (place / "made.py").write_text(
        "from blackbox.native.jit import njit\nfrom blackbox_feeds.between import ANSWER\n\n\n"
        "@njit(cache=True)\ndef ask():\n    return ANSWER\n"
    )
    return place


def ask(package: Path, **environment: str) -> tuple[int, bool, Path]:
    """Return what the kernel says in a new process, whether it came from the cache, and where that is."""
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    told = subprocess.run(
        [sys.executable, "-c", ASK],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(package.parent / "cache")} | environment,
    ).stdout.split()
    return int(told[0]), told[1] == "1", Path(told[2])


def test_a_constant_that_changes_in_another_file_is_not_answered_from_the_cache(package: Path) -> None:
    assert ask(package)[:2] == (41, False)
    assert ask(package)[:2] == (41, True)
    (package / "constant.py").write_text("ANSWER = 42\n")
    assert ask(package)[:2] == (42, False)


def test_a_change_in_a_file_that_is_not_imported_keeps_the_cache(package: Path) -> None:
    ask(package)
    (package / "unrelated.py").write_text("OTHER = 2\n")
    assert ask(package)[1]


def test_another_place_with_the_same_sources_shares_the_cache(package: Path, tmp_path: Path) -> None:
    ask(package)
    moved = tmp_path / "elsewhere" / "blackbox_feeds"
    moved.parent.mkdir()
    package.rename(moved)
    assert ask(moved, XDG_CACHE_HOME=str(tmp_path / "cache"))[1]


@pytest.mark.long
def test_the_cache_keeps_a_bounded_number_of_versions(package: Path) -> None:
    places = []
    for answer in range(10):
        (package / "constant.py").write_text(f"ANSWER = {answer}\n")
        places.append(ask(package)[2])
    assert len(set(places)) == 10
    assert len([place for place in places if place.exists()]) == 8
    assert places[-1].exists()


CALL_TWICE = """
import sys
from blackbox_feeds.made import ask
from blackbox.native.jit import njit
answer = ask()
loaded = "numba.np.linalg" in sys.modules
@njit
def twice():
    return 2 * ask()
print(answer, loaded, twice(), "numba.np.linalg" in sys.modules)
"""


def test_a_cached_kernel_is_loaded_without_the_compiler_and_inlined_in_what_is_compiled_later(package: Path) -> None:
    def call_twice() -> str:
        paths = os.pathsep.join([str(package.parent), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(package.parent / "cache")}
        command = [sys.executable, "-c", CALL_TWICE]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    assert call_twice() == "41 True 82 True"
    assert call_twice() == "41 False 82 True"


def test_numbas_own_directory_is_used_where_it_is_set(package: Path, tmp_path: Path) -> None:
    place = ask(package, NUMBA_CACHE_DIR=str(tmp_path / "numba"))[2]
    assert place.is_relative_to(tmp_path / "numba" / "kernels")


def test_a_cache_that_cannot_be_written_is_done_without(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer, _, place = ask(package, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert answer == 41
    assert not place.is_relative_to(tmp_path / "file")


ASK_WHEN_TOLD = """
import sys
sys.path.insert(0, {path!r})
from blackbox_feeds.made import ask
print("ready", flush=True)
input()
print(ask(), sum(ask.stats.cache_misses.values()))
"""


def test_processes_that_need_a_kernel_at_a_time_compile_it_once(package: Path) -> None:
    code = ASK_WHEN_TOLD.format(path=str(package.parent))
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_CACHE_HOME", str(package.parent / "cache"))
        scripts = [stack.enter_context(Script(code)) for _ in range(4)]
        for script in scripts:
            script.expect("ready")
        for script in scripts:
            script.tell("go")
        assert sorted(script.read() for script in scripts) == ["41 0", "41 0", "41 0", "41 1"]


HOLD = """
import fcntl, sys
with open({path!r}, "ab") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    input()
"""


def test_a_process_that_stopped_as_it_compiled_does_not_hold_others_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_cache, "_PATIENCE_S", 0.2)
    lock = tmp_path / "kernel.lock"
    with Script(HOLD.format(path=str(lock))) as holder:
        holder.expect("held")
        holder.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with kernel_cache.held_by_one_process(lock):
            assert time.monotonic() - began >= 0.2


def test_a_digest_stands_for_the_sources_of_imports_too() -> None:
    assert digest_of("blackbox.block.encode") != digest_of("blackbox.block.format")
    assert re.fullmatch("[0-9a-f]{16}", digest_of("blackbox.block.encode"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_kernels_are_made_with_our_njit(path: Path) -> None:
    if path.name != "jit.py":
        assert not re.search(r"^from numba import .*\bnjit\b", path.read_text(), re.MULTILINE)
