"""`blackbox` exports exactly its public names, and importing them loads no heavy library."""

import subprocess
import sys
from types import ModuleType

import pytest

import blackbox

HEAVY = {"llvmlite", "numba", "pyarrow", "rich", "typer", "uvloop", "zmq"}
LIGHT_MODULES = (
    "blackbox",
    *(f"blackbox.{name}" for name in ("errors", "feed.feed", "feed.schema", "feed.source")),
)


def test_the_public_names_are_classes_and_are_exported() -> None:
    """`test_api_page.py` compares them with the docs."""
    names = set(blackbox.__all__) - {"__version__"}
    assert {getattr(blackbox, name).__name__ for name in names} == names
    assert dir(blackbox) == sorted(blackbox.__all__)
    namespace: dict[str, object] = {}
    exec("from blackbox import *", namespace)
    del namespace["__builtins__"]
    assert set(namespace) == set(blackbox.__all__)
    public = {
        name for name, value in vars(blackbox).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - {"TYPE_CHECKING", "import_module"} == names


def test_every_error_is_a_black_box_error_of_its_module() -> None:
    from blackbox import errors

    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {"BlackBoxError", "CallbackError", "ConfigError", "GapError", "SlowSubscriberError"} < defined
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
