"""Generate all files that depend on `blackbox.block.form.layout`: `make layout`.

These are the constants of the Spark connector and of the reference clients, the tables and examples of the docs, parts
of `blackbox.block.form.format` and `tests.wire`, and the golden files. A generated part of a file is between lines with
`layout: NAME` and `end of layout`; the rest is written by hand.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from blackbox.archive.files import format as journal
from blackbox.block.form import format as block
from blackbox.block.form import layout
from blackbox.block.form.layout import (
    ACKNOWLEDGEMENT,
    COLUMNS,
    DATAGRAM,
    ENTRY,
    FILE_HEAD,
    FLAGS,
    HEADER,
    MARK,
    RECORD,
    Structure,
)
from blackbox.feed.routing.key_rule import MAX_CHANNELS, MAX_KEY_BYTES
from tests import golden, wire

ROOT: Final = Path(__file__).resolve().parents[1]
COMMAND: Final = "make layout"
_JAVA: Final = "blackbox/analysis/spark/connector/Layout.java"
_C: Final = "tests/relay/clients/layout.h"
_NODE: Final = "tests/relay/clients/layout.mjs"
_WRITTEN: Final = f"Written by `{COMMAND}` from blackbox/block/form/layout.py"
_ATTRIBUTES: Final = {"schema": "schema_id", "slice": "slice_id"}
"""Fields with another name in Python."""
_PART: Final = r"(layout: {}(?: -->)?\n).*?(?=^[^\n]*end of layout)"

_CONSTANTS: Final = (
    "KNOWN_FLAGS",
    "HEADER_BYTES",
    "CHECKED_BYTES",
    "MAX_BODY_BYTES",
    "MAX_SEQUENCE",
    "MAX_TOPIC_BYTES",
    "LEAST_ROW_BYTES",
    "NONCE_BYTES",
)
_TRAVELLING: Final = [flag for flag in FLAGS if flag.travels]


def written() -> dict[str, bytes]:
    """Return the expected content of each file by its path in the project."""
    files = {_JAVA: _java(), _C: _c(), _NODE: _node()}
    files |= {path: _with_parts(path, parts) for path, parts in _parts().items()}
    found = {path: text.encode() for path, text in files.items()}
    for name, frames in golden.blocks().items():
        found[f"tests/block/golden/{name}.hex"] = frames.text.encode()
    with tempfile.TemporaryDirectory() as place:
        golden.write_recording(Path(place))
        for path in sorted(Path(place).rglob("*")):
            if path.is_file():
                found[f"{golden.RECORDING.relative_to(ROOT)}/{path.relative_to(place)}"] = path.read_bytes()
    return found


def _parts() -> dict[str, dict[str, str]]:
    """Return the text of each generated part, by file and name."""
    return _in_python() | {
        "docs/wire-format.md": {
            "header": _table(HEADER),
            "flags": _flags(),
            "columns": _columns(),
            "formulas": _formulas(),
            "example": _example(),
            "acknowledgement": _table(ACKNOWLEDGEMENT),
            "datagram": _table(DATAGRAM),
        },
        "docs/journal-format.md": {each.name: _table(each) for each in (FILE_HEAD, RECORD, MARK)},
    }


def _in_python() -> dict[str, dict[str, str]]:
    return {
        "blackbox/block/form/format.py": {"flags": _flags_in_python(), "header and body": _python()},
        "tests/wire.py": {"fields of a header": _fields_in_tests()},
    }


def _with_parts(path: str, parts: dict[str, str]) -> str:
    text = (ROOT / path).read_text()
    for name, part in parts.items():
        found = list(re.finditer(_PART.format(name), text, re.DOTALL | re.MULTILINE))
        if len(found) != 1:
            raise ValueError(f"{path} had {len(found)} parts 'layout: {name}', expected 1")
        text = text[: found[0].end(1)] + part + text[found[0].end() :]
    return text


# Columns. Starts are C expressions; Python and the docs use their own syntax for conditions.


def _starts() -> list[tuple[str, str, str, str]]:
    """Return (name, flag, start if the column before is present, start if it is absent) of each column."""
    found = []
    for before, column in zip(COLUMNS, COLUMNS[1:], strict=False):
        at = f"{before.name}_at"
        end = before.size if before is COLUMNS[0] else f"{at} + {before.size}"
        there = end if before.size.startswith("8 *") else f"align({end})"
        if before.only.startswith("not "):
            found.append((column.name, before.flag, at, there))
        else:
            found.append((column.name, before.flag, there, at if before.flag else ""))
    return found


def _in_c(indent: str, kind: str) -> str:
    """Return C statements that compute the starts."""
    lines = []
    for name, flag, with_flag, without in _starts():
        text = f"(flags & {flag}) != 0 ? {with_flag} : {without}" if flag else with_flag
        lines.append(f"{indent}{kind} {name}_at = {text};")
    return _lines(lines)


def _in_camel(indent: str, kind: str, **names: str) -> str:
    """Return the statements for Java and JavaScript; `names` renames counts."""
    text = re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda match: _camel(match[0]), _in_c(indent, kind))
    return re.sub(r"\b[a-z]+\b", lambda match: names.get(match[0], match[0]), text)


# Python


def _flags_in_python() -> str:
    return _lines(f'FLAG_{flag.name}: Final = {flag.value}\n"""{_sentence(flag.meaning)}"""' for flag in FLAGS)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _python() -> str:
    fields = [field for field in HEADER.fields if field.name not in ("magic", "version", "header_checksum")]
    names = [_ATTRIBUTES.get(field.name, field.name) for field in fields]
    values = [f"head.{field.name}" if field.type == "i64" else f"numpy.int64(head.{field.name})" for field in fields]
    starts = ""
    for name, flag, with_flag, without in _starts():
        text = f"{with_flag} if flags & FLAG_{flag} else {without}" if flag else with_flag
        starts += f"    {name}_at = {text.replace('align(', '_align(')}\n"
    return f'''class Header(NamedTuple):
    """The fields of a header, all int64; those of u32 from 0 up."""

{_lines(f"    {name}: int" for name in names)}

@njit(nogil=True, cache=True)
def read_header(address: int) -> Header:
    """Return the fields of the header at `address`."""
    head = block_header_at(address)
    return Header(
{_lines(f"        {value}," for value in values)}    )


class BodyLayout(NamedTuple):
    """Start of each column of a body, and the end of the body, in bytes. An absent column has no bytes."""

{_lines(f"    {column.name}: int" for column in COLUMNS[1:])}    end: int


@njit(inline="always")
def _align(offset: int) -> int:
    return (offset + 7) & -8


@njit(nogil=True, cache=True)
def body_layout(count: int, topics: int, topic_bytes: int, payload_bytes: int, flags: int) -> BodyLayout:
    """Return where the columns start. `ts_event` starts at 0; `flags` say which of the others are present."""
{starts}    return BodyLayout(
{_lines(f"        {column.name}_at," for column in COLUMNS[1:])}        payloads_at + payload_bytes,
    )


'''


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _fields_in_tests() -> str:
    known = {"magic": 'bytes = b"BBOX"', "version": "int = VERSION", "flags": "int = CHECKSUM", "epoch": "int = 1"}
    names = ["slice_id" if name == "slice" else name for name in HEADER.offsets]
    return "".join(f"    {name}: {known.get(name, 'int = 0')}\n" for name in names)


# Java, C and JavaScript


def _constants() -> dict[str, int]:
    """Return the constants of all languages by name."""
    magics = {"BLOCK": layout.BLOCK_MAGIC, "RECORD": layout.RECORD_MAGIC, "MARK": layout.MARK_MAGIC}
    magics |= {"SEGMENT": layout.SEGMENT_MAGIC, "INDEX": layout.INDEX_MAGIC}
    return (
        {"VERSION": layout.VERSION}
        | {f"MAGIC_{name}": int.from_bytes(magic, "little") for name, magic in magics.items()}
        | {flag.name: flag.value for flag in _TRAVELLING}
        | {name: getattr(block, name) for name in _CONSTANTS}
        | {"MAX_KEY_BYTES": MAX_KEY_BYTES, "MAX_CHANNELS": MAX_CHANNELS}
    )


def _java() -> str:
    constants = _constants()
    names = "OFFSET_CHECKED", "RECORD_ALIGNMENT", "ENTRY_SPAN_BYTES", "CODEC_NONE", "CODEC_LZ4", "CODEC_ZSTD"
    constants |= {name: getattr(journal, name) for name in names}
    for structure, name, size in (
        (FILE_HEAD, "FILE_HEAD", "FILE_HEAD_BYTES"),
        (RECORD, "RECORD", "RECORD_HEAD_BYTES"),
        (MARK, "MARK", "MARK_HEAD_BYTES"),
        (ENTRY, "ENTRY", "ENTRY_BYTES"),
    ):
        constants |= {size: structure.size} | _offsets(f"{name}_", structure)
    constants |= _offsets("AT_", HEADER, RECORD.offsets["block"])
    lines = []
    for name, value in constants.items():
        kind, suffix = ("long", "L") if value >= 1 << 31 or name == "MAX_BODY_BYTES" else ("int", "")
        lines.append(f"    static final {kind} {name} = {value}{suffix};")
    columns = [_camel(column.name) for column in COLUMNS[1:]]
    stores = _lines(f"            {name} = {name}At;" for name in columns)
    return f"""package blackbox;

