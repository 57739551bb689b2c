"""Imports run one way: a module of `blackbox` imports only modules that stand before it here."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ORDER = (
    "journal",
    "replay",
    "errors",
    "records",
    "schema",
    "settings",
    "endpoint",
    "routing",
    "feed",
    "source",
    "atoms",
    "foreign",
    "memory",
    "pipe",
    "zmqlib",
    "warmup",
    "xxh3",
    "layout",
    "check",
    "encode",
    "texts",
    "arrow",
    "block",
    "envelope",
    "batch",
    "topics",
    "ring",
    "feeder",
    "send",
    "contexts",
    "line",
    "publisher",
    "counters",
    "lag_histogram",
    "guards",
    "sink",
    "slice_memory",
    "handover",
    "conflate",
    "slice_loop",
    "collect",
    "statistics",
    "callbacks",
    "compiled",
    "tables",
    "bursts",
    "worker",
    "console",
    "journal.layout",
    "journal.record",
    "journal.day",
    "journal.codec",
    "journal.mapping",
    "journal.scan",
    "journal.segment",
    "journal.merge",
    "journal.chunks",
    "journal.rows",
    "journal.blocks",
    "journal.columns",
    "journal.parts",
    "journal.census",
    "journal.table",
    "journal.parquet",
    "recording",
    "journal.by_time",
    "export",
    "replay.clock",
    "replay.times",
    "replay.rate",
    "replay.status",
    "replay.controls",
    "replay.control_socket",
    "replay.ahead",
    "replay.look",
    "replay.cut",
    "replay.play",
    "replay.scenes",
    "replay.lane",
    "replay.stage",
    "replay.wire",
    "replay.replay",
    "slice_thread",
    "processes",
    "subscriber",
    "journal.append",
    "journal.recover",
    "journal.writer",
    "journal.compact",
    "recorder",
    "book",
    "testing",
    "report",
    "report.numbers",
    "report.ticks",
    "report.summary",
    "report.charts",
    "report.cards",
    "report.prices",
    "report.style",
    "report.messages",
    "report.lags",
    "report.gaps",
    "report.page",
    "spark.cache",
    "spark.java",
    "spark.connector",
    "spark.session",
    "spark.options",
    "spark.days",
    "spark.columns",
    "spark.filters",
    "spark.metrics",
    "spark.plan",
    "spark.read",
    "spark.stream",
    "spark.source",
    "spark.inputs",
    "spark.hours",
    "spark.bars",
    "spark.averages",
    "spark.quotes",
    "spark.counts",
    "spark.lags",
    "spark.gaps",
    "spark.asof",
    "spark.asof_slices",
    "spark.books",
    "spark.prices",
    "spark.report",
    "spark",
    "cli*",
)
"""The order in which data flows. A name that ends in `*` is a group, free among itself."""

PACKAGE = Path(__file__).resolve().parent.parent / "blackbox"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"
}


def place_of(module: str) -> int:
    places = [place for place, pattern in enumerate(ORDER) if fnmatch(module, pattern)]
    assert len(places) == 1, f"blackbox.{module} has {len(places)} places in ORDER, expected 1"
    return places[0]


def imports_of(source: str) -> Iterator[str]:
    """Yield the dotted name of every import that can run, wherever it stands in the module."""
    tree = ast.parse(source)
    for_types = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for child in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}, expected a full name"
            assert node.module is not None
            if node.module == "blackbox":
                yield from (f"blackbox.{alias.name}" for alias in node.names)
            else:
                yield node.module


def violations(module: str, source: str) -> list[str]:
    found = []
    for name in imports_of(source):
        package, _, imported = name.partition(".")
        if package == "feeds":
            found.append(f"blackbox.{module} imports {name}: the core knows no feed")
        elif package == "blackbox" and imported != "__version__":
            if place_of(imported) > place_of(module):
                found.append(f"blackbox.{module} imports {name}, which stands after it")
            elif place_of(imported) == place_of(module) and "*" not in ORDER[place_of(module)]:
                found.append(f"blackbox.{module} imports itself")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    assert violations(module, MODULES[module].read_text()) == []


def test_order_names_no_module_that_is_gone() -> None:
    gone = [pattern for pattern in ORDER if not any(fnmatch(name, pattern) for name in MODULES)]
    assert gone == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("routing", "from blackbox.feed import Feed"),
        ("routing", "def late():\n    import blackbox.feed"),
        ("routing", "from blackbox import feed"),
        ("routing", "from blackbox.routing import symbol_of"),
        ("feed", "from feeds.itch50 import Itch50"),
        ("feed", "import feeds"),
    ],
)
def test_import_against_the_order_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize("source", ["from blackbox.nowhere import x", "from blackbox import Feed"])
def test_import_of_a_name_without_a_place_is_found(source: str) -> None:
    with pytest.raises(AssertionError, match="has 0 places in ORDER"):
        violations("feed", source)


def test_relative_import_is_found() -> None:
    with pytest.raises(AssertionError, match="relative import"):
        violations("feed", "from .routing import symbol_of")


def test_import_for_types_alone_is_fine() -> None:
    source = "if TYPE_CHECKING:\n    from blackbox.feed import Feed\nelse:\n    import feeds"
    assert violations("routing", source) == ["blackbox.routing imports feeds: the core knows no feed"]


def test_import_along_the_order_is_fine() -> None:
    source = "import numpy\nfrom blackbox import __version__, errors\nfrom blackbox.routing import x"
    assert violations("feed", source) == []
