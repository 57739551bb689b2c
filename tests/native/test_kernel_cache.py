"""Compiled kernels are cached by everything compiled into them, so that none is stale."""

from __future__ import annotations

import os
import pwd
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from blackbox import Feed, Message, Publisher, Recorder, Recording, Subscriber
from blackbox.feed.endpoint import free_endpoints
from blackbox.native import kernel_cache
from blackbox.native.kernel_cache import digest_of
from blackbox.user_cache import user_cache
from tests.examples import first_of
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
    """A package of feeds with one kernel, which uses a constant of another file."""
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
    """Return a new process's result of the kernel, True if it came from the cache, and the cache's directory."""
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    told = subprocess.run(
        [sys.executable, "-c", ASK],
        check=True,
        capture_output=True,
        text=True,
        # Python would use byte code of a source that was changed within a second to one of the same size.
        env=os.environ
        | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(package.parent / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        | environment,
    ).stdout.split()
    return int(told[0]), told[1] == "1", Path(told[2])


def test_a_changed_constant_in_another_file_invalidates_the_cache(package: Path) -> None:
    assert ask(package)[:2] == (41, False)
    (package / "unrelated.py").write_text("OTHER = 2\n")
    assert ask(package)[:2] == (41, True), "a file that is not imported has changed"
    (package / "constant.py").write_text("ANSWER = 42\n")
    assert ask(package)[:2] == (42, False)


def test_a_copy_of_the_same_sources_shares_the_cache(package: Path, tmp_path: Path) -> None:
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


def test_a_cached_kernel_loads_without_the_compiler_and_inlines_later(package: Path) -> None:
    with (package / "made.py").open("a") as file:
        file.write('\n\n@njit("int64(int64)", cache=True)\ndef add(number):\n    return number + ANSWER\n')

    def call_twice() -> str:
        paths = os.pathsep.join([str(package.parent), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(package.parent / "cache")}
        command = [sys.executable, "-c", CALL_TWICE]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    assert call_twice() == "41 True 82 True"
    assert call_twice() == "41 False 82 True"


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
        with event.install_recorder("numba:compile") as compiled:
            print(published_recorded_replayed(Path({str(tmp_path)!r}, "there")))
        print([each.data["dispatcher"].py_func.__name__ for _, each in compiled.buffer])
    """
    with Script(code) as script:
        assert [script.read(), script.read()] == ["2", "[]"]


@pytest.mark.long
def test_numbas_own_directory_is_used_if_set(package: Path, tmp_path: Path) -> None:
    place = ask(package, NUMBA_CACHE_DIR=str(tmp_path / "numba"))[2]
    assert place.is_relative_to(tmp_path / "numba" / "kernels")


ASK_TWO = (
    ASK
    + """
from blackbox.native.jit import njit
import blackbox_feeds.made as made
print(njit(cache=True)(made.ask.py_func)())
"""
)


def ask_where_nothing_can_be_written(package: Path, **environment: str) -> tuple[list[str], str]:
    """Return the output and the log of a process that cannot write to any file."""
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{ASK_TWO}"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": paths} | environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert done.returncode == 0, done.stderr
    log = [line for line in done.stderr.splitlines() if "compiling functions" not in line]  # logged if that took long
    return done.stdout.split(), "\n".join(log)


@pytest.mark.parametrize("where", first_of(["XDG_CACHE_HOME", "HOME", "NUMBA_CACHE_DIR"]))
def test_an_unwritable_cache_is_skipped_and_logged_once(package: Path, tmp_path: Path, where: str) -> None:
    """A file takes the directory's name, so that not even root can make it."""
    (tmp_path / "file").touch()
    (answer, is_cached, place, again), log = ask_where_nothing_can_be_written(
        package, **{where: str(tmp_path / "file")}
    )
    assert (answer, is_cached, again) == ("41", "0", "41")
    assert place.startswith(str(tmp_path / "file"))
    assert log.count("compiled kernels are not cached") == 1
    assert "set XDG_CACHE_HOME to a writable directory" in log
    assert len(log.splitlines()) == 1


@pytest.mark.long
def test_a_full_disk_caches_no_kernel_and_fails_nothing(package: Path, tmp_path: Path) -> None:
    (answer, is_cached, _, again), log = ask_where_nothing_can_be_written(package, XDG_CACHE_HOME=str(tmp_path / "new"))
    assert (answer, is_cached, again) == ("41", "0", "41")
    assert log.count("compiled kernels are not cached") == len(log.splitlines()) == 1
    assert "File too large" in log


@pytest.mark.long
def test_a_complete_cache_need_not_be_writable(package: Path) -> None:
    """As in a container image."""
    assert ask(package)[:2] == (41, False)
    cache = package.parent / "cache"
    answer, log = ask_where_nothing_can_be_written(package, XDG_CACHE_HOME=str(cache))
    assert answer[:2] == ["41", "1"]
    assert log == ""


def test_a_truncated_kernel_is_compiled_again(package: Path) -> None:
    place = ask(package)[2]
    (kept,) = place.glob("*.nbc")
    kept.write_bytes(kept.read_bytes()[:100])
    assert ask(package)[:2] == (41, False)
    assert ask(package)[:2] == (41, True)


@pytest.mark.long
def test_numbas_own_cache_next_to_the_sources_is_never_used(package: Path, tmp_path: Path) -> None:
    """It ignores constants of other files."""
    (tmp_path / "file").touch()
    for answer in (41, 42):
        (package / "constant.py").write_text(f"ANSWER = {answer}\n")
        assert ask(package, XDG_CACHE_HOME=str(tmp_path / "file"))[:2] == (answer, False)
    assert not list(package.rglob("*.nbi"))


def test_a_user_without_a_home_uses_the_cache_of_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_uid: int) -> None:
        raise KeyError("no entry")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert user_cache() == Path("/.cache/blackbox")
    monkeypatch.setenv("HOME", "/")
    assert user_cache() == Path("/.cache/blackbox")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/desk")
    assert user_cache() == Path("/var/cache/desk/blackbox")


def test_the_file_of_used_ports_may_have_no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ports = {endpoint for _ in range(20) for (endpoint,) in free_endpoints("tcp", "unkept", 2, 1)}
    assert len(ports) > 20


ASK_WHEN_TOLD = """
import sys
sys.path.insert(0, {path!r})
from blackbox_feeds.made import ask
print("ready", flush=True)
input()
print(ask(), sum(ask.stats.cache_misses.values()))
"""


def test_processes_that_need_the_same_kernel_compile_it_once(package: Path) -> None:
    code = ASK_WHEN_TOLD.format(path=str(package.parent))
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_CACHE_HOME", str(package.parent / "cache"))
        scripts = [stack.enter_context(Script(code)) for _ in range(3)]
        for script in scripts:
            script.expect("ready")
        for script in scripts:
            script.tell("go")
        assert sorted(script.read() for script in scripts) == ["41 0", "41 0", "41 1"]


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
        holder.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with kernel_cache.held_by_one_process(lock):
            assert time.monotonic() - began >= 0.2


def test_a_digest_covers_the_sources_of_imports() -> None:
    assert digest_of("blackbox.block.encode") != digest_of("blackbox.block.format")
    assert re.fullmatch("[0-9a-f]{16}", digest_of("blackbox.block.encode"))


def test_kernels_use_our_njit() -> None:
    numbas = re.compile(r"^from numba import .*\bnjit\b", re.MULTILINE)
    assert [path for path in SOURCES if path.name != "jit.py" and numbas.search(path.read_text())] == []
