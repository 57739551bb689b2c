"""Plain and gzip ITCH files: topics, times, payloads, and the position of damage."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import blackbox_feeds.io.columns
import blackbox_feeds.io.topics
import numpy
import pytest
from blackbox_feeds.itch50 import MWCB_PRICE_SCALE, PRICE_SCALE, SCHEMA, Itch50, timestamps_ns
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.errors import ConfigError, SourceError
from tests.examples import examples
from tests.feeds.build import ITCH_LENGTHS, framed, itch, messages_of, payloads_of, use_windows
from tests.feeds.reference import decode_itch

DAY = "2019-12-30"
EVERY_TYPE = [itch(kind, locate=1 + k % 3, ns=k) for k, kind in enumerate(ITCH_LENGTHS)]


def source_of(path: Path, messages: Sequence[bytes], topic: str = "{symbol}.{type}") -> Itch50:
    path.write_bytes(framed(messages))
    return Itch50(path, DAY, topic)


@pytest.fixture
def every_type(tmp_path: Path) -> Itch50:
    return source_of(tmp_path / "day.itch", EVERY_TYPE)


def topics_of(source: Itch50) -> list[bytes]:
    return [topic for topic, _, _ in messages_of(source)]


# Layouts


def test_record_layouts_are_those_of_the_specification() -> None:
    assert {kind: dtype.itemsize for kind, dtype in SCHEMA.records.items()} == ITCH_LENGTHS
    assert SCHEMA.dtype("A")["price"].metadata == {"decimals": 4}
    assert SCHEMA.dtype("V")["level_1"].metadata == {"decimals": 8}
    assert (PRICE_SCALE, MWCB_PRICE_SCALE) == (10**4, 10**8)
    assert SCHEMA.arrow("A").field("timestamp").metadata[b"since_midnight"] == b"America/New_York"


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_timestamps_of_any_shape(shape: tuple[int, ...]) -> None:
    times = [0, 34_200 * 10**9 + 123_456_789, 2**48 - 1]
    column = b"".join(itch("D", ns=ns) for ns in times)
    records = numpy.frombuffer(column, SCHEMA.dtype("D")).reshape(shape)
    for found in (timestamps_ns(records), timestamps_ns(records["timestamp"])):
        assert (found.dtype, found.shape) == (numpy.int64, shape)
        assert found.ravel().tolist() == times


# Chunks


def test_payloads_are_the_mapped_file_itself(every_type: Itch50) -> None:
    (chunk,) = every_type.chunks()
    assert chunk.payloads.nbytes == every_type.path.stat().st_size
    assert not chunk.payloads.flags.owndata
    assert not chunk.payloads.flags.writeable


def test_chunks_stay_valid_and_topics_only_grow(every_type: Itch50, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = messages_of(every_type)
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 4)
    chunks = list(every_type.chunks())
    assert [len(chunk.starts) for chunk in chunks] == [4, 4, 4, 4, 4, 3]
    for earlier, later in pairwise(chunks):
        assert later.topics[: len(earlier.topics)] == earlier.topics
        if len(later.topics) == len(earlier.topics):
            assert later.topics is earlier.topics
    assert messages_of(every_type) == expected


@pytest.mark.parametrize("window_bytes", [1, 3, 14, 15, 16, 17, 64, 200])
def test_frames_at_the_edge_of_a_window(tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_windows(monkeypatch, "itch50", window_bytes)
    path = tmp_path / "day.gz"
    frames = [EVERY_TYPE[0], b"z" * 30, EVERY_TYPE[1] + b"!", b"y" * 12, *EVERY_TYPE[2:], b""]
    for after, is_clean in (([], True), ([EVERY_TYPE[1]], False)):
        path.write_bytes(gzip.compress(framed([*frames, *after])))
        source = Itch50(path, DAY)
        assert payloads_of(source) == EVERY_TYPE
        assert (source.truncated is None) == is_clean
        assert (source.statistics().unknown, source.statistics().extended) == (2, 1)


# Topics


def test_unusable_symbols_are_rejected_and_counted(tmp_path: Path) -> None:
    bad = [itch("A", 9, stock=stock) for stock in ("\0A\xff B", "AAPL\x7f", "#9", "A\0B", "\xe9")]
    good = [itch("A", 9, stock="\0" * 8), itch("A", 8, stock="A B C"), itch("A", 7, stock=" A")]
    source = source_of(tmp_path / "day.itch", [*bad, *good, itch("D", 9)])
    assert topics_of(source) == [b"#9.A", b"A B C.A", b" A.A", b"#9.D"]
    assert source.truncated is None
    assert source.notes == ("messages skipped because their symbol cannot be one (b'\\x00A\\xff B   ' first): 5",)


def test_more_topics_than_the_first_table_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [itch("R", locate, stock=f"S{locate}") for locate in range(5_000)]
    source = source_of(tmp_path / "day.itch", messages)
    (*_, chunk) = source.chunks()
    assert chunk.topics == tuple(b"S%d.R" % locate for locate in range(5_000))
    monkeypatch.setattr(blackbox_feeds.io.topics, "MAX_TOPICS", 64)
    with pytest.raises(SourceError, match="the input has more than 64 distinct topics by template"):
        messages_of(source)


MESSAGES = st.lists(
    st.builds(
        itch,
        st.sampled_from("AADR") | st.sampled_from(list(ITCH_LENGTHS)),
        st.integers(0, 2) | st.integers(0, 65535),
        st.integers(0, 2**48 - 1),
        st.sampled_from(["A", "AAPL", "", "BRK.A", "ZZZZZZZZ", "A\0", "\0" * 8, "\0 \0", "\x7f", "#1", "A B"]),
        st.binary(min_size=1, max_size=1),
    ),
    max_size=40,
)
TEMPLATES = st.sampled_from(["{symbol}.{type}", "{type}", "{locate}-{symbol}", "{symbol}", "x"])


@settings(max_examples=examples(400))
@given(MESSAGES, TEMPLATES, st.binary(max_size=60), st.lists(st.integers(0, 8_000), max_size=2), st.booleans())
def test_agrees_with_the_reference(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[bytes],
    template: str,
    garbage: bytes,
    flips: list[int],
    packed: bool,
) -> None:
    """Also with bytes after the last message, and with flipped bits."""
    changed = bytearray(framed(messages) + garbage)
    for bit in flips:
        if bit < 8 * len(changed):
            changed[bit // 8] ^= 1 << bit % 8
    data = bytes(changed)
    path = tmp_path_factory.getbasetemp() / "reference.itch"
    path.write_bytes(gzip.compress(data) if packed else data)
    source = Itch50(path, DAY, template)
    expected, end = decode_itch(data, DAY, template)
    assert messages_of(source) == expected
    assert (source.truncated is None) == (end == len(data) or data[end:] == b"\0\0")


def test_a_date_must_be_known(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.touch()
    with pytest.raises(ConfigError, match="e.g. `--date 2019-12-30` to import, `--option date=2019-12-30` to publish"):
        Itch50(path)
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):  # and not: its name tells no date
        Itch50(tmp_path)


# Damage


def test_truncated_around_every_frame(tmp_path: Path) -> None:
    data = framed(EVERY_TYPE)
    ends = [0, *itertools.accumulate(2 + len(message) for message in EVERY_TYPE)]
    path = tmp_path / "day.itch"
    for size in sorted({end + change for end in ends for change in (-1, 0, 1, 2, 3)} & {*range(len(data) + 1)}):
        path.write_bytes(data[:size])
        source = Itch50(path, DAY)
        expected, end = decode_itch(data[:size], DAY, "{symbol}.{type}")
        assert messages_of(source) == expected
        inside = f"{path}: input ended at byte {size} inside the message that starts at byte {end}"
        assert source.truncated == (None if end == size else inside)


def test_unknown_types_are_skipped_and_longer_messages_cut(tmp_path: Path) -> None:
    unknown = [b"z" * 19, b"Z" * 12, b"z" * 60]
    longer = [message + b"more" for message in EVERY_TYPE]
    messages = [unknown[0], EVERY_TYPE[0], *unknown, *longer, *EVERY_TYPE[1:], unknown[2]]
    source = source_of(tmp_path / "day.itch", messages)
    assert payloads_of(source) == [EVERY_TYPE[0], *EVERY_TYPE, *EVERY_TYPE[1:]]
    assert source.truncated is None
    assert source.notes == (
        "messages skipped because their type is unknown ('Z' 1, 'z' 4): 5",
        "messages cut to the specified length: 23",
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"\xff" * 19, "its "),
        (b"z", "its "),
        (b"z" * 11, "its "),
        (itch("A")[:-1], "its length was 35, expected 36 for type A"),
        (b"", "its length was 0, expected 12 or more"),
    ],
)
def test_a_bad_message_stops_and_is_located(tmp_path: Path, bad: bytes, words: str) -> None:
    source = source_of(tmp_path / "day.itch", [EVERY_TYPE[0], bad, EVERY_TYPE[1]])
    assert len(messages_of(source)) == 1
    assert (source.truncated or "").startswith(f"{source.path}: no valid message starts at byte 14: {words}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"DBN\x01" + bytes(60), "its "),
        # The second frame is not where this length says.
        (b"\0\x11" + framed(EVERY_TYPE)[2:], "its length was 17, expected 12 for type S"),
    ],
)
def test_a_file_of_another_format_is_one_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    source = source_of(tmp_path / "day.itch", [])
    source.path.write_bytes(content)
    assert messages_of(source) == []
    told = source.truncated or ""
    assert told.startswith(f"{source.path}: no valid message starts at byte 0: {words}")
    assert told.endswith(
        f"; the file begins with {content[:4]!r}, expected an ITCH 5.0 file or a capture of its MoldUDP64 datagrams, "
        "plain or gzip"
    )
