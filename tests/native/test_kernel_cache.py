"""Compiled kernels are cached by everything compiled into them, so that none is stale."""

from __future__ import annotations

import os
import pwd
import re
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from blackbox import Feed, Message, Publisher, Recorder, Recording, Subscriber
from blackbox.feed.endpoint import free_endpoints
from blackbox.native.compile import kernel_cache
from blackbox.native.compile.kernel_cache import digest_of
from blackbox.user_cache import user_cache
from tests.examples import first_of
from tests.support import ROOT, SOURCES, Script

ASK = """
import sys
from blackbox_feeds.made import ask
print(ask(), sum(ask.stats.cache_hits.values()), ask._cache.cache_path, "numba.np.linalg" in sys.modules)
"""
INLINE = """
from blackbox.native.compile.jit import njit
@njit
def twice():
    return 2 * ask()
print(twice())
"""
AGAIN = """
from blackbox.native.compile.jit import njit
import blackbox_feeds.made as made
print(njit(cache=True)(made.ask.py_func)())
"""
MADE = """
from blackbox.native.compile.jit import njit
from blackbox_feeds.between import ANSWER

@njit(cache=True)
def ask():
    return ANSWER

@njit("int64(int64)", cache=True)
def add(number):
    return number + ANSWER
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of feeds with two kernels, which use a constant of another file."""
    place = tmp_path / "blackbox_feeds"
    place.mkdir()
    (place / "__init__.py").touch()
    (place / "constant.py").write_text("ANSWER = 41\n")
    (place / "between.py").write_text("from blackbox_feeds.constant import (\n    ANSWER,\n)\n")
    (place / "unrelated.py").write_text("OTHER = 1\n")
    (place / "made.py").write_text(MADE)
    return place


def ask(package: Path, code: str = ASK, **environment: str) -> list[str]:
    """Return the output of a new process: the kernel's result, its cache hits, the cache, and if a compiler loaded."""
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        # Python would use byte code of a source that was changed within a second to one of the same size.
        env=os.environ
        | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(package.parent / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        | environment,
    ).stdout.split()


def test_a_kernel_is_cached_until_its_constants_change_or_its_file_is_truncated(package: Path, tmp_path: Path) -> None:
    answer, is_cached, _, loaded = ask(package)
    assert (answer, is_cached, loaded) == ("41", "0", "True")
    (package / "unrelated.py").write_text("OTHER = 2\n")
    answer, is_cached, _, loaded, twice = ask(package, ASK + INLINE)
    assert (answer, is_cached) == ("41", "1"), "a file that is not imported has changed"
    assert (loaded, twice) == ("False", "82"), "a cached kernel loads without the compiler and is inlined later"
    (package / "constant.py").write_text("ANSWER = 42\n")
    answer, is_cached, place, _ = ask(package)
    assert (answer, is_cached) == ("42", "0")
    (kept,) = Path(place).glob("*ask*.nbc")
    kept.write_bytes(kept.read_bytes()[:100])
    assert ask(package)[:2] == ["42", "0"]
    moved = tmp_path / "elsewhere" / "blackbox_feeds"
    moved.parent.mkdir()
    package.rename(moved)
    assert ask(moved, XDG_CACHE_HOME=str(tmp_path / "cache"))[:2] == ["42", "1"], "a copy of the sources"


@pytest.mark.long
def test_the_cache_keeps_a_bounded_number_of_versions(package: Path) -> None:
    places = []
    for answer in range(10):
        (package / "constant.py").write_text(f"ANSWER = {answer}\n")
        places.append(Path(ask(package)[2]))
    assert len(set(places)) == 10
    assert len([place for place in places if place.exists()]) == 8
    assert places[-1].exists()


def published_recorded_replayed(directory: Path) -> int:
    """Return how many messages were delivered."""
    feed, got = Feed.local("cached"), list[Message]()
    recorder = Recorder(feed, directory)
    live, replayed = Subscriber(feed), Subscriber(feed)
    for subscriber in (live, replayed):
        subscriber.on(b"")(got.append)
    with Publisher(feed, when_full="wait") as publisher:
        live.start()
        recorder.start()
        publisher.publish(b"A", b"1")
    live.run(until_end=True)
    recorder.run(until_end=True)
    replayed.replay(Recording.open(next(directory.glob("*/*/manifest.json")).parent))
    return len(got)


def test_a_process_with_a_full_cache_compiles_nothing(tmp_path: Path) -> None:
    published_recorded_replayed(tmp_path / "here")
    code = f"""
        from pathlib import Path
        from numba.core import event
        from tests.native.test_kernel_cache import published_recorded_replayed
        from tests.patience import be_patient
        be_patient()
        with event.install_recorder("numba:compile") as compiled:
            print(published_recorded_replayed(Path({str(tmp_path)!r}, "there")))
        print([each.data["dispatcher"].py_func.__name__ for _, each in compiled.buffer])
    """
    with Script(code) as script:
        assert [script.read(), script.read()] == ["2", "[]"]


