"""What several tests need."""

import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Workers of xdist have a width of their own, and what commands print would follow it.
os.environ.pop("COLUMNS", None)

# What is compiled at the first example takes longer than any deadline.
hypothesis.settings.register_profile("blackbox", deadline=None)
hypothesis.settings.load_profile("blackbox")

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`: a file's tests stay together, and all of Spark's on one worker, since they share its session."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else str(super()._split_scope(nodeid))

    return ByFile(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real captures that lie beside the repository; tests that need them skip without them."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no real captures at ../shared/data beside the repository")
    return path


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compile once, up front: no test's own time limit then depends on an empty cache."""
    from blackbox import Feed, Publisher, Subscriber

    feed = Feed.local("warm-up", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda _: None)
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"A.trade", b"")
    subscriber.run(until_end=True)
