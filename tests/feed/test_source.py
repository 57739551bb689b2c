"""Sources: publishing in columns, specifications, and the registry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import blackbox_feeds.io.columns
import pytest
from blackbox_feeds.synthetic import Synthetic

from blackbox.errors import ConfigError
from blackbox.feed.source import Source, open_source
from tests.feed.made import install
from tests.feeds.build import Message, messages_of
from tests.support import ROOT


class Recorder:
    """Collects published messages one by one."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.calls = 0
        self.source: Source | None = None

    def skip(self, count: int, ts_event: int = 0) -> None:
        raise AssertionError(f"{count} messages are missing at {ts_event}")

    def publish_many(self, topics: Any, topic_index: Any, payloads: Any, **columns: Any) -> None:
        self.calls += 1
        each = [topic_index, *(columns[name] for name in ("ts_event", "offsets", "lengths"))]
        assert [column.dtype.name for column in each] == ["int32", "int64", "int64", "int32"]
        for index, time, start, length in zip(*each, strict=True):
            self.messages.append((topics[index], int(time), payloads[start : start + length].tobytes()))


def test_a_feed_publishes_what_it_iterates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 100)
    source, recorder = Synthetic(150), Recorder()
    seen: list[int] = []
    assert source.publish(recorder, seen.append) == 150
    assert recorder.messages == messages_of(source)
    assert seen == [100, 150]
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
    with pytest.raises(ConfigError, match=r"source was 'itch', expected one of: .*iex, iextp, itch50, .*synth"):
        open_source("itch:day")
    with pytest.raises(ConfigError, match="Iex: option was 'date', expected one of: topic, port"):
        open_source("iex:day.pcap", date="2020-01-01")


@pytest.mark.parametrize("spec", ["", "synthetic", ":5", "synthetic:"])
def test_a_specification_of_another_form_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=f"source was '{spec}', expected NAME:ARGUMENT, e.g."):
        open_source(spec)


def test_a_third_party_registers_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[blackbox.feeds]\nwords = demo_words:Words\ntext = demo_words:TEXT\n")
    (tmp_path / "demo_words.py").write_text(
        "from blackbox.feed.source import Source\n"
        "class Words(Source):\n"
        "    schema = None\n"
        "    def __init__(self, text, loud=False): self.text = text.upper() if loud else text\n"
        "    def chunks(self): return iter(())\n"
        "TEXT = 'no source'\n"
    )
    source: Any = open_source("words:a:b", loud=True)
    assert source.text == "A:B"
    with pytest.raises(ConfigError, match="the entry point holds 'no source', expected a Source"):
        open_source("text:x")


def test_importing_schemas_and_sources_is_light() -> None:
    script = (
        "import sys, blackbox.feed.schema.schema, blackbox.feed.source\n"
        "for feed in ('binance', 'dbn', 'iex', 'itch50', 'synthetic', 'tape'):\n"
        "    __import__(f'blackbox_feeds.{feed}.source')\n"
        "heavy = {'numba', 'llvmlite', 'pyarrow', 'zmq', 'rich', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
