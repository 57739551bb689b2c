"""The sequence rules of Binance's streams, against a plain model and the recorded files."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
from blackbox_feeds.binance.frame_reader import FrameReader
from blackbox_feeds.binance.live.checker import FrameChecker
from blackbox_feeds.binance.live.sequences import RESTART_AFTER
from blackbox_feeds.binance.live.streams import Stream, streams_of
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm
from hypothesis import given
from hypothesis import strategies as st

from tests.feeds.build import messages_in

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "binance"
NAMES = "a@trade/a@aggTrade/a@bookTicker/a@depth/a@depth@100ms/a@kline_1m"
TIME = 1_723_161_256_172_216_566


def line(stream: str, data: dict[str, Any]) -> bytes:
    frame = json.dumps({"stream": stream, "data": data}, separators=(",", ":"))
    return b"%d %b\n" % (TIME, frame.encode())


class Checked:
    """Frames that passed, what is missing, and the wanted order books, after some lines."""

    def __init__(self, streams: tuple[Stream, ...]) -> None:
        self.reader = FrameReader(TopicForm(DEFAULT_TOPIC, locates=False), 19)
        self.checker = FrameChecker(streams)
        self.kept: list[bytes] = []
        self.gaps: list[tuple[int, int]] = []
        self.wanted: frozenset[str] = frozenset()

    def add(self, lines: Iterable[bytes], *, is_overlap: bool = False) -> None:
        content = numpy.frombuffer(b"".join(lines), numpy.uint8)
        for chunk in self.reader.chunks(content, last=True):
            kept, self.wanted = self.checker.check(chunk, is_overlap=is_overlap)
            self.gaps += [(len(self.kept) + row, count) for row, count in kept.gaps]
            self.kept += [payload for *_, payload in messages_in(kept)]


class Model:
    """The same rules, one frame at a time, in plain Python."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.before: dict[str, int] = {}
        self.book: dict[str, str] = {}
        self.stale: dict[str, tuple[int, int]] = {}
        self.kept: list[bytes] = []
        self.gaps: list[tuple[int, int]] = []

    def add(self, text: bytes) -> None:
        frame = json.loads(text.partition(b" ")[2])
        stream, data = frame["stream"], frame["data"]
        if stream == "a@snapshot":
            wanting = [name for name, state in self.book.items() if state == "wanted"]
            if any(data["lastUpdateId"] < self.before[name] for name in wanting):
                return
            self.book |= dict.fromkeys(wanting, "joined")
            self.kept.append(text)
            return
        kind = stream.split("@")[1]
        if kind == "kline_1m":
            self.kept.append(text)
            return
        number = data[{"trade": "t", "aggTrade": "a", "bookTicker": "u", "depth": "u"}[kind]]
        before = number - 1
        if kind == "depth":
            before = data.get("pu", data["U"] - 1)
            if before >= number:
                self.kept.append(text)
                return
        known = stream in self.last
        missing = 0
        if known and number <= self.last[stream]:
            run, latest = self.stale.get(stream, (0, -1))
            run = run + 1 if number > latest else 1
            self.stale[stream] = run, number
            if run <= RESTART_AFTER:
                return
            missing = run - 1
        elif known and before > self.last[stream] and kind != "bookTicker":
            missing = before - self.last[stream]
            missing = missing if missing <= 1 << 32 else 1
        if not known or missing:
            self.before[stream] = before
            if kind == "depth":
                self.book[stream] = "wanted"
        self.stale.pop(stream, None)
        self.last[stream] = number
        if missing:
            self.gaps.append((len(self.kept), 1 if kind == "depth" else missing))
        self.kept.append(text)

    @property
    def wanted(self) -> frozenset[str]:
        return frozenset({"a"} if "wanted" in self.book.values() else ())


