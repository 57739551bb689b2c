"""External documents are decoded in one place, with limits on bytes and depth."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox.documents import DecodeError, Decoder
from tests.support import ROOT, SOURCES

DEPTH = 100_000


class Asked(msgspec.Struct):
    prefix: str


@pytest.mark.parametrize("kind", [Asked, Any])
@pytest.mark.parametrize(
    ("form", "document"),
    [
        ("json", b'{"x": ' + b"[" * DEPTH),
        ("json", b'{"prefix": ' + b'{"a":' * DEPTH),
        ("msgpack", b"\x82\xa1x" + b"\x91" * DEPTH),
        ("msgpack", b"\x82\xa1x" + b"\x81\xa1a" * DEPTH),
        # Python 3.11 cannot decode this many levels; later versions can.
        ("json", b'{"prefix": "A", "x": ' + b"[" * 1_000 + b"]" * 1_000 + b"}"),
        ("msgpack", b"\x82\xa6prefix\xa1A\xa1x" + b"\x91" * 1_000 + b"\xc0"),
    ],
)
def test_a_deeply_nested_document_raises_decode_error(form: Any, document: bytes, kind: Any) -> None:
    """Without a limit, a frame of 2 KB nested 1,000 deep ends `blackbox client` with RecursionError."""
    with pytest.raises(DecodeError) if len(document) > DEPTH else suppress(DecodeError):
        Decoder[Any](form, kind).decode(document)


def test_a_large_document_and_invalid_text_raise_decode_error() -> None:
    decoder = Decoder[list[int]]("json", list[int], 100)
    assert decoder.decode(b"[1]" + b" " * 97) == [1]
    with pytest.raises(DecodeError, match="document had 101 bytes, expected at most 100"):
        decoder.decode(b"[1]" + b" " * 98)

    with pytest.raises(DecodeError):
        Decoder[Asked]("json", Asked).decode(b'{"prefix": "\xff"}')
    with pytest.raises(DecodeError):
        Decoder[Asked]("msgpack", Asked).decode(b"\x81\xa6prefix\xa1\xff")


def calls(path: Path) -> Iterator[str]:
    """Yield every use of a JSON or msgpack decoder."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if re.search(r"\bjson\b|msgspec\.msgpack", text) else ():
        if isinstance(node, ast.Attribute):
            used = ast.unparse(node) if node.attr in ("load", "loads", "decode", "Decoder") else ""
            if re.fullmatch(r"json\.loads?|msgspec\.(json|msgpack)\.(decode|Decoder)", used):
                yield used
        elif isinstance(node, ast.ImportFrom) and node.module in {"json", "msgspec.json", "msgspec.msgpack"}:
            yield f"from {node.module}"


def test_all_decoding_uses_decoder() -> None:
    found = {str(path.relative_to(ROOT)): texts for path in SOURCES if (texts := set(calls(path)))}
    assert found == {"blackbox/documents.py": {"msgspec.json.Decoder", "msgspec.msgpack.Decoder"}}
    assert sys.getrecursionlimit() <= 10_000
