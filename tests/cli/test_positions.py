"""`blackbox positions`: list, move and forget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.position import Position
from tests.cli.commands import invoke

EPOCH = 0x18EAD45481153800


def kept(directory: Path, name: str = "strategy-1", epoch: int = EPOCH) -> PositionFile:
    file = PositionFile(directory, name)
    file.own(0)
    file.keep("tape", {0: Position(epoch, 1_234), 1: Position(epoch + 1, 5)})
    file.close()
    return file


def test_consumers_are_listed_until_they_have_ended(tmp_path: Path) -> None:
    assert json.loads(invoke("positions", tmp_path, "--json").out) == []
    files = {name: kept(tmp_path, name, epoch) for name, epoch in (("strategy-1", EPOCH), ("other", EPOCH + 7))}
    ended = invoke("positions", tmp_path)
    assert ended.status == 0, ended.errors
    lines = [[cell.strip() for cell in line.split("│")] for line in ended.out.splitlines() if "strategy-1" in line]
    assert [(*line[1:3], *line[4:8]) for line in lines] == [
        ("strategy-1", "tape", "0", str(EPOCH), "1234", ""),
        ("strategy-1", "tape", "1", str(EPOCH + 1), "5", ""),
    ]
    found = {each["consumer"]: each for each in json.loads(invoke("positions", tmp_path, "--json").out)}
    for (name, file), epoch in zip(files.items(), (EPOCH, EPOCH + 7), strict=True):
        now = file.read()
        assert now is not None
        assert (found[name]["feed"], found[name]["kept_ns"]) == ("tape", now.kept_ns)
        assert found[name]["slices"] == [
            {"slice": 0, "epoch": epoch, "sequence": 1_234},
            {"slice": 1, "epoch": epoch + 1, "sequence": 5},
        ]
    files["strategy-1"].end("tape")
    assert "strategy-1" not in invoke("positions", tmp_path).out
    ended = invoke("positions", tmp_path, "--name", "strategy-1")
    assert "expected the positions of consumer 'strategy-1'" in ended.errors
    ended = invoke("positions", tmp_path / "none")
    assert ended.status != 0
    assert "was no directory, expected the positions of consumers" in ended.errors


def test_a_consumer_is_moved_and_forgotten_unless_it_runs(tmp_path: Path) -> None:
    file = kept(tmp_path)
    ended = invoke("positions", tmp_path, "--name", "strategy-1", "--to", f"1:{EPOCH}:7")
    assert ended.status == 0, ended.errors
    now = file.read()
    assert now is not None
    assert now.slices == {0: Position(EPOCH, 1_234), 1: Position(EPOCH, 7)}
    file.own(0)
    try:
        ended = invoke("positions", tmp_path, "--name", "strategy-1", "--forget")
    finally:
        file.close()
    assert ended.status != 0
    assert "expected no other" in ended.errors
    assert file.read() is not None
    assert invoke("positions", tmp_path, "--name", "strategy-1", "--forget").status == 0
    assert file.read() is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--forget"], "--forget was given without --name"),
        (["--to", "0:1:2"], "--to was given without --name"),
        (["--name", "strategy-1", "--to", "0:1"], "to was '0:1', expected SLICE:EPOCH:SEQUENCE"),
        (["--name", "strategy-1", "--to", "0:1:A:2"], "to was '0:1:A:2', expected SLICE:EPOCH:SEQUENCE"),
        (["--name", "strategy-1", "--to", "0:1:2", "--forget"], "choose one"),
        (["--name", "unknown"], "expected the positions of consumer 'unknown'"),
        (["--name", "unknown", "--forget"], "expected the positions of consumer 'unknown'"),
        (["--name", "../x", "--forget"], "name was '../x'"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, words: list[str], text: str) -> None:
    file = kept(tmp_path)
    ended = invoke("positions", tmp_path, *words)
    assert ended.status != 0
    assert text in ended.errors
    assert file.read() is not None
