"""Strict checks of settings in frozen structs, with errors that name key, position and value."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

import msgspec

from blackbox.errors import ConfigError

StructT = TypeVar("StructT", bound=msgspec.Struct)

_SHOWN_LENGTH = 60
_TOML_NAMES = {"object": "table", "null": "nothing"}
_MISMATCH = re.compile(r"Expected (?P<expected>.+), got (?P<actual>.+)")
_MISSING = re.compile(r"Object missing required field `(?P<key>.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>\w+)|\[(?P<position>\d+)\]")


def from_document(document: Mapping[str, Any], struct: type[StructT]) -> StructT:
    """Make a struct from parsed TOML. Raises ConfigError; for an unknown key it names the nearest known one."""
    made: StructT = _convert(document, struct, "")
    return made


def table_in(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct of a setting that is a table, an optional table, or a list of tables."""
    inner = (get_args(kind) or (kind,))[0]
    return inner if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else None


def to_toml(settings: msgspec.Struct) -> str:
    """Return a struct as TOML that `from_document` reads: settings, then tables. Defaults are omitted."""
    return "".join(_toml_lines(settings, ""))


def _toml_lines(settings: msgspec.Struct, where: str) -> Iterator[str]:
    tables = []
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        if isinstance(value, msgspec.Struct):
            tables.append((f"[{where}{field.name}]", f"{where}{field.name}.", value))
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            tables += [(f"[[{where}{field.name}]]", f"{where}{field.name}.", each) for each in value]
        else:
            # TOML writes texts, numbers and lists of them like JSON, except for this character.
            yield f"{field.name} = {json.dumps(value, ensure_ascii=False)}\n".replace("\x7f", "\\u007f")
    for title, inside, table in tables:
        yield f"\n{title}\n"
        yield from _toml_lines(table, inside)


def check_types(settings: msgspec.Struct) -> None:
    """Raise ConfigError unless each setting has its type; convert lists to tuples.

    A struct made in code is checked like one that is loaded.
    """
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        checked = _convert(value, field.type, field.name)
        if checked is not value:
            msgspec.structs.force_setattr(settings, field.name, checked)


def check_ranges(settings: msgspec.Struct, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError unless each setting named in `ranges` is within (lowest, highest)."""
    for name, (lowest, highest) in ranges.items():
        value = getattr(settings, name)
        if not lowest <= value <= highest:
            raise ConfigError(f"{name} was {value}, expected {lowest} to {highest}")


def _convert(value: Any, expected: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, expected, strict=True)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`")
        where = (name + path).removeprefix(".")
        unknown = _UNKNOWN.fullmatch(text)
        if unknown:
            key = unknown["key"]
            message = f"unknown key {(f'{where}.{key}' if where else key)!r}, {_nearest(key, _keys_at(expected, path))}"
        elif isinstance(error.__cause__, ConfigError):
            message = f"{where}: {text}" if where else text
        else:
            message = _reworded(text, where, _value_at(value, path))
        raise ConfigError(message) from None


def _reworded(text: str, where: str, value: object) -> str:
    missing = _MISSING.fullmatch(text)
    if missing:
        return f"{where + ': ' if where else ''}key {missing['key']!r} was missing"
    mismatch = _MISMATCH.fullmatch(text)
    if mismatch is None:
        return f"{where}: {text}"
    expected = re.sub(
        r"`(.+?)`",
        lambda match: " or ".join(_TOML_NAMES.get(w, w) for w in match[1].split(" | ")),
        mismatch["expected"],
    )
    shown = repr(value)
    if len(shown) > _SHOWN_LENGTH:
        shown = shown[:_SHOWN_LENGTH] + "..."
    return f"{where} was {shown}, expected {expected}"


def _value_at(value: Any, path: str) -> Any:
    for step in _STEP.finditer(path):
        value = value[step["key"]] if step["key"] else value[int(step["position"])]
    return value


def _keys_at(kind: Any, path: str) -> tuple[str, ...]:
    """Return the keys of the table at a path in a struct."""
    for step in _STEP.finditer(path):
        if step["key"]:
            kind = table_in(next(field.type for field in msgspec.structs.fields(kind) if field.name == step["key"]))
    known: tuple[str, ...] = kind.__struct_fields__
    return known


def _nearest(key: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # only needed on errors

    close = get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
