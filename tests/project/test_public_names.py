"""`blackbox` exports exactly its public names, and importing them loads no heavy library."""

import subprocess
import sys
from types import ModuleType

import pytest

import blackbox

NAMES = {
    "AsyncHubClient": "blackbox.services.hub.client.async_client",
    "Batch": "blackbox.block.batch.batch",
    "BlackBoxError": "blackbox.errors",
    "CallbackError": "blackbox.errors",
    "ConfigError": "blackbox.errors",
    "Feed": "blackbox.feed.feed",
    "Gap": "blackbox.block.gap",
    "GapError": "blackbox.errors",
    "Hub": "blackbox.services.hub.server.hub",
    "HubClient": "blackbox.services.hub.client.client",
    "Message": "blackbox.block.batch.batch",
    "Publisher": "blackbox.publish.publisher",
    "Recorder": "blackbox.archive.record.recorder",
    "Recording": "blackbox.archive.recording",
    "Recordings": "blackbox.archive.recordings",
    "Relay": "blackbox.services.relay.relay",
    "Replay": "blackbox.replay.replay",
    "Schema": "blackbox.feed.schema.schema",
    "Slice": "blackbox.feed.slice",
    "SlowPolicy": "blackbox.receive.slow_subscriber",
    "SlowSubscriberError": "blackbox.errors",
    "Source": "blackbox.feed.source",
    "Stream": "blackbox.receive.stream",
    "Subscriber": "blackbox.subscriber.subscriber",
    "Table": "blackbox.subscriber.table",
}
HEAVY = {"llvmlite", "numba", "pyarrow", "rich", "typer", "uvloop", "zmq"}
LIGHT_MODULES = (
    "blackbox",
    *(f"blackbox.{name}" for name in ("errors", "feed.feed", "feed.schema", "feed.source")),
)


def test_the_public_names_are_the_classes_of_their_modules() -> None:
    classes = {name: getattr(blackbox, name) for name in NAMES}
    assert {name: each.__module__ for name, each in classes.items()} == NAMES
    assert [each.__name__ for each in classes.values()] == list(NAMES)
    assert sorted([*NAMES, "__version__"]) == sorted(blackbox.__all__) == dir(blackbox)
    namespace: dict[str, object] = {}
    exec("from blackbox import *", namespace)
    del namespace["__builtins__"]
    assert set(namespace) == {*NAMES, "__version__"}
    public = {
        name for name, value in vars(blackbox).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - {"TYPE_CHECKING", "import_module"} == set(NAMES)


def test_every_error_is_a_black_box_error_of_its_module() -> None:
    from blackbox import errors

    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name, module in NAMES.items() if module == "blackbox.errors"} < defined
    for name in defined:
        assert issubclass(getattr(errors, name), errors.BlackBoxError)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'blackbox' has no attribute 'Publsher'"):
        blackbox.Publsher  # noqa: B018
    with pytest.raises(ImportError, match="Publsher"):
        exec("from blackbox import Publsher")


def test_importing_loads_no_heavy_library() -> None:
    script = f"import sys, {', '.join(LIGHT_MODULES)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert loaded
    assert HEAVY.isdisjoint(loaded)
