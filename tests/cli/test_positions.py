"""`blackbox positions`: list, move and forget."""

from __future__ import annotations

import json
from pathlib import Path

from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.position import Position
from tests.cli.commands import assert_one_line, invoke, succeed

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
    ended = succeed("positions", tmp_path)
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


def test_a_consumer_is_moved_and_forgotten_unless_it_runs(tmp_path: Path) -> None:
    file = kept(tmp_path)
    ended = succeed("positions", tmp_path, "--name", "strategy-1", "--to", f"1:{EPOCH}:7")
    now = file.read()
    assert now is not None
    assert now.slices == {0: Position(EPOCH, 1_234), 1: Position(EPOCH, 7)}
    file.own(0)
    try:
        ended = invoke("positions", tmp_path, "--name", "strategy-1", "--forget")
    finally:
        file.close()
    assert_one_line(ended, "expected no other")
    assert file.read() is not None
    succeed("positions", tmp_path, "--name", "strategy-1", "--forget")
    assert file.read() is None
