"""Change a file in random small ways, one at a time, and count the changes that its tests find.

    python -m tests.mutants blackbox/block/form/validate.py tests/block --count 40 --seed 1

Each mutant changes one operator, number, condition or statement, in a copy of the working tree. Tests find it if one
fails or they exceed the time limit. Prints each mutant that no test finds, and the share of those found.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parent.parent
_OTHER: Final[dict[type[ast.AST], type[ast.AST]]] = {
    one: other
    for pair in (
        (ast.Lt, ast.LtE),
        (ast.Gt, ast.GtE),
        (ast.Eq, ast.NotEq),
        (ast.Add, ast.Sub),
        (ast.BitAnd, ast.BitOr),
        (ast.LShift, ast.RShift),
        (ast.And, ast.Or),
        (ast.Is, ast.IsNot),
        (ast.In, ast.NotIn),
    )
    for one, other in (pair, pair[::-1])
}


class Mutant(NamedTuple):
    """A changed file."""

    line: int
    change: str
    source: str


def mutants_of(source: str) -> Iterator[Mutant]:
    """Return all mutants of a file."""
    data, starts = source.encode(), [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    tree = ast.parse(source)
    skipped = {id(each) for node in ast.walk(tree) for each in _types_and_docs(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr | ast.stmt) or id(node) in skipped:
            continue
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for changed in _changes(node):
            old = data[begin:end].decode().split("\n")[0]
            yield Mutant(node.lineno, f"{old} -> {changed}", (data[:begin] + changed.encode() + data[end:]).decode())


def _types_and_docs(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        if isinstance(found := getattr(node, name, None), ast.AST):
            yield from ast.walk(found)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOGGED:
        yield node
    if isinstance(node, ast.JoinedStr):
        yield from ast.walk(node)


_LOGGED: Final = ("debug", "info", "warning", "error")


def _changes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in _OTHER:
            yield f"({ast.unparse(left)} {_text(operator)} {ast.unparse(right)})"
        case ast.BinOp(left, operator, right) if type(operator) in _OTHER:
            yield f"(({ast.unparse(left)}) {_text(operator)} ({ast.unparse(right)}))"
        case ast.BoolOp(operator, values):
            yield "(" + f" {_text(operator)} ".join(f"({ast.unparse(each)})" for each in values) + ")"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() as value):
            yield str(value + 1)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Break() | ast.Continue() | ast.Raise():
            yield "pass"


_SIGNS: Final = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Add: "+", ast.Sub: "-",
    ast.BitAnd: "&", ast.BitOr: "|", ast.LShift: "<<", ast.RShift: ">>", ast.And: "and", ast.Or: "or",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


def _text(operator: ast.AST) -> str:
    """Return the sign of the operator that replaces this one."""
    return _SIGNS[_OTHER[type(operator)]]  # type: ignore[index]


def is_found(root: Path, tests: list[str], limit_s: float) -> bool:
    """Run tests in a tree; return True if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long", *tests]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=root, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        return process.wait(limit_s) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="file to change, relative to the project")
    parser.add_argument("tests", nargs="+", help="tests to run")
    parser.add_argument("--count", type=int, default=40, help="mutants to try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one mutant")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "tree"
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build")
        shutil.copytree(_ROOT, root, ignore=ignored, symlinks=True)
        source = (root / asked.file).read_text()
        if is_found(root, asked.tests, asked.limit):
            sys.exit(f"the tests fail without a change: {' '.join(asked.tests)}")
        every = sorted(mutants_of(source))
        tried = chance.sample(every, min(asked.count, len(every)))
        found = 0
        for mutant in sorted(tried):
            (root / asked.file).write_text(mutant.source)
            if is_found(root, asked.tests, asked.limit):
                found += 1
            else:
                print(f"not found: line {mutant.line}: {mutant.change}", flush=True)
        print(f"{asked.file}: {found} of {len(tried)} mutants found, seed {asked.seed}, {len(every)} possible")


if __name__ == "__main__":
    main()