/** Places and constants of blocks and journals. {_WRITTEN}. */
final class Layout {{
{_lines(lines)}
    private Layout() {{
    }}

    /** Starts of the columns of a body, in bytes; `tsEvent` starts at 0. */
    static final class Columns {{
{_lines(f"        long {name};" for name in columns)}
        void of(int flags, long count, long topicCount, long topicBytes) {{
{_in_camel("            ", "long", topics="topicCount")}{stores}        }}

        private static long align(long offset) {{
            return (offset + 7) & -8L;
        }}
    }}
}}
"""


def _offsets(prefix: str, structure: Structure, start: int = 0) -> dict[str, int]:
    return {f"{prefix}{name.upper()}": start + at for name, at in structure.offsets.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _small_constants() -> dict[str, int]:
    """Return the constants of clients."""
    return {name: value for name, value in _constants().items() if name == "MAGIC_BLOCK" or "MAGIC" not in name}


def _c() -> str:
    small = {name: value for name, value in _small_constants().items() if value < 1 << 31}
    places = _offsets("AT_", HEADER)
    fields = zip(HEADER.fields, places.values(), strict=True)
    columns = [column.name for column in COLUMNS[1:]]
    return f"""/* Places and constants of blocks. {_WRITTEN}. */

#include <stdint.h>