small = st.integers(0, 40)
frames = st.one_of(
    st.builds(lambda t: line("a@trade", {"e": "trade", "t": t}), small | st.just(1 << 40)),
    st.builds(lambda a: line("a@aggTrade", {"e": "aggTrade", "a": a, "p": "7"}), small),
    st.builds(lambda u: line("a@bookTicker", {"u": u, "b": "3", "B": "1", "a": "4", "A": "1"}), small),
    st.builds(
        lambda first, n: line("a@depth", {"e": "depthUpdate", "U": first, "u": first + n, "b": [], "a": []}),
        small,
        small,
    ),
    st.builds(
        lambda pu, n: line(
            "a@depth@100ms", {"e": "depthUpdate", "U": pu + 5, "u": pu + n, "pu": pu, "b": [["1", "2"]]}
        ),
        small,
        st.integers(-3, 30),
    ),
    st.builds(lambda t: line("a@kline_1m", {"e": "kline", "k": {"t": t}}), small),
    st.builds(lambda last: line("a@snapshot", {"lastUpdateId": last, "bids": [], "asks": []}), small),
)


@given(st.lists(frames, max_size=60), st.integers(1, 60))
def test_any_order_of_frames_is_checked_as_by_a_plain_model(lines: list[bytes], step: int) -> None:
    checked, model = Checked(streams_of(NAMES)), Model()
    for start in range(0, len(lines), step):
        checked.add(lines[start : start + step])
    for each in lines:
        model.add(each)
    assert checked.kept == model.kept
    assert checked.gaps == model.gaps
    if lines:
        assert checked.wanted == model.wanted
    assert checked.checker.duplicates == len(lines) - len(checked.kept)


def test_numbers_that_start_again_are_accepted_after_a_while_and_what_was_left_out_is_missing() -> None:
    checked = Checked(streams_of("a@trade"))
    checked.add([line("a@trade", {"t": 1 << 60})])
    checked.add(line("a@trade", {"t": t}) for t in range(RESTART_AFTER + 3))
    assert checked.gaps == [(1, RESTART_AFTER)]
    assert len(checked.kept) == 4
    assert checked.checker.duplicates == RESTART_AFTER


@pytest.mark.parametrize("overlap", [0, 1, 400])
def test_a_second_connection_repeats_frames_and_none_is_lost_or_delivered_twice(overlap: int) -> None:
    lines = [
        line(*each)
        for n in range(500)
        for each in (
            ("a@trade", {"e": "trade", "t": n}),
            ("a@kline_1m", {"e": "kline", "n": n}),
            ("a@depth", {"e": "depthUpdate", "U": 3 * n, "u": 3 * n + 2, "b": [], "a": []}),
        )
    ]
    checked = Checked(streams_of(NAMES))
    checked.add(lines[:900])
    checked.add(lines[900 - overlap : 1200], is_overlap=True)
    checked.add(lines[1200:])
    assert checked.kept == lines
    assert checked.gaps == []
    assert checked.checker.duplicates == overlap


@pytest.mark.skipif(not DATA.is_dir(), reason="needs recorded files")
@pytest.mark.parametrize("name", ["spot_ethusdt", "usdm_btcusdt", "cm_ethusd_perp"])
def test_a_recorded_file_passes_whole_and_each_removed_frame_is_found(name: str) -> None:
    recorded = gzip.decompress((DATA / f"{name}_20240808.gz").read_bytes()).splitlines(keepends=True)[:8_000]
    lines = []
    for recorded_line in recorded:
        text = recorded_line
        time, _, frame = text.partition(b" ")
        if frame.startswith(b'{"lastUpdateId"'):
            symbol = name.partition("_")[2].encode()
            text = b'%b {"stream":"%b@snapshot","data":%b}\n' % (time, symbol, frame.strip())
        lines.append(text)
    streams = sorted({json.loads(text.partition(b" ")[2])["stream"] for text in lines})
    asked = streams_of("/".join(each for each in streams if not each.endswith("@snapshot")))
    whole = Checked(asked)
    whole.add(lines)
    assert whole.kept == lines
    assert whole.gaps == []
    assert whole.wanted == frozenset()
    trades = [row for row, text in enumerate(lines) if b"@trade" in text]
    depths = [row for row, text in enumerate(lines) if b"@depth" in text]
    gone = {trades[10], trades[11], depths[200]}
    broken = Checked(asked)
    broken.add(text for row, text in enumerate(lines) if row not in gone)
    assert sorted(count for _, count in broken.gaps) == [1, 2]
    assert broken.wanted == {name.partition("_")[2]}  # the order book must be requested again
