"""Sources: publishing in columns, specifications, and the registry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from blackbox_feeds.synthetic import Synthetic
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.schema import RAW, Schema
from blackbox.feed.source import Chunk, Source, open_source
from tests.feeds.build import Message, messages_of

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    """Collects published messages one by one."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.calls = 0
        self.skipped: list[int] = []
        self.source: Source | None = None

    def skip(self, count: int, ts_event: int = 0) -> None:
        self.skipped.append(count)

    def publish_many(
        self,
        topics: tuple[bytes, ...],
        topic_index: NDArray[numpy.int32],
        payloads: NDArray[numpy.uint8],
        *,
        ts_event: NDArray[numpy.int64],
        offsets: NDArray[numpy.int64],
        lengths: NDArray[numpy.int32],
        checks_records: bool,
    ) -> None:
        self.calls += 1
        assert (topic_index.dtype.name, ts_event.dtype.name) == ("int32", "int64")
        assert (offsets.dtype.name, lengths.dtype.name) == ("int64", "int32")
        for index, time, start, length in zip(topic_index, ts_event, offsets, lengths, strict=True):
            payload = payloads[start : start + length].tobytes()
            self.messages.append((topics[index], int(time), payload))


class Words(Source):
    """Three chunks of one word."""

    def __init__(self, word: str, times: int = 3) -> None:
        self.word = word
        self.total = times

    @property
    def schema(self) -> Schema:
        return RAW

    def chunks(self) -> Iterator[Chunk]:
        payload = numpy.frombuffer(self.word.encode(), numpy.uint8)
        for number in range(self.total or 0):
            yield Chunk(
                (b"word",),
                numpy.zeros(1, numpy.int32),
                numpy.array([number]),
                payload,
                numpy.zeros(1, numpy.int64),
                numpy.array([len(payload)], numpy.int32),
            )


def test_publish_hands_over_every_chunk_and_reports_progress() -> None:
    recorder = Recorder()
    seen: list[int] = []
    assert Words("hello").publish(recorder, seen.append) == 3
    assert recorder.messages == [(b"word", k, b"hello") for k in range(3)]
    assert seen == [1, 2, 3]


def test_a_feed_publishes_what_it_iterates() -> None:
    source, recorder = Synthetic(200_000), Recorder()
    seen: list[int] = []
    assert source.publish(recorder, seen.append) == 200_000
    assert recorder.messages == messages_of(source)
    assert seen == [131_072, 200_000]
    assert recorder.calls == 2


def test_built_in_sources_open_by_specification(tmp_path: Path) -> None:
    source = open_source("synthetic:20", seed=3)
    assert repr(source) == "<Synthetic 20 messages, 1 symbols, seed 3>"
    assert source.total == 20
    assert source.schema.name == "itch50"
    path = tmp_path / "a:b_20260105.itch"
    Synthetic(20, seed=3).write(path)
    assert messages_of(open_source(f"itch50:{path}")) == messages_of(source)
    assert repr(open_source("iex:day.pcap")) == "<Iex day.pcap>"


@pytest.mark.parametrize("spec", ["", "synthetic", ":5", "synthetic:", "/data/day.itch"])
def test_a_specification_of_another_form_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=f"source was '{spec}', expected NAME:ARGUMENT, e.g."):
        open_source(spec)


def test_an_unknown_source_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"source was 'itch', expected one of: .*iex, itch50, synth"):
        open_source("itch:day")


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="Iex: option was 'date', expected one of: topic, port"):
        open_source("iex:day.pcap", date="2020-01-01")


def test_a_third_party_registers_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[blackbox.feeds]\nwords = demo_words:Words\ntext = demo_words:TEXT\n")
    (tmp_path / "demo_words.py").write_text(
        "from blackbox.feed.source import Source\n"
        "class Words(Source):\n"
        "    schema = None\n"
        "    def __init__(self, text, loud=False): self.text = text.upper() if loud else text\n"
        "    def chunks(self): return iter(())\n"
        "TEXT = 'no source'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source: Any = open_source("words:a:b", loud=True)
    assert source.text == "A:B"
    with pytest.raises(ConfigError, match="the entry point holds 'no source', expected a Source"):
        open_source("text:x")


def test_importing_schemas_and_sources_is_light() -> None:
    script = (
        "import sys, blackbox.feed.schema, blackbox.feed.source\n"
        "for feed in ('binance', 'dbn', 'iex', 'itch50', 'synthetic', 'tape'):\n"
        "    __import__(f'blackbox_feeds.{feed}.source')\n"
        "heavy = {'numba', 'llvmlite', 'pyarrow', 'zmq', 'rich', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