enum {{
{_lines(f"    {name} = {value}," for name, value in (small | places).items())}}};

struct header {{
{_lines(f"    uint64_t {name};" for name in HEADER.offsets)}}};

/* Starts of the columns of a body, in bytes; ts_event starts at 0. */
struct columns {{
{_lines(f"    uint64_t {name};" for name in columns)}}};

/* Integers are little-endian, at any address. */
static uint64_t number(const unsigned char *at, int size) {{
    uint64_t value = 0;
    while (size-- > 0) value = value << 8 | at[size];
    return value;
}}

static struct header read_header(const unsigned char *at) {{
    return (struct header){{
{_lines(f"        number(at + {at}, {field.size})," for field, at in fields)}    }};
}}

static uint64_t align(uint64_t place) {{ return (place + 7) & ~(uint64_t)7; }}

static struct columns columns_of(uint64_t flags, uint64_t count, uint64_t topics, uint64_t topic_bytes) {{
{_in_c("    ", "uint64_t")}    return (struct columns){{
{_lines(f"        {name}_at," for name in columns)}    }};
}}
"""


def _node() -> str:
    reads = {"u8": "readUInt8", "u16": "readUInt16LE", "u32": "readUInt32LE", "i64": "readBigInt64LE"}
    places = _offsets("AT_", HEADER)
    fields = zip(HEADER.fields, places.values(), strict=True)
    constants = {name: value for name, value in _small_constants().items() if value < 1 << 53} | places
    return f"""// Places and constants of blocks. {_WRITTEN}.

