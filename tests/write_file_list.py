"""Write `blackbox/README.md`: every file of `blackbox`, by room, with the first sentence of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.project.test_rooms import ORDER

ROOT = Path(__file__).resolve().parent.parent / "blackbox"
PAGE = ROOT / "README.md"


def first_sentence(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def lines_of(folder: Path, depth: int) -> list[str]:
    """Return the part of the page about a folder and those in it."""
    name = folder.relative_to(ROOT.parent).as_posix()
    lines = [f"{'#' * depth} `{name}/`", "", first_sentence(folder / "__init__.py"), ""]
    files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    lines += [f"- [`{path.name}`]({path.relative_to(ROOT)}): {first_sentence(path)}" for path in files]
    lines += [""] if files else []
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines += lines_of(inner, depth + 1)
    return lines


def page() -> str:
    """Return the page. Rooms are in the order of the data."""
    rooms = list(dict.fromkeys(room.partition(".")[0] for room in ORDER if (ROOT / room.partition(".")[0]).is_dir()))
    top = [path for path in sorted(ROOT.glob("*.py")) if path.stem != "__init__"]
    lines = ["# Files of `blackbox`", "", "In the order of the data; `make files` writes this page.", ""]
    lines += [f"- [`{path.name}`]({path.name}): {first_sentence(path)}" for path in top]
    for room in rooms:
        lines += ["", *lines_of(ROOT / room, 2)[:-1]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
