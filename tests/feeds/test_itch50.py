"""Plain and gzip ITCH files: topics, times, payloads, and the position of damage."""

from __future__ import annotations

import gzip
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import blackbox_feeds.io.columns
import blackbox_feeds.io.open_window
import blackbox_feeds.io.topics
import numpy
import pytest
from blackbox_feeds.itch50 import SCHEMA, Itch50
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.errors import ConfigError, SourceError
from tests.examples import examples
from tests.feeds.build import ITCH_LENGTHS, framed, itch, messages_of
from tests.feeds.reference import decode_itch

DAY = "2019-12-30"
EVERY_TYPE = [itch(kind, locate=1 + k % 3, ns=k) for k, kind in enumerate(ITCH_LENGTHS)]


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "20191230.itch"
    path.write_bytes(framed(EVERY_TYPE))
    return path


@pytest.mark.parametrize(
    ("name", "day", "counts"),
    [
        (
            "runk_locate-13-10k.bin",
            "2020-01-30",
            {"R": 1, "H": 1, "Y": 1, "L": 52, "A": 4758, "P": 240, "D": 4083, "E": 849, "X": 6,
             "F": 2, "U": 7},
        ),
        (
            "jamison_12302019_SNIPPET.NASDAQ_ITCH50",
            None,
            {"A": 367, "U": 225, "F": 193, "D": 167, "E": 28, "X": 6, "I": 4, "P": 4, "Q": 4,
             "C": 1, "S": 1},
        ),
    ],
)  # fmt: skip
def test_real_file_has_its_counts_by_type(
    shared_data: Path, name: str, day: str | None, counts: dict[str, int]
) -> None:
    path = shared_data / "itch50" / name
    source = Itch50(path, day)
    found = messages_of(source)
    assert Counter(payload[:1].decode() for _, _, payload in found) == counts
    assert source.truncated is None
    assert source.notes == ()
    assert found == decode_itch(path.read_bytes(), str(source.date), "{symbol}.{type}")[0]
    assert framed(payload for _, _, payload in found) == path.read_bytes()


def test_real_file_starts_at_the_opening_bell(shared_data: Path) -> None:
    chunk = next(Itch50(shared_data / "itch50/jamison_12302019_SNIPPET.NASDAQ_ITCH50").chunks())
    opening = 1_577_716_200_000_000_000  # 09:30 in New York is 14:30 UTC in winter
    assert 0 <= int(chunk.ts_event[0]) - opening < 1_000
    assert len(set(chunk.topics)) == len(chunk.topics)


def test_every_type_reads_back(small_file: Path) -> None:
    source = Itch50(small_file)
    found = messages_of(source)
    assert [payload for _, _, payload in found] == EVERY_TYPE
    assert found == decode_itch(small_file.read_bytes(), DAY, "{symbol}.{type}")[0]
    assert source.truncated is None


def test_payloads_are_the_mapped_file_itself(small_file: Path) -> None:
    (chunk,) = Itch50(small_file).chunks()
    assert chunk.payloads.nbytes == small_file.stat().st_size
    assert not chunk.payloads.flags.owndata
    assert not chunk.payloads.flags.writeable


def test_a_payload_column_becomes_records(tmp_path: Path) -> None:
    path = tmp_path / "20191230.itch"
    path.write_bytes(framed(itch("D", ns=k) for k in range(5)))
    (chunk,) = Itch50(path).chunks()
    column = chunk.payloads.reshape(5, 21)[:, 2:]
    records = numpy.ascontiguousarray(column).view(SCHEMA.dtype("D"))[:, 0]
    assert records["stock_locate"].tolist() == [1] * 5


def test_gzip_is_detected_by_its_bytes(small_file: Path, tmp_path: Path) -> None:
    packed = tmp_path / "20191230.not_said"
    packed.write_bytes(gzip.compress(small_file.read_bytes()))
    assert messages_of(Itch50(packed)) == messages_of(Itch50(small_file))


