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

from blackbox import Feed
from blackbox.cli.ui.status import Status
from tests.cli.test_program import command_of

CONFIGS: Final = Path(__file__).resolve().parents[2] / "configs"
UNITS: Final = sorted((CONFIGS / "systemd").glob("*.service"))
INSTANCES: Final = [
    (name, instance)
    for name, instances in (("publish", "AB"), ("relay", "12"), ("record", "12"), ("hub", "12"))
    for instance in instances
]


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
    name = unit.name.replace("@", "@1")  # of a template, an instance
    copy = tmp_path / name
    copy.write_text(unit.read_text().replace("/opt/blackbox/bin/blackbox", "/bin/true"))  # it checks that it exists
    ended = subprocess.run([program, "verify", "--man=no", copy], capture_output=True, text=True)
    found = [line for line in (ended.stdout + ended.stderr).splitlines() if name in line]
    assert found == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_agrees_with_statuses_and_options(unit: Path) -> None:
    settings = settings_of(unit)
    over = ["4"] if "publish" in unit.stem else []  # Status.LOST of a session that is over: it is not published again
    assert settings["SuccessExitStatus"].split() == [*over, "129", str(int(Status.INTERRUPTED)), "143"]
    assert settings["RestartPreventExitStatus"] == str(int(Status.USAGE))
    assert (settings["Type"], settings["Restart"]) == ("notify", "on-failure")
    words = shlex.split(settings["ExecStart"])[1:]
    name = next(word for word in words if word in ("publish", "record", "relay", "hub", "bridge"))
    command = command_of(name)
    known = {option for each in command.params for option in each.opts}
    assert {word for word in words[words.index(name) + 1 :] if word.startswith("--")} <= known


def command_line(name: str, instance: str) -> str:
    """Return the command of an instance, as systemd expands it. Variables of files stay."""
    settings = settings_of(CONFIGS / "systemd" / f"blackbox-{name}@.service")
    command = settings["ExecStart"].replace("%i", instance)
    for variable in settings["Environment"].split():
        before, _, value = variable.partition("=")
        command = command.replace(f"${{{before}}}", value)
    return command


def test_the_units_are_those_of_the_production_feed_and_a_bridge() -> None:
    names = {f"blackbox-{name}@" for name, _ in INSTANCES} | {"blackbox-bridge"}
    assert {unit.stem for unit in UNITS} == names
    monitor = Feed.load(CONFIGS / "production" / "feed.toml").monitor
    assert monitor is not None
    pages = [command_line(*each).rpartition(" --metrics ")[2] for each in INSTANCES]
    assert [f"http://{page}" for page in pages] == list(monitor.watch)


def test_the_units_have_the_settings_of_the_production_feed() -> None:
    commands = {each: command_line(*each) for each in INSTANCES}
    named = {path for command in commands.values() for path in re.findall(r"/etc/blackbox/(\S+)", command)}
    assert [path for path in named if not (CONFIGS / "production" / path).exists()] == []
    for (name, _), command in commands.items():
        assert ("--repair" in command) == (name == "record")
    read = {path for unit in UNITS for path in re.findall(r"EnvironmentFile=-?/etc/blackbox/(\S+)", unit.read_text())}
    assert read == {"session.env", "recorder-%i.env"}
    assert {path.name for path in (CONFIGS / "production").glob("*.env")} == {"session.env", "recorder-2.env"}
