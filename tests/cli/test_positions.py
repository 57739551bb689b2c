"""`blackbox positions`: list, move and forget."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.position import Position
from tests.cli.commands import invoke

EPOCH = 0x18EAD45481153800


def kept(directory: Path) -> PositionFile:
    file = PositionFile(directory, "strategy-1")
    file.own(0)
    file.keep("tape", {0: Position(EPOCH, 1_234), 1: Position(EPOCH + 1, 5)})
    file.close()
    return file


def test_positions_lists_consumers(tmp_path: Path) -> None:
    kept(tmp_path)
    ended = invoke("positions", tmp_path)
    assert ended.status == 0, ended.errors
    lines = [line.split("│") for line in ended.out.splitlines() if "strategy-1" in line]
    assert [[cell.strip() for cell in line[1:-1]] for line in lines] == [
        ["strategy-1", "tape", lines[0][3].strip(), "0", str(EPOCH), "1234", ""],
        ["strategy-1", "tape", lines[0][3].strip(), "1", str(EPOCH + 1), "5", ""],
    ]


def test_positions_moves_and_forgets_a_consumer(tmp_path: Path) -> None:
    file = kept(tmp_path)
    ended = invoke("positions", tmp_path, "--name", "strategy-1", "--to", f"1:{EPOCH}:7")
    assert ended.status == 0, ended.errors
    now = file.read()
    assert now is not None
    assert now.slices == {0: Position(EPOCH, 1_234), 1: Position(EPOCH, 7)}
    assert invoke("positions", tmp_path, "--name", "strategy-1", "--forget").status == 0
    assert file.read() is None


def test_positions_leaves_a_consumer_that_runs_alone(tmp_path: Path) -> None:
    file = kept(tmp_path)
    file.own(0)
    try:
        ended = invoke("positions", tmp_path, "--name", "strategy-1", "--forget")
    finally:
        file.close()
    assert ended.status != 0
    assert "expected no other" in ended.errors
    assert file.read() is not None


def test_positions_does_not_list_a_consumer_that_has_ended(tmp_path: Path) -> None:
    kept(tmp_path).end("tape")
    assert "strategy-1" not in invoke("positions", tmp_path).out
    ended = invoke("positions", tmp_path, "--name", "strategy-1")
    assert "expected the positions of consumer 'strategy-1'" in ended.errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--forget"], "--forget was given without --name"),
        (["--to", "0:1:2"], "--to was given without --name"),
        (["--name", "strategy-1", "--to", "0:1"], "to was '0:1', expected SLICE:EPOCH:SEQUENCE"),
        (["--name", "strategy-1", "--to", "0:1:A:2"], "to was '0:1:A:2', expected SLICE:EPOCH:SEQUENCE"),
        (["--name", "strategy-1", "--to", "0:1:2", "--forget"], "choose one"),
        (["--name", "nobody"], "expected the positions of consumer 'nobody'"),
        (["--name", "nobody", "--forget"], "expected the positions of consumer 'nobody'"),
        (["--name", "../x", "--forget"], "name was '../x'"),
    ],
)
def test_positions_refuses(tmp_path: Path, words: list[str], text: str) -> None:
    file = kept(tmp_path)
    ended = invoke("positions", tmp_path, *words)
    assert ended.status != 0
    assert text in ended.errors
    assert file.read() is not None


def test_positions_of_no_directory(tmp_path: Path) -> None:
    ended = invoke("positions", tmp_path / "none")
    assert ended.status != 0
    assert "was no directory, expected the positions of consumers" in ended.errors
