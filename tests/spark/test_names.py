"""The names of `blackbox.spark`: none leaks, none goes missing, and a session alone takes little."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import blackbox.spark
from blackbox.spark import _MODULE_OF


def test_all_is_sorted_and_names_what_has_a_module() -> None:
    assert sorted(["session", *_MODULE_OF], key=lambda name: (not name[0].isupper(), name)) == blackbox.spark.__all__
    assert dir(blackbox.spark) == blackbox.spark.__all__


@pytest.mark.parametrize("name", sorted(_MODULE_OF))
def test_each_name_is_of_its_module(name: str) -> None:
    module = importlib.import_module(f"blackbox.spark.{_MODULE_OF[name]}")
    assert getattr(blackbox.spark, name) is getattr(module, name)
    assert getattr(module, name).__module__ == module.__name__
    assert name not in {path.split(".")[-1] for path in sys.modules if path.startswith("blackbox.spark.")}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'blackbox\.spark' has no attribute 'ohlc'"):
        blackbox.spark.ohlc  # noqa: B018


def test_session_is_imported_without_numba() -> None:
    script = "import sys, blackbox.spark; blackbox.spark.session; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "blackbox.spark.session" in loaded
    assert {"numba", "pyspark", "pyarrow"}.isdisjoint(loaded)
