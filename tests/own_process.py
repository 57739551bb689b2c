"""Run a file's tests in a separate process, without threads of other files' tests.

Mark a file or a test with `pytest.mark.own_process`. Required to count threads and file descriptors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest

INSIDE = "BLACKBOX_OWN_PROCESS"
"""Environment variable set in such a process."""
TIMEOUT_S = 900
"""Timeout of a file's first test, which runs the whole file."""

Results = dict[str, list[ElementTree.Element]]
RESULTS = pytest.StashKey[dict[Path, Results]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_process: runs in a separate process for its file")


def _runs_elsewhere(item: pytest.Item) -> bool:
    return INSIDE not in os.environ and item.get_closest_marker("own_process") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _runs_elsewhere(item):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Report the test's result from its process; the first test of a file runs them all."""
    if not _runs_elsewhere(pyfuncitem):
        return None
    of_files = pyfuncitem.session.stash.setdefault(RESULTS, {})
    path = pyfuncitem.path
    if path not in of_files:
        of_files[path] = _run(
            [item for item in pyfuncitem.session.items if item.path == path and _runs_elsewhere(item)]
        )
    for result in of_files[path][pyfuncitem.name]:
        if result.tag == "skipped":
            pytest.skip(result.get("message", ""))
        if result.tag in ("failure", "error"):
            pytest.fail(result.text or "no output", pytrace=False)
    return True


def _run(items: list[pytest.Item]) -> Results:
    """Run a file's tests in a separate process; return the results in its report by name."""
    with TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command.append(f"--basetemp={directory}/tmp")  # else pytest first removes those of earlier runs, for minutes
        ended = subprocess.run(
            [*command, *(item.nodeid for item in items)],
            cwd=items[0].config.rootpath,
            env={key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"} | {INSIDE: "1"},
            capture_output=True,
            text=True,
        )
        lost = ElementTree.Element("error")
        lost.text = f"the process ended with status {ended.returncode}\n{ended.stdout}{ended.stderr}"
        results = {item.name: [lost] for item in items}
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                name = case.get("name", "")
                # A test that also fails in teardown is listed twice.
                results[name] = [result for result in results[name] if result is not lost] + list(case)
    return results
