"""A recording keeps the schema of its payloads, for readers without that schema."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import xxhash

from blackbox import ConfigError, Feed, Publisher, Recorder, Recording, Replay, Schema, Subscriber
from blackbox.archive.maintain.manifest_repair import repair
from blackbox.errors import JournalError
from blackbox.feed.schema.document import SchemaDocument
from blackbox.feed.schema.schema import load_schema
from blackbox.testing import wait_until
from tests.feed.made import install
from tests.journals import Day, Put, Row, feed_of
from tests.ticks import TICK, TICK_ROWS, TICKS, recorded_ticks


@pytest.fixture(scope="module")
def ticks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day recorded by another process with a custom schema."""
    return recorded_ticks(tmp_path_factory.mktemp("ticks"))


def rewrite(day: Path, **changed: Any) -> None:
    """Rewrite a day's manifest with a valid checksum."""
    manifest = json.loads((day / "manifest.json").read_text()) | changed
    manifest.pop("checksum")
    text = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
    manifest["checksum"] = xxhash.xxh3_64_hexdigest(text.encode())
    (day / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False))


def test_a_schema_of_another_process_is_read_without_its_package(ticks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="schema was 'ticks', expected one of"):
        load_schema("ticks")
    recording = Recording.open(ticks)
    assert (recording.schema.name, recording.schema.schema_id) == ("ticks", 1_000)
    assert recording.schema.dtype("tick") == TICK
    assert recording.feed.schema_name == "ticks"
    found = numpy.concatenate([batch.records("tick") for batch in recording.batches()])
    found.sort(order="price")
    assert found.tobytes() == numpy.array(TICK_ROWS, TICK).tobytes()
    assert found["sizes"].tolist() == [list(row[3]) for row in TICK_ROWS]
    prices: list[int] = []
    feed = msgspec.structs.replace(Feed.local("again"), schema=recording.schema)
    recorder, subscriber = Recorder(feed, tmp_path), Subscriber(feed)
    subscriber.on(b"")(lambda message: prices.append(message.record.price))
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        recorder.start()
        Replay(recording, speed=None).publish(publisher)
        publisher.flush()
        wait_until(lambda: len(prices) == len(TICK_ROWS))
    recorder.run(until_end=True, timeout=200)
    assert sorted(prices) == [row[1] for row in TICK_ROWS]
    (manifest,) = tmp_path.glob("again/*/manifest.json")
    again = json.loads(manifest.read_text())
    assert again["feed"]["schema"] == "ticks"
    assert again["schema"] == json.loads((ticks / "manifest.json").read_text())["schema"]


def test_a_feed_with_a_custom_schema_is_like_any_other(tmp_path: Path) -> None:
    feed = Feed.local("mine", schema=TICKS)
    assert pickle.loads(pickle.dumps(feed)) == feed
    assert pickle.loads(pickle.dumps(feed)).schema.dtype("t")["price"].metadata == {"decimals": 2}
    assert repr(feed) == "Feed('mine', schema='ticks', slices=2)"
    path = tmp_path / "feed.toml"
    path.write_text('name = "mine"\nschema = "ticks"\n[[slices]]\nendpoints = ["tcp://127.0.0.1:5555"]\n')
    assert Feed.load(path).schema == "ticks"
    assert Feed.load(path, schema=TICKS).schema is TICKS
    with pytest.raises(ConfigError, match=r"feed\.toml: schema was 'ticks', expected 'other', the name of the given"):
        Feed.load(path, schema=Schema("other", 1_001, {"t": TICK}))
    path.write_text(path.read_text().replace('"ticks"', '{name = "ticks", schema_id = 1, records = {}}'))
    with pytest.raises(ConfigError, match="schema was a table, expected a name: pass the schema itself to Feed.load"):
        Feed.load(path)


@pytest.mark.parametrize(
    ("schema", "owner"), [(Schema("mine", 1, {"t": TICK}), "itch50"), (Schema("mine", 0, {"t": TICK}), "raw")]
)
def test_a_schema_id_in_use_is_rejected_with_its_owner(schema: Schema, owner: str) -> None:
    text = f"schema 'mine' has the number {schema.schema_id}, already used by '{owner}', expected another"
    with pytest.raises(ConfigError, match=re.escape(text)), Publisher(Feed.local("mine", schema=schema)):
        pass


