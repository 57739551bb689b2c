"""Write the site of the docs into `build/site`: `make site`.

Pages are the README, those of `docs/`, and generated ones: examples, configurations, the command line from typer,
settings from the structs of feed and hub files, Python names from their docstrings. `docs/site/navigation.toml` has
their order. Sphinx checks links and makes HTML that needs no server. `raw/` has the files that readers copy, and each
of their folders as a zip archive. `llms.txt` lists the pages, `llms-full.txt` has all of them as text.
"""

from __future__ import annotations

import ast
import fnmatch
import inspect
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec
import typer

import blackbox
from blackbox.cli.program import app
from blackbox.cli.ui.status import STATUS_HELP
from blackbox.feed.environment import PREFIX
from blackbox.feed.feed import Feed
from blackbox.feed.toml import table_in
from blackbox.services.hub.settings import HubSettings

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = ROOT / "build" / "site"
CONFIGURATION: Final = ROOT / "docs" / "site"
RAW: Final = ("configs", "examples", "notebooks", "tests/block/golden", "tests/relay/clients")
"""Folders with files for readers, who have the site and a wheel only."""
Navigation = dict[str, list[str]]
NAVIGATION: Final[Navigation] = tomllib.loads((CONFIGURATION / "navigation.toml").read_text())
_LANGUAGE: Final = {".py": "python", ".yml": "yaml", ".service": "ini", ".env": "ini", ".conf": "ini"}
_PAGES_OF_STRUCTS: Final = {"feed/feed.py": "settings.md", "services/hub/settings.py": "hub-settings.md"}
_WIDTH: Final = 80
_DEFAULT: Final = re.compile(r"^(\w+: .*)=([^=]*)$")
_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


class Page(NamedTuple):
    """A page of the site: its text in Markdown, and what it says in one line."""

    text: str
    summary: str

    @property
    def title(self) -> str:
        """The first heading, as plain text."""
        return self.text.partition("\n")[0].strip("# `")


def summary_of(text: str) -> str:
    """Return the first sentence of a page's first paragraph of prose, or its headings if it begins with one."""
    if text.partition("\n\n")[2].startswith("## "):
        return " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE))
    paragraphs = (each for each in text.split("\n\n") if not each.startswith(("#", "```", "<", "!", "|", " ")))
    flat = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(next(paragraphs, "").split()))
    return re.split(r"(?<=[.:]) ", flat)[0].rstrip(":")


# Pages of files.


def shown(path: Path) -> Page:
    """Return a page with a file."""
    code, title = path.read_text(), path.relative_to(ROOT).as_posix().partition("/")[2]
    download = f"[Download {path.name}]({raw_link(path, path.relative_to(ROOT).parent)})"
    if path.suffix == ".ipynb":
        heading, *cells = map(cell_text, json.loads(code)["cells"])
        return Page("\n\n".join([heading, download, *cells]), summary_of(heading))
    if path.suffix == ".py":
        summary = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]
    else:
        comment = re.match(r"(# .*\n)*", code)
        summary = summary_of(re.sub(r"^# ", "", comment[0], flags=re.MULTILINE)) if comment else ""
    language = _LANGUAGE.get(path.suffix, path.suffix[1:])
    return Page(f"# `{title}`\n\n{summary}\n\n{download}\n\n`````{language}\n{code}`````\n", summary)