def ask_where_nothing_can_be_written(package: Path, **environment: str) -> tuple[list[str], list[str]]:
    """Return the output and the log of a process that cannot write to any file and makes the kernel twice."""
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{ASK}{AGAIN}"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": paths} | environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert done.returncode == 0, done.stderr
    log = [line for line in done.stderr.splitlines() if "compiling functions" not in line]  # logged if that took long
    return done.stdout.split(), log


@pytest.mark.parametrize("where", first_of(["XDG_CACHE_HOME", "HOME", "NUMBA_CACHE_DIR"]))
def test_an_unwritable_cache_is_skipped_and_logged_once(package: Path, tmp_path: Path, where: str) -> None:
    """A file takes the directory's name, so that not even root can make it."""
    (tmp_path / "file").touch()
    found, (line,) = ask_where_nothing_can_be_written(package, **{where: str(tmp_path / "file")})
    answer, is_cached, place, _, again = found
    assert (answer, is_cached, again) == ("41", "0", "41")
    assert place.startswith(str(tmp_path / "file"))
    assert "compiled kernels are not cached" in line
    assert "set XDG_CACHE_HOME to a writable directory" in line


@pytest.mark.long
def test_a_full_disk_caches_no_kernel_and_a_complete_cache_needs_no_writing(package: Path, tmp_path: Path) -> None:
    found, (line,) = ask_where_nothing_can_be_written(package, XDG_CACHE_HOME=str(tmp_path / "new"))
    assert (found[0], found[1], found[4]) == ("41", "0", "41")
    assert re.search("compiled kernels are not cached.*File too large", line)
    assert ask(package)[:2] == ["41", "0"]
    found, log = ask_where_nothing_can_be_written(package, XDG_CACHE_HOME=str(package.parent / "cache"))
    assert (found[:2], log) == (["41", "1"], []), "as in a container image"


@pytest.mark.long
def test_numbas_own_caches_are_not_used_except_a_directory_that_was_set(package: Path, tmp_path: Path) -> None:
    """The cache next to the sources ignores constants of other files."""
    (tmp_path / "file").touch()
    for answer in ("41", "42"):
        (package / "constant.py").write_text(f"ANSWER = {answer}\n")
        assert ask(package, XDG_CACHE_HOME=str(tmp_path / "file"))[:2] == [answer, "0"]
    assert not list(package.rglob("*.nbi"))
    place = Path(ask(package, NUMBA_CACHE_DIR=str(tmp_path / "numba"))[2])
    assert place.is_relative_to(tmp_path / "numba" / "kernels")


def test_a_user_without_a_home_uses_the_cache_of_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError("no entry")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert user_cache() == Path("/.cache/blackbox")
    monkeypatch.setenv("HOME", "/")
    assert user_cache() == Path("/.cache/blackbox")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/desk")
    assert user_cache() == Path("/var/cache/desk/blackbox")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ports = {endpoint for _ in range(20) for (endpoint,) in free_endpoints("tcp", "unkept", 2, 1)}
    assert len(ports) > 20, "the file of used ports may have no directory"


ASK_LATER = """
import sys
sys.path.insert(0, {path!r})
from blackbox_feeds.made import ask
print("ready", flush=True)
input()
print(ask(), sum(ask.stats.cache_misses.values()))
"""


def test_processes_that_need_the_same_kernel_compile_it_once(package: Path) -> None:
    code = ASK_LATER.format(path=str(package.parent))
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_CACHE_HOME", str(package.parent / "cache"))
        scripts = [stack.enter_context(Script(code)) for _ in range(2)]
        for script in scripts:
            script.expect("ready")
        for script in scripts:
            script.tell("go")
        assert sorted(script.read() for script in scripts) == ["41 0", "41 1"]


HOLD = """
import fcntl, sys
with open({path!r}, "ab") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    input()
"""


def test_a_stopped_compiling_process_does_not_block_others_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_cache, "_PATIENCE_S", 0.2)
    lock = tmp_path / "kernel.lock"
    with Script(HOLD.format(path=str(lock))) as holder:
        holder.expect("held")
        holder.suspend()
        began = time.monotonic()
        with kernel_cache.held_by_one_process(lock):
            assert time.monotonic() - began >= 0.2


def test_a_digest_covers_the_sources_of_imports_and_kernels_use_our_njit() -> None:
    assert digest_of("blackbox.block.form.encode") != digest_of("blackbox.block.form.format")
    assert re.fullmatch("[0-9a-f]{16}", digest_of("blackbox.block.form.encode"))
    numbas = re.compile(r"^from numba import .*\bnjit\b", re.MULTILINE)
    assert [path for path in SOURCES if path.name != "jit.py" and numbas.search(path.read_text())] == []
