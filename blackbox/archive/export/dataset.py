"""Recorded messages as an Arrow dataset, which DuckDB queries: it asks for some columns and a filter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne
from typing import Any, Final

import pyarrow
from pyarrow import compute
from pyarrow.dataset import Dataset, Expression, Scanner

from blackbox.archive.export.pushed import NUMBERS, TEXTS, Pushed, Read, compared
from blackbox.documents import DecodeError, Decoder

_COMPARISON: Final = re.compile(r"\((\w+) (==|!=|>=|<=|>|<) (.+)\)", re.DOTALL)
_MEMBER: Final = re.compile(r"is_in\((\w+), \{value_set=[^\[]*:\[(.*)\], null_matching_behavior=MATCH\}\)", re.DOTALL)
_MEMBER_OR_NULL: Final = re.compile(r"if_else\(is_valid\(\w+\), (.*), null\[bool\]\)", re.DOTALL)
_TEXT: Final = Decoder[str]("json", str)
_OPERATORS: Final = {"==": eq, "!=": ne, ">=": ge, "<=": le, ">": gt, "<": lt}


class Messages(Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A recording's messages with the columns of a frame. Each scan reads the recording again."""

    def __init__(self, schema: pyarrow.Schema, read: Read) -> None:
        self._columns, self._read = schema, read

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns."""
        return self._columns

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Expression | None = None,  # noqa: A002
        **options: Any,
    ) -> Scanner:
        """Return a scanner of some columns of the rows that a filter selects. `options` are those of a `Scanner`."""
        names = self._columns.names if columns is None else list(columns)
        # Arrow does not list the columns of a filter. A column too many only takes time.
        text = "" if filter is None else str(filter)
        needed = [name for name in self._columns.names if name in names or name in text] or self._columns.names[:1]
        schema = pyarrow.schema([self._columns.field(name) for name in needed])
        rows = self._read(needed, Pushed() if filter is None else pushed_by(filter, self._columns))
        reader = pyarrow.RecordBatchReader.from_batches(schema, rows)
        return Scanner.from_batches(reader, columns=names, filter=filter, **options)


def pushed_by(expression: Expression, schema: pyarrow.Schema) -> Pushed:
    """Return the usable conditions of a filter on these columns.

    An Arrow expression can only be printed and compared. So its text is parsed, an expression is made of the parts, and
    the parts are used only if it equals the given one.
    """
    made: list[Expression] = []
    found: list[Pushed] = []

    def parse(text: str) -> Expression:
        if halves := _halves(text):
            return reduce(and_, map(parse, halves))
        whole, pushed = _parsed(text, schema)
        found.append(pushed)
        return whole

    with suppress(ValueError, KeyError, DecodeError, pyarrow.ArrowException):
        made.append(parse(str(expression)))
    return Pushed().both(found) if made and made[0].equals(expression) else Pushed()


def _halves(text: str) -> list[str]:
    """Return the operands if a text is `(one and other)`; else nothing."""
    depth, is_quoted, at = 0, False, 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif letter == '"':
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (letter == "(") - (letter == ")")
            if depth == 1 and text.startswith(" and ", at):
                return [text[1:at], text[at + 5 : -1]]
        at += 1
    return []


def _parsed(text: str, schema: pyarrow.Schema) -> tuple[Expression, Pushed]:
    """Return the expression that a text seems to be, and its condition.

    Raises ValueError, KeyError or DecodeError if unknown.
    """
    if match := _COMPARISON.fullmatch(text):
        name, sign, value = match.groups()
        kind = _value_type(schema, name)
        constant = _constant(value, kind)
        whole = _OPERATORS[sign](compute.field(name), constant)
        return whole, _pushed(name, sign, [constant.as_py()])
    optional = _MEMBER_OR_NULL.fullmatch(text)
    if match := _MEMBER.fullmatch(optional[1] if optional else text):
        name, items = match.groups()
        kind = _value_type(schema, name)
        values = [_constant(item, kind).as_py() for item in re.split(r",\n", items)]
        whole = compute.field(name).isin(pyarrow.array(values, kind))
        if optional:
            whole = compute.if_else(compute.field(name).is_valid(), whole, pyarrow.scalar(None, pyarrow.bool_()))
        return whole, _pushed(name, "in", values)
    raise ValueError(text)


def _value_type(schema: pyarrow.Schema, name: str) -> pyarrow.DataType:
    kind = schema.field(name).type
    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind


def _constant(text: str, kind: pyarrow.DataType) -> pyarrow.Scalar:
    text = text.strip()
    if text.startswith('"'):
        return pyarrow.scalar(_TEXT.decode(text.encode()), kind)
    return pyarrow.scalar(text).cast(kind)


def _pushed(name: str, sign: str, values: list[Any]) -> Pushed:
    if name in TEXTS and sign in ("==", "in"):
        return Pushed(texts=((name, frozenset(values)),))
    if name in NUMBERS and all(isinstance(value, int) for value in values):
        return compared(name, sign, values)
    return Pushed()
