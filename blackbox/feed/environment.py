"""Feed settings from the environment: variables `BLACKBOX_FEED_...` override those of a feed file.

A variable is the setting's name in capitals: `BLACKBOX_FEED_MAX_LAG_NS`, `BLACKBOX_FEED_SECURITY_KEY`,
`BLACKBOX_FEED_SLICES_0_ENDPOINTS`. Lists are separated by commas.
"""

import re
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.toml import table_in

PREFIX = "BLACKBOX_FEED_"
_NUMBER = re.compile(r"[+-]?\d[\d_]*")
_ITEM = re.compile(r"(\d+)_(.*)")
_EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    str: "text",
}


def override(document: dict[str, Any], struct: type[msgspec.Struct], environment: Mapping[str, str]) -> list[str]:
    """Write the settings of `environment` into parsed TOML; return the variables that were used, in order.

    Raises:
        ConfigError: a variable names no setting (the error suggests one) or a missing slice, or has a wrong value.
    """
    used = sorted(name for name in environment if name.startswith(PREFIX))
    for variable in used:
        table, key, expected = _place_of(variable, variable.removeprefix(PREFIX), document, struct)
        table[key] = _value_of(variable, environment[variable], expected)
    return used


def _place_of(
    variable: str, name: str, table: dict[str, Any], struct: type[msgspec.Struct]
) -> tuple[dict[str, Any], str, Any]:
    """Return the table, key and type of the setting called `name`, the end of `variable`."""
    for field in msgspec.structs.fields(struct):
        inside = table_in(field.type)
        if inside is None:
            if name == field.name.upper():
                return table, field.name, field.type
        elif name.startswith(f"{field.name.upper()}_"):
            rest = name.removeprefix(f"{field.name.upper()}_")
            if get_origin(field.type) is not tuple:
                inner = table.setdefault(field.name, {})
                return _place_of(variable, rest, inner if isinstance(inner, dict) else {}, inside)
            item = _ITEM.fullmatch(rest)
            if item is not None:
                return _place_of(variable, item[2], _item_of(variable, table, field.name, int(item[1])), inside)
    raise ConfigError(f"{variable} is not a setting of a feed: {_hint(variable, name, struct)}")


def _item_of(variable: str, table: dict[str, Any], key: str, position: int) -> dict[str, Any]:
    tables = table.get(key)
    many = len(tables) if isinstance(tables, list) else 0
    if position >= many:
        raise ConfigError(f"{variable} is of {key}[{position}], expected 0 to {many - 1}: the feed file has {many}")
    item = tables[position] if isinstance(tables, list) else None
    return item if isinstance(item, dict) else {}  # `from_document` reports an entry that is not a table


def _hint(variable: str, name: str, struct: type[msgspec.Struct]) -> str:
    from difflib import get_close_matches  # only needed on errors

    known = []
    for field in msgspec.structs.fields(struct):
        upper, inside = field.name.upper(), table_in(field.type)
        item = "_0" * (get_origin(field.type) is tuple)
        known += [upper] if inside is None else [f"{upper}{item}_{each.upper()}" for each in inside.__struct_fields__]
    before = variable.removesuffix(name)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return (
        f"did you mean {before}{close[0]}?"
        if close
        else f"expected one of {', '.join(before + each for each in known)}"
    )


def _value_of(variable: str, text: str, expected: Any) -> Any:
    plain = get_args(expected)[0] if get_origin(expected) is Annotated else expected
    kinds = get_args(plain) if isinstance(plain, UnionType) else (plain,)
    lists = [kind for kind in kinds if get_origin(kind) is tuple]
    value: Any = text
    if lists and (str not in kinds or "," in text):
        value = [part.strip() for part in text.split(",")] if text.strip() else []
    elif _NUMBER.fullmatch(text) and int in kinds:
        value = text.replace("_", "")
    try:
        return msgspec.to_builtins(msgspec.convert(value, expected, strict=False))
    except msgspec.ValidationError:
        what = next((_EXPECTED[kind] for kind in kinds if kind in _EXPECTED), "")
        if lists:
            of = get_args(lists[0])
            many = "" if ... in of else f"{len(of)} "
            what = f"{many}{'numbers' if of[0] is int else 'texts'} separated by commas"
        raise ConfigError(f"{variable} was {text!r}, expected {what}") from None
