"""The sliding window over plain, gzip and zstd files, and members of zip archives."""

from __future__ import annotations

import gzip
import os
import random
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from blackbox_feeds.io import zstd_window
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.window import FileWindow
from blackbox_feeds.io.zip_window import ZipWindow

from blackbox.errors import SourceError
from tests.examples import examples


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


@pytest.fixture(scope="module")
def text() -> bytes:
    chance = random.Random(1)
    return b"".join(b"%d," % chance.randrange(10**6) for _ in range(20_000))


def zstd(content: bytes, level: int = 3) -> bytes:
    return zstandard.ZstdCompressor(level, write_checksum=True).compress(content)


def skippable(size: int, kind: int = 0) -> bytes:
    """Return a zstd frame without content."""
    return struct.pack("<II", 0x184D2A50 + kind, size) + b"x" * size


@pytest.mark.parametrize("window_bytes", [1, 100, 4096, 1 << 20])
def test_packed_files_read_back_through_any_window(tmp_path: Path, text: bytes, window_bytes: int) -> None:
    text = text[: 3_000 * min(window_bytes, 100)]
    path = tmp_path / "text"
    half = len(text) // 2
    frames = [
        skippable(3),
        skippable(0, 15),
        zstd(text[:half]),
        zstd(b""),
        skippable(9_000, 3),
        zstd(text[half:]),
        skippable(4),
    ]
    members = gzip.compress(text[:half]) + gzip.compress(b"") + gzip.compress(text[half:])
    for packed in (members + bytes(70_000), b"".join(frames)):
        path.write_bytes(packed)
        for step in (10**9, max(1, window_bytes // 2)):
            window = open_window(path, window_bytes)
            assert read_all(window, step) == text
            assert window.fault is None
    path.write_bytes(b"".join(frames)[:-1])
    window = open_window(path, window_bytes)
    assert (read_all(window), window.fault) == (text, f"zstd data ends early, at packed byte {path.stat().st_size}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("other", b"other")
        archive.writestr("text", text)
    assert read_all(ZipWindow(path, "text", window_bytes)) == text


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


def test_plain_file_outlives_its_window_but_need_not_stay_in_memory(tmp_path: Path) -> None:
    def resident_bytes() -> int:
        """Return the bytes of mapped files that are in this process's memory."""
        return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")

    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (96 << 12))
    with open_window(path) as window:
        assert window.last
        data = window.data
        before = resident_bytes()
        assert int(data.sum()) == (96 << 12) * sum(range(256))
        window.release(len(data) - 1)
        assert resident_bytes() - before < 48 << 20
    assert data[: 1 << 20].tobytes() == bytes(range(256)) * (1 << 12)


# Damage


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


PACKED: list[tuple[Callable[..., bytes], str]] = [
    (gzip.compress, "gzip data ends early, at compressed byte {}"),
    (zstd, "zstd data ends early, at packed byte {}"),
]


@pytest.mark.parametrize(("pack", "fault"), PACKED, ids=["gzip", "zstd"])
@pytest.mark.parametrize("seed", range(examples(24)))
def test_a_cut_part_ends_where_the_next_begins_and_that_one_is_read(
    tmp_path: Path, text: bytes, pack: Callable[..., bytes], fault: str, seed: int
) -> None:
    chance = random.Random(seed)
    # Incompressible data may be stored as it is. Noise after a cut in short JSON lines often inflates for long.
    lines = b"".join(b'%d {"u":%d}\n' % (1723161254087896568 + k, chance.randrange(100)) for k in range(5_000))
    part = (text, lines, chance.randbytes(200_000))[seed % 3]
    first, second, last = pack(text, 1), pack(part, chance.choice([1, 6, 9])), pack(text[:50_000], 6)
    cuts = [chance.randrange(5, len(second)) for _ in range(1 if pack is gzip.compress else 2)]
    path = tmp_path / "text"
    path.write_bytes(first + b"".join(second[:cut] for cut in cuts) + last)
    pieces, faults, behind = pieces_of(open_window(path, chance.choice([100, 4_096, 1 << 20])))
    assert len(pieces) == 1 + len(cuts)
    assert pieces[0].startswith(text)
    assert (text + part).startswith(pieces[0]), "what follows the cut is never part of it"
    assert all(part.startswith(piece) for piece in pieces[1:-1])
    assert pieces[-1] == text[:50_000]
    places = [len(first) + sum(cuts[: place + 1]) for place in range(len(cuts))]
    assert faults == [fault.format(at) for at in places]
    assert behind == [f"reading goes on at compressed byte {at}, after 0 bytes that do not unpack" for at in places]


@pytest.mark.parametrize(("pack", "fault"), PACKED, ids=["gzip", "zstd"])
def test_a_cut_file_is_reported_for_any_cut(
    tmp_path: Path, text: bytes, pack: Callable[..., bytes], fault: str
) -> None:
    packed = pack(text)
    path = tmp_path / "text"
    chance = random.Random(3)
    for size in [4, 5, len(packed) - 1, *(chance.randrange(4, len(packed)) for _ in range(10))]:
        path.write_bytes(packed[:size])
        window = open_window(path, 5_000)
        assert text.startswith(read_all(window))
        assert window.fault == fault.format(size)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_data_inside_of_packed_data_is_not_a_cut(
    tmp_path: Path, text: bytes, pack: Callable[..., bytes]
) -> None:
    inner = pack(random.Random(4).randbytes(200_000)) * 2
    path = tmp_path / "text"
    for level in (0, 6):
        path.write_bytes(pack(inner + text + inner, level))
        assert pieces_of(open_window(path, 30_000)) == ([inner + text + inner], [], [])


@pytest.mark.parametrize("seed", range(examples(24)))
def test_after_a_damaged_gzip_member_the_next_one_is_read(tmp_path: Path, text: bytes, seed: int) -> None:
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


def test_a_frame_that_is_tried_after_damage_unpacks_in_small_pieces(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its blocks has 4 bytes, and becomes 128 KiB."""
    monkeypatch.setattr(zstd_window, "_PIECE_BYTES", 64)
    block = (1 << 17 << 3 | 2).to_bytes(3, "little") + b"x"
    path = tmp_path / "text"
    path.write_bytes(zstd(text)[:-5] + struct.pack("<IBB", 0xFD2FB528, 0, 7 << 3) + block * 500)
    tracemalloc.start()
    with open_window(path, 1 << 20) as window:
        for _ in range(2):
            while not window.last:
                window.slide(len(window.data))
            window.skip_damage()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert window.start + len(window.data) > 500 << 17
    assert peak < 20 << 20


@pytest.mark.parametrize("seed", range(examples(24)))
def test_after_cut_or_damaged_zstd_frames_the_next_one_is_read(tmp_path: Path, text: bytes, seed: int) -> None:
    """Frames 2 and 3 of 5 are cut or damaged. Parts of noise are in uncompressed blocks."""
    chance = random.Random(seed)
    noise = chance.randbytes(300_000)
    parts = [text, *((text[: len(text) // 2], text) if seed % 2 else (noise, noise)), text[:1_000], noise]
    frames = [zstd(part, chance.choice([1, 9])) for part in parts]
    path = tmp_path / "text"
    bad = bytearray(frames[2])
    bad[chance.randrange(len(bad) - 2_000, len(bad))] ^= 1 << chance.randrange(8)
    cut = frames[1][: chance.randrange(5, len(frames[1]))]
    for second, third in ((cut, bytes(bad)), (bytes(bad), cut)):
        rubbish = b"rubbish" * chance.choice([0, 3])
        path.write_bytes(frames[0] + second + rubbish + third + frames[3] + frames[4])
        pieces, faults, behind = pieces_of(open_window(path, chance.choice([100, 4_096, 1 << 20])))
        assert b"".join(pieces).endswith(parts[3] + parts[4])
        assert pieces[0].startswith(parts[0])
        assert len(faults) in (1, 2, 3)
        assert None not in behind
        assert faults[0].startswith("zstd data ")


def test_a_wrong_checksum_is_reported_after_all_data(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "text"
    packed = bytearray(gzip.compress(text))
    packed[-6] ^= 1
    path.write_bytes(packed)
    window = open_window(path, 5_000)
    assert read_all(window) == text
    assert "incorrect data check" in (window.fault or "")
    frames = [zstd(text[:60_000]), zstd(text[60_000:]), zstd(text)]
    checksum_at = len(frames[0]) + len(frames[1]) - 1
    packed = bytearray(b"".join(frames))
    packed[checksum_at] ^= 0xFF
    path.write_bytes(packed)
    for window_bytes in (100, 1 << 20):
        window = open_window(path, window_bytes)
        assert read_all(window) == text
        assert (window.fault or "").startswith(f"zstd data is corrupt after packed byte {checksum_at}: ")


def test_corrupt_gzip_gives_what_comes_before_the_damage(tmp_path: Path, text: bytes) -> None:
    packed = bytearray(gzip.compress(text[:20_000]))
    path = tmp_path / "text"
    chance = random.Random(2)
    for _ in range(15):
        damaged = bytearray(packed)
        damaged[chance.randrange(10, len(packed))] ^= 0xFF
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


@pytest.mark.parametrize(
    ("pack", "fault"),
    [(gzip.compress, "gzip data is corrupt"), (zstandard.compress, "zstd data is corrupt after packed byte ")],
)
def test_data_after_the_packed_file_is_reported(tmp_path: Path, pack: Callable[[bytes], bytes], fault: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(pack(b"one") + b"rubbish")
    window = open_window(path)
    assert read_all(window) == b"one"
    assert (window.fault or "").startswith(fault)


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
    assert (window.fault or "").startswith("zip data is corrupt: ")
    path.write_bytes(b"\xff" * 20 + whole[20:])
    with pytest.raises(SourceError, match=r"text\.zip: text in it cannot be read: Bad magic number"):
        ZipWindow(path, "text", 1_000)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match=r"pipe: cannot be read: it is a pipe, expected a file, plain or packed"):
        open_window(tmp_path / "pipe")
    with pytest.raises(SourceError, match=r"pipe: cannot be read: it is a pipe, expected a whole zip archive"):
        ZipWindow(tmp_path / "pipe", "text", 1_000)