def cell_text(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook as Markdown."""
    source = "".join(cell["source"])
    return source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"


def places() -> dict[Path, str]:
    """Return the site's name of each file of the repository that it shows."""
    found = {ROOT / "README.md": "index.md", ROOT / "blackbox" / "README.md": "files.md"}
    found |= {ROOT / f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "CHANGELOG")}
    found |= {ROOT / "blackbox" / name: page for name, page in _PAGES_OF_STRUCTS.items()}
    for path in sorted((ROOT / "docs").rglob("*.*")):
        if CONFIGURATION not in path.parents:
            found[path] = path.relative_to(ROOT / "docs").as_posix()
    found |= {ROOT / "examples": "examples.md", ROOT / "configs": "configurations.md"}
    for folder in ("examples", "configs", "notebooks"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            found[path] = f"{path.relative_to(ROOT).with_suffix('').as_posix()}.md"
    return found


def relinked(text: str, source: Path, known: dict[Path, str]) -> str:
    """Return the text of `source` with links that are valid on the site. Links to files that it lacks become text."""

    def link(match: re.Match[str]) -> str:
        label, (path, mark, anchor) = match[1], match[2].partition("#")
        target, folder = (source.parent / path).resolve(), Path(known[source]).parent
        if not path or not target.exists():
            return match[0]
        if target in known:
            return f"[{label}]({os.path.relpath(known[target], folder)}{mark}{anchor})"
        return f"[{label}]({raw_link(target, folder)})" if is_raw(target) else label

    return _LINK.sub(link, text)


def is_raw(path: Path) -> bool:
    """Return True if the site has a file as it is, or a folder as an archive."""
    return any(path.is_relative_to(ROOT / folder) for folder in RAW)


def raw_link(path: Path, folder: Path) -> str:
    """Return the link from a page in `folder` to a file as it is, or to the archive of a folder. See `conf.py`."""
    return f"raw:{os.path.relpath(Path('raw') / path.relative_to(ROOT), folder)}{'.zip' if path.is_dir() else ''}"


def pages_of_files() -> Iterator[tuple[str, Page]]:
    """Yield name and page of each file that the site shows."""
    known = places()
    for path, name in known.items():
        if path.suffix == ".md":
            text = relinked(path.read_text(), path, known)
            yield name, Page(text, summary_of(text))
        elif is_raw(path) and path.is_file():
            yield name, shown(path)


# Generated pages.


def escaped(text: str) -> str:
    """Return plain text as Markdown, with code in backticks kept."""
    parts = re.sub(r"\[cyan\](.*?)\[/\]", r"`\1`", text).split("`")
    return "`".join(part if at % 2 else re.sub(r"([<*_\[\]])", r"\\\1", part) for at, part in enumerate(parts))


def command_text(command: Any, name: str) -> str:
    """Return the part of the page about a command: usage, help, arguments and options."""
    context = typer.Context(command, info_name=name)
    lines = [f"### `{name}`", "", "```text", command.get_usage(context).removeprefix("Usage: "), "```", ""]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        is_command = re.fullmatch(r"(blackbox .*?)(?: {2,}(.*))?", paragraph)
        lines += ["```text", paragraph, "```", ""] if is_command else [escaped(paragraph), ""]
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and not record[0].startswith("--log-"):
            name = re.sub(r" <(str|list\[str\])>$", "", record[0])
            lines += [f"`{name}`", f": {escaped(record[1])}", ""]
    return "\n".join(lines).replace("```\n\n```text\n", "") + "\n"


def command_line() -> Page:
    """Return the page of all commands, by task."""
    program: Any = typer.main.get_command(app)
    text = "# Command line\n\nAll commands and their options, as `blackbox COMMAND --help` prints them.\n\n"
    text += f"{STATUS_HELP} Feed files of the examples are among the [configurations](configurations.md).\n"
    for panel in dict.fromkeys(command.rich_help_panel for command in program.commands.values()):
        text += f"\n## {panel}\n\n"
        for name, command in program.commands.items():
            if command.rich_help_panel == panel:
                inner = getattr(command, "commands", None) or {"": command}
                text += "\n".join(command_text(each, f"blackbox {name} {sub}".rstrip()) for sub, each in inner.items())
    return Page(text, summary_of(text))


def kind_of(annotation: Any) -> str:
    """Return the type of a setting in the words of TOML."""
    if table_in(annotation) is not None:
        return "table" if get_origin(annotation) is not tuple else "list of tables"
    if get_origin(annotation) in (tuple, list):
        inner = list(dict.fromkeys(kind_of(each) for each in get_args(annotation) if each is not Ellipsis))
        return f"list of {' and '.join(inner)}"
    if isinstance(annotation, UnionType):
        return " or ".join(dict.fromkeys(kind_of(each) for each in get_args(annotation) if each is not type(None)))
    words = {str: "text", int: "integer", bool: "boolean", float: "number"}
    return words.get(annotation) or kind_of(get_args(annotation)[0] if get_args(annotation) else str)


def table_text(struct: type[msgspec.Struct], heading: str, variable: str) -> str:
    """Return the part of a page about one table. `variable`: start of its variables; empty: it has no variables."""
    body, _ = definition(struct.__module__, struct.__name__)
    meanings = {name_of_statement(node): text for node, text in documented(body.body)}  # type: ignore[attr-defined]
    text = f"\n## {heading}\n\n{inspect.getdoc(struct)}\n"
    inner = ""
    for field in msgspec.structs.fields(struct):
        text += f"\n### `{field.name}`\n\n*{kind_of(field.type)}*\n\n{meanings[field.name]}\n"
        table = table_in(field.type)
        if table is not None:
            is_list = get_origin(field.type) is tuple
            heading = f"Tables `[[{field.name}]]`" if is_list else f"Table `[{field.name}]`"
            start = f"{variable}{field.name.upper()}_{'0_' if is_list else ''}"
            inner += table_text(table, heading, variable and start)
        elif variable:
            text += f"\nFrom the environment: `{variable}{field.name.upper()}`\n"
    return text + inner


def settings() -> dict[str, Page]:
    """Return the pages of the settings of a feed file and of a hub file."""
    feed = "# Settings of a feed file\n\nAll keys of the TOML file that the processes of a feed load.\n"
    feed += table_text(Feed, "Top level", PREFIX)
    hub = "# Settings of a hub file\n\nAll keys of the TOML file of a hub.\n" + table_text(HubSettings, "Top level", "")
    pages = (Page(text, summary_of(text)) for text in (feed, hub))
    return dict(zip(_PAGES_OF_STRUCTS.values(), pages, strict=True))


# Python names.


@cache
def statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module."""
    return ast.parse(inspect.getsource(import_module(module))).body


def definition(module: str, name: str) -> tuple[ast.stmt, str]:
    """Return the statement that defines a name, and its docstring. A name may be imported from elsewhere."""
    for node, text in documented(statements(module)):
        if name_of_statement(node) == name:
            return node, text
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            return definition(node.module or "", name)
    raise KeyError(f"{module} does not define {name}")


def name_of_statement(node: ast.stmt) -> str:
    """Return the name that a statement defines, or ""."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else getattr(node, "name", "")


def documented(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements that define or import names, each with its docstring."""
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        text = ""
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
        elif isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = inspect.cleandoc(str(after.value.value))
        if name_of_statement(node) or isinstance(node, ast.ImportFrom):
            yield node, text


def sections(text: str) -> str:
    """Return a docstring as Markdown: arguments and errors as lists of definitions."""

    def section(match: re.Match[str]) -> str:
        items = (item.partition(": ") for item in re.split(r"\n(?=\S)", inspect.cleandoc(match[2])))
        return f"{match[1]}:\n\n" + "\n".join(f"`{name}`\n: {' '.join(what.split())}\n" for name, _, what in items)

    return re.sub(r"^(Args|Raises):\n((?: {4}.*\n?|\n)+)", section, text, flags=re.MULTILINE)


def signature(node: ast.stmt, name: str) -> str:
    """Return a block with the first line of a definition; if that is long, with a parameter a line."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(node.args))
        parts = [_DEFAULT.sub(r"\1 = \2", each) for each in re.split(r", (?![^\[(]*[\])])", given)]
        returned = ast.unparse(node.returns) if node.returns else "None"
        line = f"{name}({', '.join(parts)})" + ("" if node.name == "__init__" else f" -> {returned}")
        if any("property" in ast.unparse(each) for each in node.decorator_list):
            line = f"{name}: {returned}"
        elif len(line) > _WIDTH:
            line = line.replace(", ".join(parts), "\n    " + ",\n    ".join(parts) + ",\n")
    elif isinstance(node, ast.ClassDef):
        line = f"class {name}({', '.join(map(ast.unparse, [*node.bases, *node.keywords]))})".replace("()", "")
    else:
        line = ast.unparse(node)
    return f"```python\n{re.sub(r'= _[A-Z_]+(?=[,)])', '= ...', line)}\n```\n"


def is_public(node: ast.stmt) -> bool:
    """Return True if a member of a class is part of its interface: not private, and no later setter of a property."""
    name = name_of_statement(node)
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
    return name[:1] != "_" and not any(each.endswith((".setter", "overload")) for each in decorators)


def class_text(cls: type, depth: int) -> str:
    """Return what the docstrings of a class and of its members say. `depth`: that of the headings of members."""
    body, meaning = definition(cls.__module__, cls.__name__)
    head, constructor, members = signature(body, cls.__name__), "", ""
    taken = set[str]()
    for base in (each for each in cls.__mro__ if each.__module__.startswith("blackbox")):
        body, _ = definition(base.__module__, base.__name__)
        for node, what in documented(body.body):  # type: ignore[attr-defined]
            name = name_of_statement(node)
            if name == "__init__" and what and name not in taken:
                head, constructor = signature(node, cls.__name__), f"\n{sections(what)}\n"
            elif is_public(node) and name not in taken:
                heading = f"{'#' * depth} `{cls.__name__}.{name}`"
                members += f"\n{heading}\n\n{signature(node, name)}\n{sections(what)}\n"
            taken.add(name)
    return f"{head}\n{sections(meaning)}\n{constructor}{members}"


def first_line(value: object) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(value) or "").partition("\n")[0]


def name_text(module: str, name: str, depth: int) -> str:
    """Return the part of a page about a name of a module."""
    value = getattr(import_module(module), name)
    heading = f"\n{'#' * depth} `{name}`\n\n"
    if inspect.isclass(value):
        return heading + class_text(value, depth + 1)
    node, meaning = definition(module, name)
    return f"{heading}{signature(node, name)}\n{sections(meaning)}\n"


def python() -> Iterator[tuple[str, Page]]:
    """Yield the pages about public names: one for each class, and one for the other names of each folder."""
    for name in blackbox.__all__:
        value = getattr(blackbox, name)
        if inspect.isclass(value) and not issubclass(value, Exception):
            text = f"# {name}\n\n{class_text(value, 2)}"
            yield f"api/{name.lower()}.md", Page(text, first_line(value))
    modules = re.findall(r"^ {4}(blackbox\.[\w.]+) +(.*)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    found = {module: re.findall(r"\w+", names) for module, names in modules}
    for module in ("blackbox.errors", "blackbox.testing"):
        nodes = [node for node, _ in documented(statements(module)) if is_public(node)]
        found[module] = [name_of_statement(node) for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    for room in sorted({module.split(".")[1] for module in found}):
        text, summary = f"# `blackbox.{room}`\n", first_line(import_module(f"blackbox.{room}"))
        for module in (each for each in found if each.split(".")[1] == room):
            says = first_line(import_module(module))
            text += f"\n## `{module}`\n\n{says}\n" + "".join(name_text(module, name, 3) for name in found[module])
        yield f"names/{room}.md", Page(text, summary)


# The site.


def name_of(group: str) -> str:
    """Return the name of the page that lists a group."""
    return re.sub(r"\W+", "-", group.lower()) + ".md"


def arranged(names: set[str]) -> Navigation:
    """Return the pages of each section. A pattern takes those that have no line of their own."""
    free = names.difference(*NAVIGATION.values())
    return {
        section: [name for line in lines for name in (sorted(fnmatch.filter(free, line)) if "*" in line else [line])]
        for section, lines in NAVIGATION.items()
    }


def toctree(names: list[str], caption: str = "") -> str:
    """Return Markdown that puts pages into the side bar."""
    options = [":hidden:", *([":maxdepth: 2", f":caption: {caption}"] if caption else [":maxdepth: 1"])]
    return "\n".join(["```{toctree}", *options, "", *(f"/{name}" for name in names), "```", ""])


def listing(names: list[str], pages: dict[str, Page], suffix: str = ".md") -> str:
    """Return a list of pages, one a line, with links for a page at the top."""
    found = ((name.removesuffix(".md"), pages[name]) for name in names)
    return "".join(f"- [{page.title}]({name}{suffix}){page.summary and ': '}{page.summary}\n" for name, page in found)


def all_pages() -> tuple[dict[str, Page], Navigation]:
    """Return all pages by name, and the pages of each section."""
    pages = {**dict(pages_of_files()), "cli.md": command_line(), **settings(), **dict(python())}
    navigation, folders = arranged(set(pages)), {name: path for path, name in places().items() if path.is_dir()}
    captions: dict[str, list[str]] = {}
    for section, names in navigation.items():
        caption, _, group = section.partition("/")
        first = name_of(group)
        if group:
            rest = [name for name in names if name != first]
            assert first in names or first not in pages, f"the page of {group} has the name of another page"
            download = f"[Download all]({raw_link(folders[first], Path())})\n\n" if first in folders else ""
            page = pages.get(first, Page(f"# {group}\n\n{download}{listing(names, pages)}", ""))
            pages[first] = Page(f"{page.text}\n{toctree(rest)}", page.summary)
        captions.setdefault(caption, []).extend([first] if group else names)
    trees = "".join(f"\n{toctree(names, caption)}" for caption, names in captions.items())
    pages["index.md"] = pages["index.md"]._replace(text=pages["index.md"].text + trees)
    return pages, navigation


def write_sources(pages: dict[str, Page], folder: Path) -> None:
    """Write the pages, and the pictures of `docs/`, as sources for Sphinx."""
    files = {name: path.read_bytes() for path, name in places().items() if path.is_file()}
    files |= {name: page.text.encode() for name, page in pages.items()}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def write_raw(out: Path) -> None:
    """Write the folders of `RAW`, and an archive of each folder next to it."""
    for top in (out / folder for folder in RAW):
        shutil.copytree(ROOT / top.relative_to(out), top, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        for folder in [top, *(path for path in top.rglob("*") if path.is_dir())]:
            shutil.make_archive(str(folder), "zip", folder.parent, folder.name)


def build(out: Path) -> None:
    """Write the site into `out`, and what it is made from next to it. Ends the program if anything is wrong."""
    from sphinx.cmd.build import build_main

    pages, navigation = all_pages()
    sources, trees = (out.with_name(f"{out.name}-{what}") for what in ("pages", "trees"))
    for folder in (out, sources, trees):  # Sphinx reports only warnings of pages that it reads
        shutil.rmtree(folder, ignore_errors=True)
    write_sources(pages, sources)
    if build_main(["-q", "-W", "--keep-going", "-c", str(CONFIGURATION), "-d", str(trees), str(sources), str(out)]):
        sys.exit(1)
    write_raw(out / "raw")
    texts = [page.text.partition("\n```{toctree}")[0] for page in pages.values()]
    index = f"# blackbox\n\n> {pages['index.md'].summary}\n\n[Start page](index.html)\n"
    for section, names in navigation.items():
        index += f"\n## {section}\n\n{listing(names, pages, '.html')}"
    (out / "llms.txt").write_text(index)
    (out / "llms-full.txt").write_text("\n\n".join(texts))


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    build(directory)
    print(directory / "index.html")
