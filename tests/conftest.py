"""What several tests need."""

import gc
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.examples import examples
from tests.patience import be_patient

# Workers of xdist have a width of their own, and what commands print would follow it.
os.environ.pop("COLUMNS", None)

# What a script runs in its background ignores Ctrl-C, and so would every command that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Queries of tests are short: to optimise their code, or to verify Spark's classes, would take longer than to run them.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+IgnoreUnrecognizedVMOptions"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

be_patient()

# Imports and collection make many objects, which all stay: looking for garbage takes a quarter of their time.
gc.disable()

# What is compiled at the first example takes longer than any deadline.
hypothesis.settings.register_profile("blackbox", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("blackbox")

pytest_plugins = ["tests.own_process", "tests.spark_session"]

ROOT = Path(__file__).resolve().parent.parent


LONG = (
    "tests/spark/",
    "tests/bridge/amqp/",
    "tests/bench/test_bench_rivals.py",
    "tests/cli/",
    "tests/subscribe/",
    "tests/archive/",
    "tests/publish/",
    "tests/replay/",
    "tests/feeds/",
    "tests/project/test_examples.py",
    "tests/bench/",
    "tests/book/",
)
"""What takes long for each of its tests, mostly as it starts processes: with `-n` it comes first, so that what is left
at the end is short, and no worker waits for the other."""


SESSIONS = {
    "tests/analysis/": "tests/spark/",
    "tests/spark/": "tests/spark/",
    "tests/bridge/amqp/": "tests/bridge/amqp/",
    "tests/simulation/": "tests/simulation/",
}
"""Scopes of folders, each with its own worker, as its tests share Spark, a RabbitMQ, or compiled kernels."""

WITHOUT_SESSION = tuple(f"tests/spark/test_{name}.py" for name in ("cluster", "connect", "java", "machines"))


def _scope_of(nodeid: str) -> str:
    """Return the scope whose tests run on one worker: a file, or a folder of SESSIONS."""
    file = nodeid.partition("::")[0]
    shared = (scope for folder, scope in SESSIONS.items() if file.startswith(folder) and file not in WITHOUT_SESSION)
    return next(shared, file)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    sizes = Counter(_scope_of(item.nodeid) for item in items)

    def place(item: pytest.Item) -> tuple[int, int, str]:
        scope = _scope_of(item.nodeid)
        rank = next((rank for rank, name in enumerate(LONG) if scope.startswith(name)), len(LONG))
        return rank, -sizes[scope], scope

    items.sort(key=place)  # stable: the tests of a file keep their order


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`: give out the scopes in the order of `pytest_collection_modifyitems`."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return _scope_of(nodeid)

        def _reschedule(self, node: Any) -> None:
            """Give out until there are two: a worker begins a test when it knows the next, or that none comes."""
            if node not in self.registered_collections:
                return  # one that took the place of another, and does not know the tests yet
            super()._reschedule(node)
            while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)

        def remove_node(self, node: Any) -> Any:
            """Give out again what a worker that ended has not run, but for the test that ended it.

            xdist would run that one again, and give out files that are done: who gets one waits for ever.
            """
            units = self.assigned_work.pop(node)
            left = {scope: [test for test, done in unit.items() if not done] for scope, unit in units.items()}
            crashed = next((tests.pop(0) for tests in left.values() if tests), None)
            self.workqueue.update({scope: dict.fromkeys(tests, False) for scope, tests in left.items() if tests})
            for other in self.registered_collections.keys() & self.assigned_work.keys():
                self._reschedule(other)
            return crashed

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real captures that lie beside the repository; tests that need them skip without them."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no real captures at ../shared/data beside the repository")
    return path


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels(worker_id: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile once, up front: no test's own time limit then depends on an empty cache."""
    from tests import warm_up

    if worker_id != "master":
        warm_up.share(int(worker_id.removeprefix("gw")), tmp_path_factory.mktemp("warm-up"))
    warm_up.deliver()