@pytest.mark.parametrize("window_bytes", [1, 3, 64, 200])
def test_gzip_windows_of_any_size_give_the_same(
    small_file: Path, tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = messages_of(Itch50(small_file))
    packed = tmp_path / "20191230.gz"
    packed.write_bytes(gzip.compress(small_file.read_bytes()))
    small = partial(blackbox_feeds.io.open_window.open_window, window_bytes=window_bytes)
    monkeypatch.setattr("blackbox_feeds.itch50.source.open_window", small)
    source = Itch50(packed)
    assert messages_of(source) == expected
    assert source.truncated is None


def test_chunks_stay_valid_and_topics_only_grow(small_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = messages_of(Itch50(small_file))
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 4)
    chunks = list(Itch50(small_file).chunks())
    assert [len(chunk.starts) for chunk in chunks] == [4, 4, 4, 4, 4, 3]
    for earlier, later in pairwise(chunks):
        assert later.topics[: len(earlier.topics)] == earlier.topics
        if len(later.topics) == len(earlier.topics):
            assert later.topics is earlier.topics
    assert messages_of(Itch50(small_file)) == expected


def test_a_second_iteration_starts_again(small_file: Path) -> None:
    source = Itch50(small_file)
    assert messages_of(source) == messages_of(source)


def test_symbols_are_learned_and_updated(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(
        framed(
            [
                itch("D", locate=13),
                itch("A", locate=13, stock="AAPL"),
                itch("D", locate=13),
                itch("R", locate=13, stock="ZVZZT"),
                itch("D", locate=13),
                itch("H", locate=13, stock=""),
                itch("S", locate=0),
                itch("W", locate=0),
                itch("D", locate=0),
            ]
        )
    )
    topics = [topic for topic, _, _ in messages_of(Itch50(path, DAY))]
    assert topics == [
        b"#13.D", b"AAPL.A", b"AAPL.D", b"ZVZZT.R", b"ZVZZT.D", b"ZVZZT.H", b"#system.S",
        b"#system.W", b"#0.D",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "topics"),
    [
        ("{type}", [b"D", b"A", b"A", b"S"]),
        ("{symbol}", [b"#2", b"IBM", b"IBM", b"#system"]),
        ("itch/{locate}/{type}", [b"itch/2/D", b"itch/2/A", b"itch/3/A", b"itch/0/S"]),
        ("{symbol}{symbol}", [b"#2#2", b"IBMIBM", b"IBMIBM", b"#system#system"]),
        ("all", [b"all"] * 4),
    ],
)
def test_topic_template(tmp_path: Path, template: str, topics: list[bytes]) -> None:
    path = tmp_path / "day.itch"
    messages = [itch("D", 2), itch("A", 2, stock="IBM"), itch("A", 3, stock="IBM"), itch("S", 0)]
    path.write_bytes(framed(messages))
    (chunk,) = Itch50(path, DAY, template).chunks()
    assert [chunk.topics[k] for k in chunk.topic_index] == topics
    assert len(set(chunk.topics)) == len(chunk.topics)


def test_symbols_that_differ_in_padding_are_one_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "day.itch"
    stocks = ["IBM", "IBM\0\0\0\0\0", "F", "IBM", "F\0\0\0\0\0\0\0", ""]
    messages = [itch("A", locate, stock=stock) for locate, stock in enumerate(stocks)]
    path.write_bytes(framed([itch("D", 4), *messages, *messages, itch("D", 1)]))
    expected = [b"#4.D", *[b"IBM.A", b"IBM.A", b"F.A", b"IBM.A", b"F.A", b"#5.A"] * 2, b"IBM.D"]
    for size in (100, 3, 1):
        monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", size)
        chunks = list(Itch50(path, DAY).chunks())
        found = [chunk.topics[k] for chunk in chunks for k in chunk.topic_index]
        assert found == expected
        assert len(set(chunks[-1].topics)) == len(chunks[-1].topics) == 5


def test_unusable_symbols_are_rejected_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    bad = ["\0A\xff B", "AAPL\x7f", "#9", "A\0B", "\xe9"]
    good = [itch("A", 9, stock="\0" * 8), itch("A", 8, stock="A B C"), itch("A", 7, stock=" A")]
    path.write_bytes(framed([*[itch("A", 9, stock=stock) for stock in bad], *good, itch("D", 9)]))
    source = Itch50(path, DAY)
    assert [topic for topic, _, _ in messages_of(source)] == [b"#9.A", b"A B C.A", b" A.A", b"#9.D"]
    assert source.truncated is None
    assert source.notes == ("messages skipped because their symbol cannot be one (b'\\x00A\\xff B   ' first): 5",)


def test_more_topics_than_the_first_table_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "day.itch"
    count = 5_000
    path.write_bytes(framed(itch("R", locate, stock=f"S{locate}") for locate in range(count)))
    (*_, chunk) = Itch50(path, DAY).chunks()
    assert chunk.topics == tuple(b"S%d.R" % locate for locate in range(count))


def test_too_many_topics_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(framed(itch("R", stock=f"S{k}") for k in range(100)))
    monkeypatch.setattr(blackbox_feeds.io.topics, "MAX_TOPICS", 64)
    with pytest.raises(SourceError, match="the input has more than 64 distinct topics by template"):
        messages_of(Itch50(path, DAY))


MESSAGES = st.lists(
    st.builds(
        itch,
        st.sampled_from(list(ITCH_LENGTHS)),
        st.integers(0, 4) | st.integers(0, 65535),
        st.integers(0, 2**48 - 1),
        st.sampled_from(["A", "AAPL", "", "BRK.A", "ZZZZZZZZ", "A\0", "\x7f", "#1", "A B"]),
        st.binary(min_size=1, max_size=1),
    ),
    max_size=40,
)
TEMPLATES = st.sampled_from(["{symbol}.{type}", "{type}", "{locate}-{symbol}", "{symbol}", "x"])


@settings(max_examples=examples(150))
@given(MESSAGES, TEMPLATES, st.binary(max_size=60), st.booleans())
def test_agrees_with_the_reference(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[bytes],
    template: str,
    garbage: bytes,
    packed: bool,
) -> None:
    data = framed(messages) + garbage
    path = tmp_path_factory.getbasetemp() / "reference.itch"
    path.write_bytes(gzip.compress(data) if packed else data)
    source = Itch50(path, DAY, template)
    expected, end = decode_itch(data, DAY, template)
    assert messages_of(source) == expected
    clean = end == len(data) or data[end:] == b"\0\0"
    assert (source.truncated is None) == clean


def test_a_date_must_be_known(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.touch()
    with pytest.raises(ConfigError, match="e.g. `--date 2019-12-30` to import, `--option date=2019-12-30` to publish"):
        Itch50(path)
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):  # and not: its name tells no date
        Itch50(tmp_path)


@pytest.mark.parametrize("template", ["", "{price}", "{symbol", "{symbol!r}", "{type:>3}", "{}", "\0x"])
def test_a_wrong_template_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="topic template was"):
        Itch50("day.itch", DAY, template)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: No such file or directory, expected an ITCH 5.0 file or"):
        messages_of(Itch50(tmp_path / "none.itch", DAY))
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        messages_of(Itch50(tmp_path, DAY))


def test_an_empty_file_has_no_messages(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(b"")
    source = Itch50(path, DAY)
    assert messages_of(source) == []
    assert source.truncated is None