def test_a_layout_changed_later_is_read_as_recorded(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(schema="itch50"))
    older = numpy.dtype([("message_type", "S1"), ("code", "u1")])
    day.write_manifest(Schema("itch50", 1, {"S": older}))
    day.put(0, Put((Row(b"x.S", b"S\7"),)))
    recording = Recording.open(tmp_path)
    (batch,) = recording.batches()
    assert batch.records("S")["code"].tolist() == [7]
    assert recording.feed.schema is recording.schema
    Day(tmp_path / "same", feed_of(schema="itch50"))
    assert Recording.open(tmp_path / "same").feed.schema == "itch50"


def test_days_with_different_layouts_are_not_replayed_as_one(tmp_path: Path) -> None:
    days = []
    for number, fields in enumerate(("xy", "xy", "yx")):
        schema = Schema("swapped", 1_001, {"t": numpy.dtype([("type", "S1"), *((name, "<i4") for name in fields)])})
        table = {"topic": [b"A.t"], "ts_event": [(19_000 + number) * 86_400 * 10**9], "x": [1], "y": [2]}
        days.append(Recording.create(tmp_path, Feed.local("swapped", schema=schema), table, message_type="t"))
    Replay(days[:2])
    text = f"{days[2].path} has other fields in its messages of type 't' than {days[1].path}, expected"
    with pytest.raises(ConfigError, match=re.escape(text)):
        Replay(days)


def test_a_broken_package_does_not_hide_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Day(tmp_path / "day", feed_of(schema="ticks"))
    day.write_manifest(TICKS)
    (tmp_path / "broken_ticks.py").write_text("raise RuntimeError('no licence')\n")
    install(tmp_path, monkeypatch, "[blackbox.schemas]\nticks = broken_ticks:TICKS\n", "broken-package")
    with pytest.raises(ConfigError, match="schema 'ticks' of broken-package"):
        load_schema("ticks")
    assert Recording.open(day.path).schema.dtype("t") == TICK


def types_of(size: int, form: str, **field: Any) -> dict[str, Any]:
    fields = [{"name": "odd", "format": form, "offset": 0} | field]
    return {"schema": {"name": "ticks", "id": 9, "types": {"t": {"bytes": size, "fields": fields}}}}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"schema": None}, "Expected `object`, got `null`"),
        ({"schema": {}}, "missing required field `name`"),
        ({"schema": {"name": "other", "id": 9}}, "schema was 'other', expected 'ticks', which the feed names"),
        ({"schema": {"name": "ticks", "id": 70_000}}, "schema_id was 70000, expected 0 to 65535"),
        (types_of(8, "|O8"), "field 'odd' had the format '|O8', expected"),
        (types_of(8, "<i8", offset=4), "type 't': "),
        (types_of(1 << 60, "<i8"), "its bytes were 1152921504606846976, expected 1 to"),
        ({"feed": {"schema": {"name": "ticks", "schema_id": 0, "records": {}}}}, "schema was 'ticks', expected"),
    ],
)
def test_an_invalid_schema_is_one_error_that_names_the_file(tmp_path: Path, changed: Any, text: str) -> None:
    day = Day(tmp_path, feed_of(schema="ticks"))
    before = json.loads((day.path / "manifest.json").read_text())
    rewrite(day.path, **{name: before[name] | each if name == "feed" else each for name, each in changed.items()})
    with pytest.raises(JournalError, match=f"{re.escape(str(day.path))}/manifest.json is damaged: .*{re.escape(text)}"):
        Recording.open(day.path)


def test_a_day_is_repaired_with_the_schema_of_its_neighbour(ticks: Path, tmp_path: Path) -> None:
    near, hurt = tmp_path / "ticks" / ticks.name, tmp_path / "ticks" / "2026-01-02"
    shutil.copytree(ticks, near)
    shutil.copytree(ticks, hurt)
    (hurt / "manifest.json").write_text("{")
    assert repair(hurt).messages == len(TICK_ROWS)
    assert SchemaDocument.of(Recording.open(hurt).schema) == SchemaDocument.of(TICKS)
