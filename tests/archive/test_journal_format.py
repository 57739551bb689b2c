"""The byte layout of a recording, its compression, and a stored recording that must stay readable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import xxhash

from blackbox import Recording
from blackbox.archive.files import codec as codecs
from blackbox.archive.files.format import ENTRY_SPAN_BYTES, OFFSET_BLOCK_HEADER
from blackbox.errors import JournalError
from tests import golden, journals, wire
from tests.archive.written_days import told
from tests.journals import Day, Put, Row, feed_of


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
    assert head.tobytes()[OFFSET_BLOCK_HEADER:] == header
    assert head.tobytes()[:4] == b"BREC"


def test_an_index_made_of_the_records_equals_a_slow_one(tmp_path: Path) -> None:
    rows = (Row(b"AB.x", bytes(30_000), 5), Row(b"AC.x", b"", -9), Row(b"AB.y", b"z", 3))
    puts = [
        Put((rows[i % 3],), sequence=i, ts_out=100 - i, ts_recv=i * i, epoch=1 + i // 7, codec=i % 3) for i in range(40)
    ]
    segment = Day(tmp_path, feed_of(key_bytes=2)).put(0, *puts, index=False)
    ((_, (indexed,)),) = Recording.open(tmp_path).segments.of()
    found = indexed.entries
    assert journals.SPAN == ENTRY_SPAN_BYTES
    assert len(found) > 5
    assert found.tobytes() == b"".join(segment.entries())


def test_the_golden_recording_still_reads(tmp_path: Path) -> None:
    recording = Recording.open(golden.RECORDING)
    assert told(recording.batches()) == golden.write_recording(tmp_path)
    assert (recording.verify(), recording.gaps()[1:]) == ([], [])
    assert (recording.feed.name, recording.feed.key_bytes, str(recording.date)) == ("recorded", 2, "2026-11-20")


@pytest.mark.parametrize(("codec", "module", "indexed"), [(1, "lz4.block", True), (2, "zstandard", False)])
def test_a_missing_codec_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int, module: str, indexed: bool
) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A", b"x"),), codec=codec), index=indexed)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JournalError, match=r"pip install 'blackbox-md\[compression\]'"):
        list(Recording.open(tmp_path).batches())


@pytest.mark.parametrize("name", list(codecs.CODECS))
def test_a_body_of_another_size_is_rejected(name: str) -> None:
    packed = codecs.compress(name, b"data")
    assert codecs.decompress(codecs.CODECS[name], packed, 4).tobytes() == b"data"
    with pytest.raises(JournalError, match="expected|unpack"):
        codecs.decompress(codecs.CODECS[name], packed, 5)


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(JournalError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        codecs.compress("gzip", b"")
    with pytest.raises(JournalError, match="the codec of a body was 3"):
        codecs.decompress(3, b"", 0)
