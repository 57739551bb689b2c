"""The README: its code runs and type-checks as it stands, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def snippet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path_factory.mktemp("readme") / "ten_lines.py"
    path.write_text(code)
    return path


def test_the_ten_lines_run_as_they_stand(snippet: Path) -> None:
    ran = subprocess.run(
        [sys.executable, snippet],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert (ran.returncode, ran.stdout) == (0, "b'AAPL.trade' b'189.98' 1700000000000000000\n"), ran.stderr


def test_the_ten_lines_are_ten(snippet: Path) -> None:
    lines = [line for line in snippet.read_text().splitlines() if line.strip()]
    assert len(lines) == 10


def test_the_ten_lines_type_check(snippet: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", snippet],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_quick_start_has_exactly_two_commands_and_both_exist() -> None:
    section = TEXT.partition("## Quick start\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^ {4}(\S.*?)(?: {2,}#.*)?$", section, re.MULTILINE)
    assert commands == ["make demo", "make test"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "bench"} <= set(targets)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", TEXT))
def test_links_lead_to_files(link: str) -> None:
    assert (ROOT / link).exists()
