"""Changes of the fields of messages from one recorded day to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from blackbox.feed.schema.document import FieldLayout, SchemaDocument
from blackbox.feed.schema.schema import Schema

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording


class SchemaChange(NamedTuple):
    """A field that differs from the day before."""

    path: Path
    """Directory of the later day."""
    message_type: str
    field: str
    before: str
    """Its type in the recorded schema, such as "<i8 decimals=4"; empty if there was no such field."""
    after: str
    """Its type on the later day; empty if there is no such field."""

    def __str__(self) -> str:
        return f"{self.path}: type {self.message_type!r}, field {self.field!r}: {self.before or 'new'} -> " + (
            self.after or "gone"
        )


def schema_changes(days: Iterable[Recording]) -> Iterator[SchemaChange]:
    """Yield the fields of a feed that were added, removed or changed, day by day.

    A field that only moved within its record counts as the same.
    """
    for before, after in pairwise(days):
        if before.schema is after.schema:
            continue
        old, new = _fields(before.schema), _fields(after.schema)
        for kind, field in dict.fromkeys([*old, *new]):
            texts = old.get((kind, field), ""), new.get((kind, field), "")
            if texts[0] != texts[1]:
                yield SchemaChange(after.path, kind, field, *texts)


def has_one_layout(days: Iterable[Recording]) -> bool:
    """Return True if all messages of a type have the same bytes and meaning on all days."""
    schemas = {id(day.schema): day.schema for day in days}.values()
    documents = [SchemaDocument.of(schema) for schema in schemas]
    kinds = {kind for document in documents for kind in document.types}
    return all(
        len({document.layout(kind) if kind in document.types else None for document in documents}) == 1
        for kind in kinds
    )


def _fields(schema: Schema) -> dict[tuple[str, str], str]:
    """Return the type of each field as text, by message type and name."""
    document = SchemaDocument.of(schema)
    return {
        (each.name or kind, field.name): _text(field) for kind, each in document.types.items() for field in each.fields
    }


def _text(field: FieldLayout) -> str:
    told = msgspec.to_builtins(field)
    meaning = (f"{name}={value}" for name, value in told.items() if name not in ("name", "format", "offset"))
    return " ".join([field.format, *meaning])
