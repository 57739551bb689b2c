"""Secrets are not in the repr of tuples and structs, so that logs and tracebacks do not show them."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import pytest
from blackbox_feeds.itch50.soupbintcp import Login

from blackbox.archive.serve.protocol import TellConsumer
from blackbox.services.bridge.url import Url
from blackbox.transport.security.curve import ClientKeys, Pair
from blackbox.transport.security.group_key import GroupKey
from tests.project.test_rooms import MODULES

SECRET = "Tr0ub4dor"
HELD = {"password", "secret"}


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        (Login("bob", SECRET), "Login(user='bob', password=..., session='', sequence=1)"),
        (Login.of(Login("bob", SECRET).pack()[3:])._replace(sequence=5), "sequence=5)"),
        (Pair(b"public", SECRET.encode()), "Pair(public=b'public', secret=...)"),
        (ClientKeys(Pair(b"public", SECRET.encode()), b"server"), "server=b'server')"),
        (GroupKey(1, SECRET.encode()), "GroupKey(function=1, key=...)"),
        (Url.of(f"redis://desk:{SECRET}@host:1/0", "a URL"), "user='desk', password=..., host='host'"),
        (TellConsumer(name="x", secret=SECRET.encode()), "TellConsumer(name='x', secret=..., slices={}"),
    ],
)
def test_repr_has_all_but_the_secret(held: Any, shown: str) -> None:
    assert shown in repr(held)
    assert SECRET not in f"{held} {held!r} {[held]}"


def test_every_tuple_or_struct_with_a_password_or_secret_hides_it() -> None:
    found = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            body = node.body if isinstance(node, ast.ClassDef) else []
            if HELD & {ast.unparse(each.target) for each in body if isinstance(each, ast.AnnAssign)}:
                assert isinstance(node, ast.ClassDef)
                found.append(getattr(importlib.import_module(module), node.name))
    assert {each.__name__ for each in found} >= {"Login", "Pair", "Url", "Address", "TellConsumer"}
    assert [each for each in found if each.__repr__.__module__ != "blackbox.transport.security.hidden"] == []
