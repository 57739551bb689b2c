"""The names of `blackbox`: none leaks, none goes missing, and importing them stays light."""

import subprocess
import sys
from types import ModuleType

import pytest

import blackbox

NAMES = {
    "ArchiveClient": "blackbox.archive.serve.client",
    "ArchiveError": "blackbox.errors",
    "AsyncHubClient": "blackbox.hub.async_client",
    "Batch": "blackbox.block.batch",
    "BlackBoxError": "blackbox.errors",
    "Block": "blackbox.block.block",
    "BlockError": "blackbox.errors",
    "BridgeError": "blackbox.errors",
    "CallbackError": "blackbox.errors",
    "HubClient": "blackbox.hub.client",
    "ConfigError": "blackbox.errors",
    "ConflictError": "blackbox.errors",
    "ControlError": "blackbox.errors",
    "Controls": "blackbox.replay.controls",
    "EndpointError": "blackbox.errors",
    "JournalError": "blackbox.errors",
    "LimitError": "blackbox.errors",
    "Feed": "blackbox.feed.feed",
    "Gap": "blackbox.block.gap",
    "GapError": "blackbox.errors",
    "Hub": "blackbox.hub.hub",
    "HubError": "blackbox.errors",
    "Message": "blackbox.block.batch",
    "NoSubscriberError": "blackbox.errors",
    "NotConfirmedError": "blackbox.errors",
    "NotRecordedError": "blackbox.errors",
    "NotStoredError": "blackbox.errors",
    "Outbox": "blackbox.archive.outbox",
    "Place": "blackbox.block.position",
    "PlainRelay": "blackbox.relay.plain",
    "PositionError": "blackbox.errors",
    "Publisher": "blackbox.publish.publisher",
    "PublisherError": "blackbox.errors",
    "Recorder": "blackbox.archive.recorder",
    "Recording": "blackbox.archive.recording",
    "Recordings": "blackbox.archive.recordings",
    "Relay": "blackbox.relay.relay",
    "RefusedError": "blackbox.errors",
    "RelayError": "blackbox.errors",
    "Replay": "blackbox.replay.replay",
    "Retention": "blackbox.archive.retention",
    "RightsError": "blackbox.errors",
    "Schema": "blackbox.feed.schema",
    "SilentPublisherError": "blackbox.errors",
    "SlowSubscriberError": "blackbox.errors",
    "Source": "blackbox.feed.source",
    "SourceError": "blackbox.errors",
    "SlowPolicy": "blackbox.subscribe.slow_subscriber",
    "Subscriber": "blackbox.subscriber",
    "SubscriberError": "blackbox.errors",
}
CONSTANTS = {"NOWHERE"}
HEAVY = {"llvmlite", "numba", "pyarrow", "rich", "typer", "uvloop", "zmq"}
LIGHT_MODULES = (
    "blackbox",
    *(f"blackbox.{name}" for name in ("errors", "feed.feed", "feed.schema", "feed.source")),
)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_the_class_of_its_module(name: str) -> None:
    assert getattr(blackbox, name).__module__ == NAMES[name]
    assert getattr(blackbox, name).__name__ == name


def test_all_holds_exactly_the_public_names() -> None:
    assert sorted([*NAMES, *CONSTANTS, "__version__"]) == sorted(blackbox.__all__) == dir(blackbox)


def test_star_import_gives_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from blackbox import *", namespace)
    del namespace["__builtins__"]
    assert set(namespace) == {*NAMES, *CONSTANTS, "__version__"}


def test_no_other_name_leaks_from_the_package() -> None:
    for name in (*NAMES, *CONSTANTS):
        getattr(blackbox, name)
    public = {
        name for name, value in vars(blackbox).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - {"TYPE_CHECKING", "import_module"} == {*NAMES, *CONSTANTS}


def test_every_public_error_is_exported() -> None:
    from blackbox import errors

    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == {name for name, module in NAMES.items() if module == "blackbox.errors"}
    for name in defined:
        assert issubclass(getattr(errors, name), errors.BlackBoxError)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'blackbox' has no attribute 'Publsher'"):
        blackbox.Publsher  # noqa: B018
    with pytest.raises(ImportError, match="Publsher"):
        exec("from blackbox import Publsher")


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_importing_takes_no_heavy_library(module: str) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert module in loaded
    assert HEAVY.isdisjoint(loaded)
