"""Imports run one way: a folder imports only folders listed before it here, and no modules form a cycle."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ORDER = (
    "errors",
    "arguments",
    "life",
    "timestamps",
    "numbers",
    "repeated_log",
    "notebook",
    "user_cache",
    "regular_file",
    "documents",
    "native",
    "feed",
    "block",
    "transport",
    "publish",
    "receive",
    "book",
    "archive",
    "replay",
    "subscriber",
    "testing",
    "services.relay",
    "services.hub",
    "services.bridge",
    "analysis.spark",
    "analysis.report",
    "analysis",
    "services.monitor",
    "cli",
)
"""The folders and top-level modules of `blackbox` in the order of the data flow."""

NESTED = {"services"}
"""Folders that only hold rooms."""
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"blackbox": ROOT / "blackbox", "blackbox_feeds": ROOT / "feeds" / "blackbox_feeds"}
MODULES = {
    ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
    for package, folder in PACKAGES.items()
    for path in sorted(folder.rglob("*.py"))
}


def statements_of(block: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements that run, including those inside others, without descending into expressions."""
    for statement in block:
        yield statement
        is_for_types = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            if not (is_for_types and name == "body"):
                yield from statements_of(getattr(statement, name, ()))


@cache
def imports_of(source: str) -> list[str]:
    """Return the full names of all modules that the source imports at run time, including inside functions."""
    found: list[str] = []
    for node in statements_of(ast.parse(source).body):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}, expected a full name"
            assert node.module is not None
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found += (name if name in MODULES else node.module for name in names)
    return found


def room_of(module: str) -> int:
    _, room, *inside = module.split(".")
    if room in NESTED and not inside:
        return 0  # the folder itself, which holds no code
    names = [each for each in (".".join([room, *inside[:1]]), room) if each in ORDER]
    assert names, f"{module} is in {room}, which is not in ORDER"
    return ORDER.index(names[0])


def violations(module: str, source: str) -> list[str]:
    package = module.split(".", maxsplit=1)[0]
    found = []
    for name in imports_of(source):
        imported, _, inside = name.partition(".")
        if package == "blackbox" and imported == "blackbox_feeds":
            found.append(f"{module} imports {name}: the core must not import feeds")
        elif package == imported == "blackbox" and inside and room_of(name) > room_of(module):
            found.append(f"{module} imports {name}, which is later in ORDER")
    return found


def test_imports_run_one_way() -> None:
    assert violations("blackbox.feed.feed", "def late():\n    from blackbox.block import form") != [], (
        "nothing is found"
    )
    sources = {name: path.read_text() for name, path in MODULES.items() if name != "blackbox"}
    assert [found for name, source in sources.items() for found in violations(name, source)] == []


def test_modules_form_no_cycle() -> None:
    imports = {name: set(imports_of(path.read_text())) & set(MODULES) for name, path in MODULES.items()}
    try:
        TopologicalSorter({name: found - {name} for name, found in imports.items()}).prepare()
    except CycleError as error:
        pytest.fail("an import cycle: " + " <- ".join(error.args[1]))


def test_every_room_of_order_exists() -> None:
    assert [room for room in ORDER if f"blackbox.{room}" not in MODULES] == []
    assert {ORDER[room_of(name)] for name in MODULES if name.startswith("blackbox.")} == set(ORDER)


def test_every_room_documents_its_inputs_and_outputs() -> None:
    rooms = [MODULES[f"blackbox.{room}"] for room in (*ORDER, *NESTED)]
    texts = {path: path.read_text().split() for path in rooms if path.name == "__init__.py"}
    assert [path for path, words in texts.items() if not {"In:", "Out:"} <= set(words)] == []
