"""Importing `blackbox.analysis.spark` is light, and unknown names are errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

import blackbox.analysis


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'blackbox\.analysis' has no attribute 'ohlc'"):
        blackbox.analysis.ohlc  # noqa: B018


def test_session_is_imported_without_numba() -> None:
    script = "import sys, blackbox.analysis.spark; blackbox.analysis.spark.session; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "blackbox.analysis.spark.session" in loaded
    assert {"numba", "pyspark", "pyarrow"}.isdisjoint(loaded)
