"""Fixtures and scheduling for all tests."""

import gc
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import websockets.asyncio.client
import websockets.sync.client

from tests.examples import EXPLORES, examples
from tests.patience import PATIENCE_S, be_patient

# Workers of xdist set their own width, which would change the output of commands.
os.environ.pop("COLUMNS", None)

# Background processes of a shell ignore Ctrl-C, and those of nohup SIGHUP; every command of a test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Queries of tests are short: optimising their code or verifying Spark's classes would take longer than running them.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+IgnoreUnrecognizedVMOptions"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

be_patient()
for connect in (websockets.asyncio.client.connect.__init__, websockets.sync.client.connect):
    connect.__kwdefaults__ = (connect.__kwdefaults__ or {}) | {"open_timeout": PATIENCE_S}

# Imports and collection create many permanent objects: garbage collection would take a quarter of their time.
gc.disable()

# The first example compiles, which takes longer than any deadline.
hypothesis.settings.register_profile("blackbox", deadline=None, max_examples=examples(100), derandomize=not EXPLORES)
hypothesis.settings.load_profile("blackbox")

pytest_plugins = ["tests.own_process", "tests.spark_session"]

ROOT = Path(__file__).resolve().parent.parent


LONG = (
    "tests/spark/",
    "tests/bridge/amqp/",
    "tests/simulation/",
    "tests/bench/test_bench_rivals.py",
    "tests/cli/",
    "tests/receive/",
    "tests/archive/",
    "tests/publish/",
    "tests/replay/",
    "tests/feeds/",
    "tests/project/test_examples.py",
    "tests/project/test_notebooks.py",
    "tests/bench/",
    "tests/book/",
)
"""Folders and files with slow tests, mostly because they start processes. With `-n` they run first, so that the last
tests are short and no worker waits long for the others."""


SESSIONS = {
    "tests/analysis/": "tests/spark/",
    "tests/spark/": "tests/spark/",
    "tests/bridge/amqp/": "tests/bridge/amqp/",
    "tests/simulation/": "tests/simulation/",
}
"""Scope of each folder whose tests run on one worker, because they share Spark, RabbitMQ or compiled kernels."""

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
    """With `-n`, assign the scopes in the order of `pytest_collection_modifyitems`."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]  # untyped
        def _split_scope(self, nodeid: str) -> str:
            return _scope_of(nodeid)

        def _reschedule(self, node: Any) -> None:
            """Assign until two tests are pending: a worker starts a test once it has the next one or a shutdown."""
            if node not in self.registered_collections:
                return  # a replacement worker that has not collected yet
            super()._reschedule(node)
            while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)

        def remove_node(self, node: Any) -> Any:
            """Reassign the remaining tests of a crashed worker, except the test that crashed it.

            xdist would run that test again and assign completed files, for which a worker would wait forever.
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
    """Return the directory of real captures next to the repository; skip the test without it."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no real captures at ../shared/data next to the repository")
    return path


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels(worker_id: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile once in advance, so that no test's time limit depends on an empty cache."""
    from tests import warm_up

    if worker_id != "master":
        warm_up.share(int(worker_id.removeprefix("gw")), tmp_path_factory.mktemp("warm-up"))
    warm_up.deliver()
