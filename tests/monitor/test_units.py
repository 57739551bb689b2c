"""The shipped systemd units are valid, and agree with the exit statuses and options of the commands."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from blackbox.cli.ui.status import Status
from tests.cli.test_program import command_of

UNITS: Final = sorted((Path(__file__).resolve().parents[2] / "configs" / "systemd").glob("*.service"))


def settings_of(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return parser["Service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    name = unit.name.replace("@", "@A")  # of a template, an instance
    copy = tmp_path / name
    copy.write_text(unit.read_text().replace("/opt/blackbox/bin/blackbox", "/bin/true"))  # it checks that it exists
    ended = subprocess.run([program, "verify", "--man=no", copy], capture_output=True, text=True)
    found = [line for line in (ended.stdout + ended.stderr).splitlines() if name in line]
    assert found == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_agrees_with_statuses_and_options(unit: Path) -> None:
    settings = settings_of(unit)
    assert settings["SuccessExitStatus"].split() == ["129", str(int(Status.INTERRUPTED)), "143"]
    assert settings["RestartPreventExitStatus"] == str(int(Status.USAGE))
    assert (settings["Type"], settings["Restart"]) == ("notify", "on-failure")
    words = shlex.split(settings["ExecStart"])[1:]
    name = next(word for word in words if word in ("publish", "record", "relay", "hub", "bridge"))
    command = command_of(name)
    known = {option for each in command.params for option in each.opts}
    own = words[words.index(name) + 1 :]
    assert {word for word in own if word.startswith("--")} <= known
    assert re.fullmatch(r"127\.0\.0\.1:91\d\d", own[own.index("--metrics") + 1])


def test_there_is_a_unit_for_each_service() -> None:
    names = ("bridge", "hub", "publish@", "record", "relay")
    assert [unit.stem for unit in UNITS] == [f"blackbox-{name}" for name in names]
