"""The installed numba is one with which the changes of its private parts were tested."""

from __future__ import annotations

import tomllib
from typing import Any

import numba
from numba import types

from blackbox.native.compile.jit import njit
from blackbox.native.compile.numba_internals import NEWEST
from blackbox.native.memory.intrinsics import inner
from tests.support import ROOT


def test_no_newer_numba_is_allowed_than_the_tested_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (allowed,) = (each for each in project["dependencies"] if each.startswith("numba"))
    major, minor = NEWEST
    assert allowed.endswith(f",<{major}.{minor + 1}")
    assert tuple(map(int, numba.__version__.split(".")[:2])) <= NEWEST


def test_an_inner_function_has_no_machine_code_and_works_in_its_callers() -> None:
    @inner
    def twice(number: int) -> int:
        return 2 * number

    @njit
    def use(number: int) -> Any:
        return twice(number)

    assert use(3) == 6
    library = twice.dispatcher.overloads[(types.int64,)].library
    assert library._compiled_object is None
