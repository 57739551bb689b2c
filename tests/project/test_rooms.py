"""Imports run one way: a folder imports only folders listed before it here, and no modules form a cycle."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ORDER = (
    "errors",
    "arguments",
    "life",
    "timestamps",
    "user_cache",
    "regular_file",
    "documents",
    "native",
    "feed",
    "block",
    "transport",
    "publish",
    "subscribe",
    "book",
    "archive",
    "image",
    "recovery",
    "replay",
    "registration",
    "subscriber",
    "testing",
    "relay",
    "hub",
    "bridge",
    "monitor",
    "spark",
    "report",
    "analysis",
    "cli",
)
"""The folders and top-level modules of `blackbox` in the order of the data flow."""

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"blackbox": ROOT / "blackbox", "blackbox_feeds": ROOT / "feeds" / "blackbox_feeds"}
MODULES = {
    ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
    for package, folder in PACKAGES.items()
    for path in sorted(folder.rglob("*.py"))
}


@cache
def imports_of(source: str) -> list[str]:
    """Return the full names of all modules that the source imports at run time, including inside functions."""
    tree = ast.parse(source)
    for_types = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for child in ast.walk(statement)
    }
    found: list[str] = []
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}, expected a full name"
            assert node.module is not None
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found += (name if name in MODULES else node.module for name in names)
    return found


def room_of(module: str) -> int:
    room = module.split(".")[1]
    assert room in ORDER, f"{module} is in {room}, which is not in ORDER"
    return ORDER.index(room)


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
    sources = {name: path.read_text() for name, path in MODULES.items() if name != "blackbox"}
    assert [found for name, source in sources.items() for found in violations(name, source)] == []


def test_modules_form_no_cycle() -> None:
    imports = {name: set(imports_of(path.read_text())) & set(MODULES) for name, path in MODULES.items()}
    try:
        TopologicalSorter({name: found - {name} for name, found in imports.items()}).prepare()
    except CycleError as error:
        pytest.fail("an import cycle: " + " <- ".join(error.args[1]))


def test_every_room_of_order_exists() -> None:
    assert set(ORDER) == {name.split(".")[1] for name in MODULES if name.startswith("blackbox.")}


def test_every_room_documents_its_inputs_and_outputs() -> None:
    silent = [
        room
        for room in ORDER
        if (ROOT / "blackbox" / room / "__init__.py").exists()
        and not {"In:", "Out:"} <= set((ROOT / "blackbox" / room / "__init__.py").read_text().split())
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("blackbox.feed.routing", "from blackbox.block.encode import Rows"),
        ("blackbox.feed.routing", "def late():\n    import blackbox.block.encode"),
        ("blackbox.feed.routing", "from blackbox.block import encode"),
        ("blackbox.feed.feed", "from blackbox_feeds.itch50 import Itch50"),
        ("blackbox.feed.feed", "import blackbox_feeds"),
    ],
)
def test_an_import_against_the_order_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


def test_an_import_of_a_room_not_in_order_is_found() -> None:
    with pytest.raises(AssertionError, match="which is not in ORDER"):
        violations("blackbox.feed.feed", "from blackbox.nowhere import x")


def test_a_relative_import_is_found() -> None:
    with pytest.raises(AssertionError, match="relative import"):
        violations("blackbox.feed.feed", "from .routing import symbol_of")


def test_an_import_only_for_types_is_permitted() -> None:
    source = "if TYPE_CHECKING:\n    from blackbox.block.encode import Rows\nelse:\n    import blackbox_feeds"
    found = violations("blackbox.feed.routing", source)
    assert found == ["blackbox.feed.routing imports blackbox_feeds: the core must not import feeds"]


def test_an_import_along_the_order_is_permitted() -> None:
    source = "import numpy\nfrom blackbox import __version__, errors\nfrom blackbox.feed.routing import x"
    assert violations("blackbox.block.encode", source) == []
