"""The bytes of a recording: where everything stands, and a recording that was made once and must stay readable."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import xxhash

from blackbox import Recording
from blackbox.archive import format as layout
from blackbox.archive.format import ENTRY, FILE_HEAD, MARK, RECORD
from tests import journals, wire
from tests.journals import Day, Put, Row, Told, feed_of

ROOT = Path(__file__).resolve().parent
DOCUMENT = (ROOT.parents[1] / "docs" / "journal-format.md").read_text()
GOLDEN = ROOT / "golden_recording"

FILE_HEAD_PLACES = {"magic": 0, "version": 8, "slice": 10, "segment": 12, "created": 16, "checksum": 60}
RECORD_PLACES = {
    "magic": 0,
    "checksum": 4,
    "ts_recv": 8,
    "stored_bytes": 16,
    "first_row": 20,
    "codec": 24,
    "stored_checksum": 28,
}
BLOCK_PLACES = {
    "key_bytes": 5,
    "flags": 6,
    "schema": 8,
    "slice": 10,
    "count": 12,
    "epoch": 16,
    "sequence": 24,
    "ts_out": 32,
    "ts_in": 40,
    "topics": 48,
    "topic_bytes": 52,
    "body_bytes": 56,
    "stride": 60,
}
ENTRY_PLACES = {
    "start": 0,
    "stop": 8,
    "records": 16,
    "messages": 24,
    "min_ts_out": 32,
    "max_ts_out": 40,
    "min_ts_recv": 48,
    "max_ts_recv": 56,
    "min_ts_event": 64,
    "max_ts_event": 72,
    "epoch": 80,
    "keys": 88,
    "min_sequence": 96,
    "max_sequence": 104,
    "marks": 112,
    "late": 120,
    "checksum": 124,
}
MARK_PLACES = {
    "magic": 0,
    "checksum": 4,
    "ts": 8,
    "stored_bytes": 16,
    "kind": 20,
    "flags": 22,
    "names": 24,
    "stored_checksum": 28,
    "epoch": 32,
    "ts_out": 40,
    "records": 48,
    "messages": 56,
    "marks": 64,
    "chain": 72,
    "ts_event": 80,
}
GOLDEN_DIGESTS = {
    "manifest.json": "15951cb843d3b132",
    "slice-00000/000000.index": "e923da6a4804aa70",
    "slice-00000/000000.journal": "57ee05bc1dbf75fd",
    "slice-00000/000001.journal": "4ab477528cc8fb48",
    "slice-00001/000000.index": "622eef334582a66e",
    "slice-00001/000000.journal": "6254824acd27e478",
}


def places_of(dtype: numpy.dtype[Any]) -> dict[str, int]:
    return {name: field[1] for name, field in (dtype.fields or {}).items()}


def documented(part: str) -> list[int]:
    """The offsets at the beginning of the lines of the document's list of a part."""
    _, _, rest = DOCUMENT.partition(f" **{part}**:\n\n")
    rows = re.findall(r"^- ((?:\d+, )+)", rest.partition("\n\n")[0], re.MULTILINE)
    return [int(number) for row in rows for number in re.findall(r"\d+", row)]


def test_the_head_of_a_file_stands_as_the_document_says() -> None:
    assert places_of(FILE_HEAD) == FILE_HEAD_PLACES
    assert FILE_HEAD.itemsize == layout.FILE_HEAD_BYTES == 64
    assert set(FILE_HEAD_PLACES.values()) | {24} == set(documented("head"))


def test_the_head_of_a_record_stands_as_the_document_says() -> None:
    block = {name: 32 + place for name, place in BLOCK_PLACES.items()}
    assert places_of(RECORD) == RECORD_PLACES | block
    assert RECORD.itemsize == layout.RECORD_HEAD_BYTES == 104
    assert set(RECORD_PLACES.values()) | {25, 32, 104} == set(documented("record"))
    constants = {
        "magic": 0,
        "checksum": 4,
        "ts_recv": layout.OFFSET_TS_RECV,
        "stored_bytes": layout.OFFSET_STORED_BYTES,
        "first_row": layout.OFFSET_FIRST_ROW,
        "codec": layout.OFFSET_CODEC,
        "stored_checksum": layout.OFFSET_STORED_CHECKSUM,
    }
    assert constants == RECORD_PLACES


def test_an_index_entry_stands_as_the_document_says() -> None:
    assert places_of(ENTRY) == ENTRY_PLACES
    assert ENTRY.itemsize == 128
    assert set(ENTRY_PLACES.values()) == set(documented("entry"))


def test_a_mark_stands_as_the_document_says() -> None:
    assert places_of(MARK) == MARK_PLACES
    assert MARK.itemsize == layout.MARK_HEAD_BYTES == 96
    assert set(MARK_PLACES.values()) | {88, 96} == set(documented("mark"))