{_lines(f"export const {name} = {value}" for name, value in constants.items())}
export function readHeader(bytes) {{
  return {{
{_lines(f"    {_camel(field.name)}: bytes.{reads[field.type]}({at})," for field, at in fields)}  }}
}}

const align = place => (place + 7) & ~7

// Starts of the columns of a body, in bytes; tsEvent starts at 0.
export function columnsOf({{ flags, count, topics, topicBytes }}) {{
{_in_camel("  ", "const").replace(";", "")}  return {{
{_lines(f"    {_camel(column.name)}: {_camel(column.name)}At," for column in COLUMNS[1:])}  }}
}}
"""


# Docs


def _table(structure: Structure) -> str:
    rows, at = [("offset", "type", "field", "meaning")], 0
    for field in structure.fields:
        unit = f", {field.unit}" if field.unit in ("ns", "bytes") and not field.name.endswith("bytes") else ""
        rows.append((str(at), field.type + unit, field.name, field.meaning))
        at += field.size
    return _aligned([*rows, (str(at), "end", "", "")])


def _flags() -> str:
    return _aligned(
        [("value", "flag", "meaning"), *((str(flag.value), flag.name, flag.meaning) for flag in _TRAVELLING)]
    )


def _columns() -> str:
    return _aligned(
        [("column", "type", "items", "only with"), *((each.name, each.type, each.items, each.only) for each in COLUMNS)]
    )


def _aligned(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows as a block of text with aligned columns; numbers in the first are aligned to the right."""
    columns = [[cell.replace("`", "") for cell in column] for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    lines = ""
    for first, *others in zip(*columns, strict=True):
        cells = [first.rjust(widths[0]) if first.isdigit() else first.ljust(widths[0])]
        cells += map(str.ljust, others, widths[1:])
        lines += "  ".join(cells).rstrip() + "\n"
    return f"\n```text\n{lines}```\n\n"


def _formulas() -> str:
    width = max(len(column.name) for column in COLUMNS) + 3
    lines = [f"    {f'{COLUMNS[0].name}_at':{width}} = 0\n"]
    for name, flag, with_flag, without in _starts():
        text = f"{flag} ? {with_flag} : {without}" if flag else with_flag
        lines.append(f"    {f'{name}_at':{width}} = {text}\n")
    return "\n" + "".join(lines) + "\n"


def _example() -> str:
    frames = golden.example()
    fields = wire.unpack(frames.header)
    starts = wire.starts_of(fields)
    places = ", ".join(f"`{each.name}` at {starts[each.name]}" for each in COLUMNS if wire.is_there(each, fields))
    text = textwrap.fill(f"The body frame has {len(frames.body)} bytes: {places}.", 120)
    return f"""
The header frame:

{_dump("data header", frames.header)}
{text}

{_dump("data body", frames.body)}
"""


def _dump(name: str, data: bytes) -> str:
    lines = [f"{at:04x}  {data[at : at + 16].hex(' ', -4)}\n" for at in range(0, len(data), 16)]
    return f"```hex {name}\n{''.join(lines)}```\n"


def write(files: dict[str, bytes]) -> bool:
    """Write and print the files that differ; return True if there are any."""
    changed = {name: data for name, data in files.items() if content(name) != data}
    for name, data in changed.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_bytes(data)
        print(f"wrote {name}")
    return bool(changed)


def content(name: str) -> bytes | None:
    """Return the content of a file of the project, or None if it is missing."""
    path = ROOT / name
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    # The golden files need the generated Python parts, so these are written first and reloaded.
    if write({name: _with_parts(name, parts).encode() for name, parts in _in_python().items()}):
        os.execv(sys.executable, [sys.executable, "-m", "tests.write_layout"])
    write(written())
