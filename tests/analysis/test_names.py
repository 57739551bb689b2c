"""The public names of `blackbox.analysis` are complete; importing a session of `blackbox.analysis.spark` is light."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import blackbox.analysis
from blackbox.analysis import _MODULE_OF


def test_all_is_sorted_and_every_name_has_a_module() -> None:
    assert sorted(_MODULE_OF, key=lambda name: (not name[0].isupper(), name)) == blackbox.analysis.__all__
    assert dir(blackbox.analysis) == blackbox.analysis.__all__


def test_each_name_is_in_its_module() -> None:
    for name, place in _MODULE_OF.items():
        module = importlib.import_module(f"blackbox.analysis.measures.{place}")
        assert getattr(blackbox.analysis, name) is getattr(module, name)
        assert getattr(module, name).__module__ == module.__name__
        assert name not in {path.split(".")[-1] for path in sys.modules if path.startswith("blackbox.analysis.")}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'blackbox\.analysis' has no attribute 'ohlc'"):
        blackbox.analysis.ohlc  # noqa: B018


def test_session_is_imported_without_numba() -> None:
    script = "import sys, blackbox.analysis.spark; blackbox.analysis.spark.session; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "blackbox.analysis.spark.session" in loaded
    assert {"numba", "pyspark", "pyarrow"}.isdisjoint(loaded)
