"""The docs describe every public member and list the module of every type in a public signature."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import blackbox
from blackbox import Hub, HubClient, Replay
from blackbox.replay.replay import ReplaySettings
from blackbox.services.hub.client.client import HubClientSettings
from blackbox.services.hub.server.hub import HubKeywords

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
CODE = {
    word
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for code in re.findall(r"```.*?```|`[^`]+`|^ {4}[^\n]*", page.read_text(), re.MULTILINE | re.DOTALL)
    for word in re.findall(r"\w+", code)
}
"""Words in the code of the docs."""
MODULE_OF = {
    name: module
    for module, names in re.findall(r"^ {4}(blackbox\.[\w.]+) +(.*)$", PAGE, re.MULTILINE)
    for name in re.findall(r"\w+", names)
}
CLASSES = {
    name: value
    for name in blackbox.__all__
    if inspect.isclass(value := getattr(blackbox, name)) and not issubclass(value, Exception)
}
MADE_BY_OTHERS = {"Batch", "Message", "Gap", "Stream", "Table", "Recording", "Recordings"}
"""Classes that methods return and users do not construct."""


def own_bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("blackbox")]


def members_of(name: str) -> set[str]:
    return {member for base in own_bases(CLASSES[name]) for member in vars(base) if member[0] != "_"}


def imports_of(tree: ast.Module) -> dict[str, str]:
    """Return the module of each imported name of a source, including imports only for types."""
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def annotations_of(body: ast.ClassDef, has_constructor: bool) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and annotations of each public member."""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            yield node.target.id, node.annotation
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name[0] != "_" or (has_constructor and node.name == "__init__")
        ):
            given = node.args
            parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            yield from ((node.name, each.annotation) for each in parameters if each is not None and each.annotation)
            if node.returns is not None:
                yield node.name, node.returns


def types_of(name: str) -> Iterator[tuple[str, str, Any]]:
    """Yield member, name and value of every type of this package in the public signatures of a class."""
    constructed = next((base for base in own_bases(CLASSES[name]) if "__init__" in vars(base)), None)
    for base in own_bases(CLASSES[name]):
        module = import_module(base.__module__)
        tree = ast.parse(inspect.getsource(module))
        imported = imports_of(tree)
        (body,) = (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name == base.__name__)
        for member, annotation in annotations_of(body, base is constructed and name not in MADE_BY_OTHERS):
            for node in ast.walk(annotation):
                if isinstance(node, ast.Name):
                    source = imported.get(node.id, base.__module__)
                    if source.startswith("blackbox") and hasattr(import_module(source), node.id):
                        yield f"{name}.{member}", node.id, getattr(import_module(source), node.id)


def test_the_page_lists_the_top_level_names() -> None:
    named = re.findall(r"`(\w+)`", PAGE.split("works for these 25 names:")[1].split("All errors")[0])
    assert sorted(named) == sorted(set(blackbox.__all__) - {"__version__"})
    assert len(named) == 25


def test_listed_modules_have_the_listed_names() -> None:
    assert len(MODULE_OF) > 40
    assert [name for name, module in MODULE_OF.items() if not hasattr(import_module(module), name)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_every_type_in_a_public_signature_can_be_imported_from_a_listed_module(name: str) -> None:
    missing = set()
    for member, type_name, value in types_of(name):
        if isinstance(value, TypeVar | ModuleType):
            continue
        public = getattr(blackbox, type_name, None) if type_name in blackbox.__all__ else None
        if type_name in MODULE_OF:
            public = getattr(import_module(MODULE_OF[type_name]), type_name)
        if public != value:
            missing.add(f"{type_name} of {member}")
    assert missing == set()


def test_types_of_signatures_are_found() -> None:
    assert ("Subscriber.statistics", "Statistics") in {(member, name) for member, name, _ in types_of("Subscriber")}
    assert ("Publisher.__init__", "PublisherOutbox") in {(member, name) for member, name, _ in types_of("Publisher")}


@pytest.mark.parametrize("name", CLASSES)
def test_the_docs_describe_the_public_members_of_each_class(name: str) -> None:
    assert members_of(name) - CODE == set()


def test_described_members_exist() -> None:
    described = re.findall(r"^\| `([A-Z]\w+)\.(\w+)\b", PAGE, re.MULTILINE)
    assert len(described) > 10
    assert [(name, member) for name, member in described if member not in members_of(name)] == []


@pytest.mark.parametrize(
    ("made", "keywords"), [(Replay, ReplaySettings), (HubClient, HubClientSettings), (Hub, HubKeywords)]
)
def test_typed_keywords_match_the_class(made: Any, keywords: Any) -> None:
    parameters = inspect.signature(made).parameters.values()
    expected = {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert {name: value.__forward_arg__ for name, value in keywords.__annotations__.items()} == expected


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"Source"}))  # options depend on the format
def test_no_public_member_takes_arbitrary_keywords(name: str) -> None:
    members = {member: each for base in own_bases(CLASSES[name]) for member, each in vars(base).items()}
    loose = [
        member
        for member, each in members.items()
        if (member[0] != "_" or member == "__init__") and inspect.isfunction(each)
        for parameter in inspect.signature(each).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD and "Unpack[" not in str(parameter.annotation)
    ]
    assert loose == []