def test_records_written_by_hand_are_read_field_by_field(tmp_path: Path) -> None:
    put = Put(
        (Row(b"AB.x", b"1", -5), Row(b"AB.y", b"23", 7)),
        sequence=11,
        ts_out=12,
        ts_recv=13,
        epoch=2**63 - 3,
        first_row=1,
        schema=9,
        flags=wire.CHECKSUM | wire.LINE_B,
    )
    Day(tmp_path, feed_of(2)).put(1, put)
    (run,) = Recording.open(tmp_path).runs()
    header, body = put.block(1)
    head = run.heads[0]
    seen = {name: head[name] for name in ("ts_recv", "first_row", "codec", "schema", "slice", "count", "sequence")}
    assert seen == {"ts_recv": 13, "first_row": 1, "codec": 0, "schema": 9, "slice": 1, "count": 2, "sequence": 11}
    assert (head["epoch"], head["ts_out"], head["stored_bytes"]) == (2**63 - 3, 12, len(body))
    assert head["stored_checksum"] == xxhash.xxh3_64_intdigest(body) & 0xFFFFFFFF
    assert head.tobytes()[32:] == header
    assert head.tobytes()[:4] == b"BREC"


def test_records_stand_at_multiples_of_32(tmp_path: Path) -> None:
    sizes = range(40)
    Day(tmp_path, feed_of()).put(0, *(Put((Row(b"A", bytes(size)),), sequence=size) for size in sizes))
    (run,) = Recording.open(tmp_path).runs()
    places = run.addresses - run.segments[0].address
    assert (places % 32 == 0).all()
    expected = [160]
    for stored in run.heads["stored_bytes"].tolist():
        expected.append(expected[-1] + layout.record_bytes(stored))
    assert places.tolist() == expected[:-1]


@pytest.mark.parametrize("indexed", [True, False])
def test_the_index_is_what_the_records_say(tmp_path: Path, indexed: bool) -> None:
    rows = (Row(b"AB.x", bytes(30_000), 5), Row(b"AC.x", b"", -9), Row(b"AB.y", b"z", 3))
    puts = [
        Put((rows[i % 3],), sequence=i, ts_out=100 - i, ts_recv=i * i, epoch=1 + i // 7, codec=i % 3) for i in range(40)
    ]
    segment = Day(tmp_path, feed_of(key_bytes=2)).put(0, *puts, index=indexed)
    ((_, (indexed_segment,)),) = Recording.open(tmp_path)._segments_of()
    found = indexed_segment.entries
    assert len(found) > 5
    assert found.tobytes() == b"".join(segment.entries())


def golden_messages() -> list[Told]:
    return golden_day(None).told()


def golden_day(path: Path | None) -> Day:
    """The golden recording, as it was written; without a path, only what is in it."""
    import tempfile

    day = Day(path or Path(tempfile.mkdtemp()), feed_of(2, key_bytes=2, time_zone="America/New_York"))
    at = 1_795_271_400 * 10**9
    rows = tuple(Row(b"AB.trade" if i % 2 else b"AB.quote", b"%d" % (i * i), at + i) for i in range(6))
    fixed = tuple(Row(b"BCD", b"%04d" % i, 0) for i in range(4))
    first = day.put(0, *(Put(rows, 6 * i, at + 10 * i, at + 10 * i + 3, codec=i % 3) for i in range(4)))
    first.close()
    first.write_index()
    day.put(0, Put(rows, 24, at + 41, at + 44, first_row=4), Put(rows, 0, at + 50, at + 51, epoch=2), index=False)
    day.put(1, *(Put(fixed, 4 * i, at + 15 * i, at + 15 * i + 2, flags=wire.LINE_B) for i in range(3)))
    return day


def test_the_golden_recording_still_reads() -> None:
    recording = Recording.open(GOLDEN)
    read = [
        Told(b.block.slice_id, b.block.epoch, sequence, b.ts_out, b.ts_recv, m.topic, m.payload, m.ts_event)
        for b in recording.batches()
        for m, sequence in zip(b, b.sequence.tolist(), strict=True)
    ]
    assert read == golden_messages()
    assert (recording.verify(), recording.gaps()[1:]) == ([], [])
    assert (recording.feed.name, recording.feed.key_bytes, str(recording.date)) == ("recorded", 2, "2026-11-20")


def test_the_golden_recording_is_unchanged() -> None:
    digests = {
        str(path.relative_to(GOLDEN)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(GOLDEN.rglob("*"))
        if path.is_file()
    }
    assert digests == GOLDEN_DIGESTS


def test_the_document_names_the_magics() -> None:
    for magic in (layout.SEGMENT_MAGIC, layout.INDEX_MAGIC, b"BREC", b"BMRK"):
        assert f"`{magic.decode()}`" in DOCUMENT
    assert layout.MARK_MAGIC.to_bytes(4, "little") == b"BMRK"
    assert layout.RECORD_MAGIC.to_bytes(4, "little") == b"BREC"
    assert journals.SPAN == layout.ENTRY_SPAN_BYTES
