"""Truncated or corrupt ITCH files: earlier messages are complete, and the position is reported."""

from __future__ import annotations

import gzip
import random
from functools import partial
from pathlib import Path

import blackbox_feeds.io.open_window
import pytest
from blackbox_feeds.itch50 import Itch50

from tests.feeds.build import ITCH_LENGTHS, framed, itch, messages_of
from tests.feeds.reference import decode_itch

DAY = "2019-12-30"
EVERY_TYPE = [itch(kind, locate=1 + k % 3, ns=k) for k, kind in enumerate(ITCH_LENGTHS)]


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    data = framed(EVERY_TYPE)
    path = tmp_path / "day.itch"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        source = Itch50(path, DAY)
        expected, end = decode_itch(data[:size], DAY, "{symbol}.{type}")
        assert messages_of(source) == expected
        if end == size:
            assert source.truncated is None
        else:
            assert source.truncated == (
                f"{path}: input ended at byte {size} inside the message that starts at byte {end}"
            )


def test_truncated_gzip_at_every_byte(tmp_path: Path) -> None:
    whole = framed(EVERY_TYPE)
    packed = gzip.compress(whole)
    path = tmp_path / "day.gz"
    expected = decode_itch(whole, DAY, "{symbol}.{type}")[0]
    counts = []
    for size in range(2, len(packed)):
        path.write_bytes(packed[:size])
        source = Itch50(path, DAY)
        found = messages_of(source)
        assert found == expected[: len(found)]
        assert source.truncated is not None
        assert f"gzip data ends early, at compressed byte {size}" in source.truncated
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] == len(expected)


def test_unknown_types_are_skipped_and_named(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    unknown = [b"z" * 19, b"Z" * 12, b"z" * 60]
    path.write_bytes(framed([unknown[0], EVERY_TYPE[0], *unknown, *EVERY_TYPE[1:], unknown[2]]))
    source = Itch50(path, DAY)
    assert [payload for _, _, payload in messages_of(source)] == EVERY_TYPE
    assert source.truncated is None
    assert source.notes == ("messages skipped because their type is unknown ('Z' 1, 'z' 4): 5",)


def test_longer_messages_are_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(framed(message + b"more" for message in EVERY_TYPE) + framed(EVERY_TYPE))
    source = Itch50(path, DAY)
    assert [payload for _, _, payload in messages_of(source)] == EVERY_TYPE * 2
    assert source.truncated is None
    assert source.notes == ("messages cut to the specified length: 23",)


@pytest.mark.parametrize("window_bytes", [1, 14, 15, 16, 17, 100])
def test_unknown_and_longer_messages_at_the_edge_of_a_window(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(blackbox_feeds.io.open_window.open_window, window_bytes=window_bytes)
    monkeypatch.setattr("blackbox_feeds.itch50.source.open_window", small)
    path = tmp_path / "day.gz"
    path.write_bytes(gzip.compress(framed([EVERY_TYPE[0], b"z" * 30, EVERY_TYPE[1] + b"!", b"y" * 12])))
    source = Itch50(path, DAY)
    assert [payload for _, _, payload in messages_of(source)] == EVERY_TYPE[:2]
    assert source.truncated is None
    assert source.statistics().unknown == 2
    assert source.statistics().extended == 1


@pytest.mark.parametrize("bad", [b"\xff" * 19, b"z", b"z" * 11, EVERY_TYPE[2][:-1]])
def test_an_impossible_type_is_damage(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(framed([EVERY_TYPE[0], bad, EVERY_TYPE[1]]))
    source = Itch50(path, DAY)
    assert len(messages_of(source)) == 1
    assert source.truncated is not None
    assert source.truncated.startswith(f"{path}: no valid message starts at byte 14: its ")


def test_a_wrong_length_is_not_taken_for_an_unknown_or_longer_message(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    data = bytearray(framed(EVERY_TYPE))
    data[1] += 5  # the second frame is not where this length says
    path.write_bytes(data)
    source = Itch50(path, DAY)
    assert messages_of(source) == []
    assert source.truncated is not None
    assert source.truncated.startswith(
        f"{path}: no valid message starts at byte 0: its length was 17, expected 12 for type S;"
    )


def test_a_file_of_another_format_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "day.dbn"
    path.write_bytes(b"DBN\x01" + bytes(60))
    source = Itch50(path, DAY)
    assert messages_of(source) == []
    assert source.truncated is not None
    assert source.truncated.startswith(f"{path}: no valid message starts at byte 0: ")
    assert source.truncated.endswith(
        "; the file begins with b'DBN\\x01', expected an ITCH 5.0 file or a capture of its MoldUDP64 datagrams, "
        "plain or gzip"
    )


def test_a_wrong_length_stops_and_is_located(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(framed([EVERY_TYPE[0], itch("A")[:-1], EVERY_TYPE[1]]))
    source = Itch50(path, DAY)
    assert len(messages_of(source)) == 1
    assert source.truncated == (
        f"{path}: no valid message starts at byte 14: its length was 35, expected 36 for type A"
    )


def test_a_length_of_zero_ends_a_session(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(framed([EVERY_TYPE[0], b""]))
    source = Itch50(path, DAY)
    assert len(messages_of(source)) == 1
    assert source.truncated is None
    path.write_bytes(framed([EVERY_TYPE[0], b"", EVERY_TYPE[1]]))
    source = Itch50(path, DAY)
    assert len(messages_of(source)) == 1
    assert source.truncated is not None
    assert source.truncated.endswith("starts at byte 14: its length was 0, expected 12 or more")


@pytest.mark.parametrize("window_bytes", [1, 14, 15, 16, 17, 100])
def test_a_length_of_zero_at_the_edge_of_a_window(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(blackbox_feeds.io.open_window.open_window, window_bytes=window_bytes)
    monkeypatch.setattr("blackbox_feeds.itch50.source.open_window", small)
    path = tmp_path / "day.gz"
    for after, clean in (([], True), ([EVERY_TYPE[1]], False)):
        path.write_bytes(gzip.compress(framed([EVERY_TYPE[0], b"", *after])))
        source = Itch50(path, DAY)
        assert len(messages_of(source)) == 1
        assert (source.truncated is None) == clean


def test_bit_flips_never_crash_and_keep_what_came_before(tmp_path: Path) -> None:
    data = framed(EVERY_TYPE)
    path = tmp_path / "day.itch"
    chance = random.Random(5)
    for _ in range(600):
        bit = chance.randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        source = Itch50(path, DAY)
        expected, end = decode_itch(bytes(flipped), DAY, "{symbol}.{type}")
        assert messages_of(source) == expected
        assert (source.truncated is None) == (end == len(data))
