"""The sliding window over plain, gzip and zstd files, and members of zip archives."""

from __future__ import annotations

import gzip
import os
import random
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.window import FileWindow
from blackbox_feeds.io.zip_window import ZipWindow

from blackbox.errors import SourceError


def read_all(window: FileWindow, step: int = 10**9) -> bytes:
    """Read everything, `step` bytes at a time; check the reported offsets."""
    out = bytearray()
    with window:
        while True:
            piece = window.data[:step].tobytes() if not window.last else window.data.tobytes()
            assert window.start == len(out)
            out += piece
            if window.last:
                return bytes(out)
            window.slide(len(piece))


@pytest.fixture
def text() -> bytes:
    chance = random.Random(1)
    return b"".join(b"%d," % chance.randrange(10**6) for _ in range(20_000))


@pytest.mark.parametrize("window_bytes", [1, 100, 4096, 1 << 20])
def test_gzip_reads_back_through_any_window(tmp_path: Path, text: bytes, window_bytes: int) -> None:
    text = text[: 3_000 * min(window_bytes, 100)]
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(text))
    assert read_all(open_window(path, window_bytes)) == text
    assert read_all(open_window(path, window_bytes), step=max(1, window_bytes // 2)) == text


def test_window_keeps_its_size_unless_nothing_is_consumed(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(text))
    with open_window(path, 1_000) as window:
        held = window.data
        for _ in range(20):
            window.slide(900)
            assert len(window.data) == 1_000
        window.slide(0)
        assert len(window.data) == 2_000
        assert window.data.tobytes() == text[18_000:20_000]
        assert held.tobytes() == text[:1_000]
        assert not held.flags.writeable


def test_plain_file_is_mapped_whole_and_outlives_the_window(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "text"
    path.write_bytes(text)
    with open_window(path) as window:
        assert window.last
        data = window.data
        window.release(len(text))
    assert data.tobytes() == text


def test_released_pages_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "large"
    text = bytes(range(256)) * (40 << 12)
    path.write_bytes(text)
    with open_window(path) as window:
        window.release(len(text) - 1)
        assert window.data.tobytes() == text


def test_gzip_members_and_padding(tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_bytes(gzip.compress(b"one,") + gzip.compress(b"") + gzip.compress(b"two") + b"\0" * 70_000)
    window = open_window(path, 16)
    assert read_all(window) == b"one,two"
    assert window.fault is None


def test_data_after_gzip_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "trailing"
    path.write_bytes(gzip.compress(b"one") + b"rubbish")
    window = open_window(path)
    assert read_all(window) == b"one"
    assert window.fault is not None
    assert "gzip data is corrupt" in window.fault


def pieces_of(window: FileWindow) -> tuple[list[bytes], list[str], list[str | None]]:
    """Return the data between damaged places, the faults, and the positions where reading continues."""
    pieces: list[bytes] = []
    faults: list[str] = []
    behind: list[str | None] = []
    with window:
        while True:
            begin, data = window.start, b""
            while not window.last:
                data += window.data.tobytes()
                window.slide(len(window.data))
            data += window.data.tobytes()
            assert window.start + len(window.data) == begin + len(data)
            pieces.append(data)
            if window.fault is None:
                return pieces, faults, behind
            faults.append(window.fault)
            behind.append(window.skip_damage())
            if behind[-1] is None:
                return pieces, faults, behind


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_member_ends_where_the_next_begins_and_that_one_is_read(tmp_path: Path, text: bytes, seed: int) -> None:
    chance = random.Random(seed)
    third = len(text) // 3
    parts = text[:third], text[third : 2 * third], text[2 * third :]
    first, second, last = (gzip.compress(part, chance.choice([1, 6])) for part in parts)
    cut = chance.randrange(1, len(second))
    path = tmp_path / "text"
    path.write_bytes(first + second[:cut] + last)
    pieces, faults, behind = pieces_of(open_window(path, chance.choice([100, 4_096, 1 << 20])))
    assert len(pieces) == 2
    assert pieces[0].startswith(parts[0])
    assert (parts[0] + parts[1]).startswith(pieces[0]), "what follows the cut is never part of it"
    assert pieces[1] == parts[2]
    at = len(first) + cut
    assert faults == [f"gzip data ends early, at compressed byte {at}"]
    assert behind == [f"reading goes on at compressed byte {at}, after 0 bytes that do not unpack"]


@pytest.mark.parametrize("level", [1, 6, 9])
@pytest.mark.parametrize("seed", range(8))
def test_noise_after_a_cut_never_hides_the_next_member(tmp_path: Path, level: int, seed: int) -> None:
    """Noise after a cut in short JSON lines often inflates for long without an error."""
    chance = random.Random(seed)
    parts = [
        b"".join(
            b'%d {"u":%d}\n' % (1723161254087896568 + number * 1_000, chance.randrange(100)) for number in range(20_000)
        )
        for _ in range(3)
    ]
    first, second, last = (gzip.compress(part, level) for part in parts)
    cut = chance.randrange(1, len(second))
    path = tmp_path / "text"
    path.write_bytes(first + second[:cut] + last)
    pieces, faults, _ = pieces_of(open_window(path))
    assert (parts[0] + parts[1]).startswith(pieces[0]), "what follows the cut is never part of it"
    assert pieces[1:] == [parts[2]]
    assert faults == [f"gzip data ends early, at compressed byte {len(first) + cut}"]


@pytest.mark.parametrize("seed", range(12))
def test_after_a_damaged_member_the_next_one_is_read(tmp_path: Path, text: bytes, seed: int) -> None:
    chance = random.Random(seed)
    half = len(text) // 2
    first, last = bytearray(gzip.compress(text[:half])), gzip.compress(text[half:])
    first[chance.randrange(10, len(first))] ^= 1 << chance.randrange(8)
    path = tmp_path / "text"
    path.write_bytes(bytes(first) + b"rubbish" * chance.choice([0, 3]) + last)
    pieces, faults, behind = pieces_of(open_window(path, 5_000))
    assert pieces[-1] == text[half:]
    assert faults[0].startswith("gzip data ")
    assert behind[-1] is not None


def test_gzip_inside_of_gzip_is_not_a_cut(tmp_path: Path, text: bytes) -> None:
    inner = gzip.compress(random.Random(4).randbytes(200_000)) * 2
    path = tmp_path / "text"
    for level in (0, 6):
        path.write_bytes(gzip.compress(text + inner + text, level))
        assert pieces_of(open_window(path, 30_000)) == ([text + inner + text], [], [])


def test_a_bad_checksum_is_reported_after_all_data(tmp_path: Path, text: bytes) -> None:
    packed = bytearray(gzip.compress(text))
    packed[-6] ^= 1
    path = tmp_path / "text"
    path.write_bytes(packed)
    window = open_window(path, 5_000)
    assert read_all(window) == text
    assert window.fault is not None
    assert "incorrect data check" in window.fault


def test_corrupt_gzip_gives_what_comes_before_the_damage(tmp_path: Path, text: bytes) -> None:
    packed = bytearray(gzip.compress(text[:40_000]))
    path = tmp_path / "text"
    chance = random.Random(2)
    for _ in range(60):
        damaged = bytearray(packed)
        place = chance.randrange(10, len(packed))
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        window = open_window(path, 7_000)
        found = read_all(window)
        assert window.fault is not None
        # As far as a decompressor gets with single bytes.
        inflater, expected = zlib.decompressobj(31), b""
        try:
            for byte in damaged:
                expected += inflater.decompress(bytes([byte]))
        except zlib.error:
            pass
        assert found == expected


@pytest.mark.parametrize("window_bytes", [1, 100, 4096, 1 << 20])
def test_zstd_and_zip_read_back_through_any_window(tmp_path: Path, text: bytes, window_bytes: int) -> None:
    text = text[: 3_000 * min(window_bytes, 100)]
    path = tmp_path / "text"
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    half = len(text) // 2
    path.write_bytes(pack(text[:half]) + pack(b"") + pack(text[half:]))
    assert read_all(open_window(path, window_bytes)) == text
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("other", b"other")
        archive.writestr("text", text)
    assert read_all(ZipWindow(path, "text", window_bytes)) == text


def skippable(size: int, kind: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + kind, size) + b"x" * size


@pytest.mark.parametrize("window_bytes", [1, 100, 1 << 20])
def test_skippable_zstd_frames_anywhere(tmp_path: Path, text: bytes, window_bytes: int) -> None:
    text = text[: 3_000 * min(window_bytes, 100)]
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    path = tmp_path / "text"
    pieces = [
        skippable(3),
        skippable(0, 15),
        pack(text[:5]),
        skippable(9_000, 3),
        pack(text[5:]),
        skippable(4),
        skippable(1),
    ]
    path.write_bytes(b"".join(pieces))
    window = open_window(path, window_bytes)
    assert (read_all(window), window.fault) == (text, None)
    path.write_bytes(b"".join(pieces)[:-1])
    window = open_window(path, window_bytes)
    assert (read_all(window), window.fault) == (text, f"zstd data ends early, at packed byte {path.stat().st_size}")


def test_damaged_zstd_frame_gives_all_that_can_be_unpacked(tmp_path: Path, text: bytes) -> None:
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    path = tmp_path / "text"
    frames = [pack(text[:60_000]), pack(text[60_000:]), pack(text)]
    checksum_at = len(frames[0]) + len(frames[1]) - 1
    damaged = bytearray(b"".join(frames))
    damaged[checksum_at] ^= 0xFF
    path.write_bytes(damaged)
    for window_bytes in (100, 1 << 20):
        window = open_window(path, window_bytes)
        assert read_all(window) == text
        assert window.fault is not None
        assert window.fault.startswith(f"zstd data is corrupt after packed byte {checksum_at}: ")


def test_a_cut_zstd_file_is_reported_for_any_cut(tmp_path: Path, text: bytes) -> None:
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(text)
    path = tmp_path / "text"
    chance = random.Random(3)
    for size in [4, 5, len(packed) - 1, *(chance.randrange(4, len(packed)) for _ in range(20))]:
        path.write_bytes(packed[:size])
        window = open_window(path, 5_000)
        assert text.startswith(read_all(window))
        assert window.fault == f"zstd data ends early, at packed byte {size}"


@pytest.mark.parametrize("seed", range(16))
def test_after_cut_or_damaged_zstd_frames_the_next_one_is_read(tmp_path: Path, text: bytes, seed: int) -> None:
    """Frames 2 and 3 of 5 are cut or damaged. Parts of noise are in uncompressed blocks."""
    chance = random.Random(seed)
    noise = chance.randbytes(300_000)
    parts = [text, *chance.choice([(text[: len(text) // 2], text), (noise, noise)]), text[:1_000], noise]
    pack = zstandard.ZstdCompressor(chance.choice([1, 9]), write_checksum=True).compress
    frames = [pack(part) for part in parts]
    path = tmp_path / "text"
    bad = bytearray(frames[2])
    bad[chance.randrange(len(bad) - 2_000, len(bad))] ^= 1 << chance.randrange(8)
    cut = frames[1][: chance.randrange(5, len(frames[1]))]
    other = frames[2][: chance.randrange(5, len(frames[2]))]
    for second, third in ((cut, other), (cut, bytes(bad)), (bytes(bad), cut)):
        rubbish = b"rubbish" * chance.choice([0, 3])
        path.write_bytes(frames[0] + second + rubbish + third + frames[3] + frames[4])
        pieces, faults, behind = pieces_of(open_window(path, chance.choice([100, 4_096, 1 << 20])))
        assert b"".join(pieces).endswith(parts[3] + parts[4])
        assert pieces[0].startswith(parts[0])
        assert len(faults) in (1, 2, 3)
        assert None not in behind
        assert faults[0].startswith("zstd data ")


@pytest.mark.parametrize("seed", range(16))
def test_a_cut_zstd_frame_ends_where_the_next_begins(tmp_path: Path, text: bytes, seed: int) -> None:
    chance = random.Random(seed)
    part = chance.choice([text, chance.randbytes(300_000)])
    pack = zstandard.ZstdCompressor(chance.choice([1, 9]), write_checksum=True).compress
    first, second, last = pack(text), pack(part), pack(text[:50_000])
    cut, again = (chance.randrange(5, len(second)) for _ in range(2))
    path = tmp_path / "text"
    path.write_bytes(first + second[:cut] + second[:again] + last)
    pieces, faults, behind = pieces_of(open_window(path, chance.choice([100, 4_096, 1 << 20])))
    assert len(pieces) == 3
    assert pieces[0].startswith(text)
    assert (text + part).startswith(pieces[0]), "what follows the cut is never part of it"
    assert part.startswith(pieces[1])
    assert pieces[2] == text[:50_000]
    places = [len(first) + cut, len(first) + cut + again]
    assert faults == [f"zstd data ends early, at packed byte {at}" for at in places]
    assert behind == [f"reading goes on at compressed byte {at}, after 0 bytes that do not unpack" for at in places]


def test_zstd_inside_of_zstd_is_not_a_cut(tmp_path: Path, text: bytes) -> None:
    inner = zstandard.compress(random.Random(4).randbytes(200_000)) * 2
    path = tmp_path / "text"
    path.write_bytes(zstandard.compress(inner + text + inner, 1))
    assert pieces_of(open_window(path, 30_000)) == ([inner + text + inner], [], [])


def test_corrupt_zstd_and_data_after_it_are_reported(tmp_path: Path, text: bytes) -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(text))
    path = tmp_path / "text"
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)
    window = open_window(path, 5_000)
    assert len(read_all(window)) < len(text)
    assert window.fault is not None
    assert window.fault.startswith("zstd data is corrupt after packed byte ")
    path.write_bytes(zstandard.ZstdCompressor().compress(b"one") + b"rubbish")
    window = open_window(path)
    assert read_all(window) == b"one"
    assert window.fault is not None
    assert "zstd data is corrupt" in window.fault


def test_damage_to_a_zip_archive_is_reported(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "text.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text", text)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(SourceError, match=r"text\.zip: cannot be read: File is not a zip file, expected a whole zip"):
        ZipWindow(path, "text", 1_000)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    path.write_bytes(damaged)
    window = ZipWindow(path, "text", 1_000)
    read_all(window)
    assert window.fault is not None
    assert window.fault.startswith("zip data is corrupt: ")
    path.write_bytes(b"\xff" * 20 + whole[20:])
    with pytest.raises(SourceError, match=r"text\.zip: text in it cannot be read: Bad magic number"):
        ZipWindow(path, "text", 1_000)
    with pytest.raises(SourceError, match=r"none\.zip: cannot be read: No such file or directory, expected a whole"):
        ZipWindow(tmp_path / "none.zip", "text", 1_000)
    os.mkfifo(tmp_path / "pipe.zip")
    with pytest.raises(SourceError, match=r"pipe\.zip: cannot be read: it is a pipe"):
        ZipWindow(tmp_path / "pipe.zip", "text", 1_000)


def test_a_missing_file_is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none: cannot be read: No such file"):
        open_window(tmp_path / "none")


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match=r"pipe: cannot be read: it is a pipe, expected a file, plain or packed"):
        open_window(tmp_path / "pipe")


def test_reading_a_large_file_does_not_keep_it_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(b"\1" * (1 << 20))
    script = f"""
import resource
from blackbox_feeds.io.open_window import open_window
with open_window({str(path)!r}) as window:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = 0
    for start in range(0, len(window.data), 1 << 20):
        total += int(window.data[start : start + (1 << 20)].sum())
        window.release(start)
    assert total == 200 << 20
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)

    assert int(run.stdout) < 100 << 10
