"""What the commands for recordings print and with what status they end: inspect, verify, dump, export, compact."""

from __future__ import annotations

import base64
import datetime
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from typer.testing import CliRunner, Result

from blackbox import Recording
from blackbox.cli import app, picture
from blackbox.cli.dump import decimal_text
from blackbox.cli.status import Status
from blackbox.report.ticks import rate_ticks, time_ticks
from blackbox.schema import load_schema
from tests.journals import Day, Put, Row, feed_of

ROOT = Path(__file__).resolve().parent.parent
SECOND = 10**9
OPEN = int(datetime.datetime(2026, 11, 20, 14, 30, tzinfo=datetime.UTC).timestamp()) * SECOND
COMMANDS = ("inspect", "verify", "dump", "export", "compact")


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})


def trade(symbol: str, number: int) -> Row:
    """An ITCH trade; price 12.3450."""
    dtype = load_schema("itch50").dtype("P")
    record = numpy.zeros(1, dtype)
    record["message_type"], record["stock"], record["price"] = b"P", symbol.encode().ljust(8), 123_450
    record["buy_sell_indicator"], record["shares"], record["order_reference_number"] = b"B", number, 2**63 + number
    record["timestamp"][0] = list((9 * 3600 + 1800 + number).to_bytes(6, "big"))
    return Row(f"{symbol}.P".encode(), record.tobytes(), OPEN + number * SECOND)


@pytest.fixture
def day(tmp_path: Path) -> Day:
    """Two slices; the second one lacks messages 10 to 14."""
    feed = msgspec.structs.replace(feed_of(2, time_zone="America/New_York"), schema="itch50")
    day = Day(tmp_path / "recordings" / "recorded" / "2026-11-20", feed)
    for slice_id, symbol in enumerate(("AAPL", "BAC")):
        puts = []
        for number in range(10):
            sequence = 2 * number + 5 * (slice_id * number >= 5)
            rows = tuple(trade(symbol, 2 * number + i) for i in range(2))
            puts.append(Put(rows, sequence=sequence, ts_out=rows[0].ts_event, ts_recv=rows[0].ts_event + 7, schema=1))
        day.put(slice_id, *puts)
    return day


def damage(day: Day, put: int = 3) -> None:
    segment = day.segments[0]
    data = bytearray(segment.path.read_bytes())
    data[segment.places[put][0] + 120] ^= 1
    segment.path.write_bytes(data)


def value(text: str, name: str) -> str:
    found = re.search(rf"│ {name} +│ +(.+?) +│", text)
    assert found is not None, f"no {name!r} in\n{text}"
    return found[1]


# inspect


def test_a_day_is_shown(day: Day) -> None:
    ended = invoke("inspect", day.path)
    assert ended.exit_code == 0, ended.output
    names = ("feed", "date", "schema", "messages", "blocks", "missing", "torn", "damage", "market time", "sent")
    assert [value(ended.stdout, name) for name in names] == [
        *("recorded", "2026-11-20", "itch50", "40", "20", "5", "0", "0"),
        *("2026-11-20 09:30:00.000", "2026-11-20 09:30:00.000"),
    ]
    assert re.search(r"│ +1 │ +20 │ +10 │ .* │ 09:30:00\.000 │ 09:30:18\.000 │", ended.stdout)
    assert re.search(r"│ +1 │ +1 │ +1 │ +1 │ +5 │ +0 │ +0 │", ended.stdout)
    assert re.search(r"│ AAPL\.P │ +20 │ 50\.0% │", ended.stdout)
    assert "see `blackbox verify`" in ended.stderr


def test_damage_and_torn_bytes_are_shown(day: Day) -> None:
    damage(day)
    with day.segments[1].path.open("ab") as file:
        file.write(b"torn")
    ended = invoke("inspect", day.path, "--topics", 0)
    assert ended.exit_code == 0
    assert (value(ended.stdout, "torn"), value(ended.stdout, "damage")) == ("4", "2")
    assert "topics" not in ended.stdout
    assert ended.stderr.count("warning") == 1


def test_topics_are_those_that_were_asked_for(day: Day) -> None:
    assert "2 topics, the busiest 1" in invoke("inspect", day.path, "--topics", 1).stdout


def test_a_feed_is_a_table_of_its_days(day: Day) -> None:
    other = Day(day.path.parent / "2026-11-19", day.feed, date="2026-11-19")
    other.put(0, Put((trade("AAPL", 1),)))
    ended = invoke("inspect", day.path.parent)
    assert ended.exit_code == 0
    assert ended.stdout.startswith(f"{day.path.parent}: 2 days\n")
    assert re.search(r"│ 2026-11-19 │ +2 │ +1 │(?s:.)*│ 2026-11-20 │ +2 │ +40 │", ended.stdout)
    assert invoke("inspect", day.path.parent, "--picture", "x.svg").exit_code == Status.USAGE


def test_an_empty_day_is_shown_and_drawn(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    ended = invoke("inspect", day.path, "--picture", tmp_path / "x.svg")
    assert ended.exit_code == 0, ended.output
    assert value(ended.stdout, "messages") == "0"
    ElementTree.parse(tmp_path / "x.svg")


def test_the_picture_has_axes_labels_and_gaps(day: Day, tmp_path: Path) -> None:
    assert invoke("inspect", day.path, "--picture", tmp_path / "day.svg").exit_code == 0
    tree = ElementTree.parse(tmp_path / "day.svg")
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "recorded, 2026-11-20: 40 messages" in texts
    assert "▼ missing: 5 messages" in texts
    assert "local time, America/New_York" in texts
    assert {"09:30:00", "09:30:10"} < set(texts)
    assert [e.text for e in tree.iter("{http://www.w3.org/2000/svg}title")][1:] == ["5 missing"]


def test_names_in_the_picture_are_escaped(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", msgspec.structs.replace(feed_of(), name="a-b"))
    chart = picture.Chart.of(Recording.open(day.path), [])._replace(title="<&>")
    assert "&lt;&amp;&gt;" in picture.svg(chart)
    ElementTree.fromstring(picture.svg(chart))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (6.5 * 3600, ["10:00", "11:00", "12:00", "13:00", "14:00", "15:00", "16:00"]),
        (86_400, ["12:00", "15:00", "18:00", "21:00", "00:00", "03:00", "06:00", "09:00"]),
        (8, [f"09:30:0{i}" for i in range(9)]),
        (1, ["09:30:00.000", "09:30:00.200", "09:30:00.400", "09:30:00.600", "09:30:00.800", "09:30:01.000"]),
        (0.008, [f"09:30:00.00{i}" for i in range(9)]),
        (0.000_008, [f"09:30:00.00000{i}" for i in range(9)]),
    ],
)
def test_ticks_are_round_local_times(seconds: float, expected: list[str]) -> None:
    end = OPEN + round(seconds * SECOND)
    ticks = list(time_ticks(OPEN, end, "America/New_York"))
    assert [text for _, text in ticks] == expected
    assert all(OPEN <= ns <= end for ns, _ in ticks)


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(0, ["0", "0.001"]), (3, ["0", "1", "2", "3"]), (99_000, ["0", "20 k", "40 k", "60 k", "80 k", "100 k"])],
)
def test_rates_are_round_and_reach_the_highest(highest: float, expected: list[str]) -> None:
    ticks = list(rate_ticks(highest))
    assert [text for _, text in ticks] == expected
    assert ticks[-1][0] >= highest


def test_a_png_needs_matplotlib(day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda _: None)
    ended = invoke("inspect", day.path, "--picture", tmp_path / "day.png")
    assert ended.exit_code == Status.ERROR
    assert ended.stderr == (
        "error: a PNG needs matplotlib: pip install 'blackbox-md[picture]'; day.svg would need nothing\n"
    )


def test_a_png_is_drawn(day: Day, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert invoke("inspect", day.path, "--picture", tmp_path / "day.png").exit_code == 0
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_wrong_usage(day: Day) -> None:
    ended = invoke("inspect", day.path, "--picture", "day.jpeg")
    assert ended.exit_code == Status.USAGE
    assert "expected a name that ends in .svg or .png" in " ".join(ended.stderr.replace("│", "").split())


# verify


def test_a_whole_day_has_status_0(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A", b"a", 1),)))
    ended = invoke("verify", day.path)
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert ended.stderr.endswith("nothing is damaged, nothing is missing\n")


def test_gaps_have_status_4(day: Day) -> None:
    ended = invoke("verify", day.path)
    assert ended.exit_code == Status.LOST
    assert re.search(r"│ +1 │ 0{15}1 │ - +│ +10 │ +5 │ 09:30:10\.000 │", ended.stdout)
    assert ended.stderr.endswith(f"lost: {day.path}: 5 messages missing in 1 gap\n")


def test_each_damage_is_told_by_file_place_bytes_and_messages(day: Day) -> None:
    damage(day)
    start, stop = day.segments[0].places[3]
    ended = invoke("verify", day.path)
    assert ended.exit_code == Status.LOST
    row = rf"│ slice-00000/000000\.journal │ +{start:,} │ +{stop - start} │ +2 │ body checksum did not match"
    assert re.search(row, ended.stdout)
    assert "1 part damaged with 2 messages or more; 7 messages missing in 2 gaps" in ended.stderr
    assert "warning" not in ended.stderr


def test_many_gaps_are_told_in_short(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, *(Put((Row(b"A", b"a", 1),), sequence=3 * i) for i in range(50)))
    ended = invoke("verify", day.path)
    assert "the largest 20 of 49" in ended.stdout
    assert "98 messages missing in 49 gaps" in ended.stderr


# dump


def test_messages_are_dumped_as_text(day: Day) -> None:
    ended = invoke("dump", day.path, "--count", 3)
    assert ended.exit_code == 0
    lines = ended.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("2026-11-20T14:30:00.000000000Z AAPL.P message_type=P ")
    assert "price=12.3450" in lines[0]


def objects(*words: object) -> list[dict[str, Any]]:
    ended = invoke("dump", *words, "--json")
    assert ended.exit_code == 0, ended.output
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_messages_are_dumped_as_json(day: Day) -> None:
    found = objects(day.path)
    assert len(found) == 40
    assert found[0] | {"record": None} == {
        "topic": "AAPL.P",
        "ts_event": OPEN,
        "ts_out": OPEN,
        "ts_recv": OPEN + 7,
        "slice": 0,
        "epoch": 1,
        "sequence": 0,
        "record": None,
    }
    assert found[0]["record"] == {
        "message_type": "P",
        "stock_locate": 0,
        "tracking_number": 0,
        "timestamp": 9 * 3600 + 1800,
        "order_reference_number": 2**63,
        "buy_sell_indicator": "B",
        "shares": 0,
        "stock": "AAPL",
        "price": "12.3450",
        "match_number": 0,
    }
    told = [(m.slice_id, m.sequence, m.topic.decode(), m.ts_event) for m in day.told()]
    assert [(m["slice"], m["sequence"], m["topic"], m["ts_event"]) for m in found] == told


def test_payloads_without_a_schema_are_dumped_in_base64(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A\xff", b"\x00\xff", 1), Row(b"A", b"", 2))))
    first, second = objects(day.path)
    assert (first["topic"], base64.b64decode(first["payload"])) == ("A\\xff", b"\x00\xff")
    assert second["payload"] == ""


@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        (["BAC"], [*range(10), *range(15, 25)]),
        (["BAC.P", "BAC.Q"], [*range(10), *range(15, 25)]),
        (["AAPL", "BAC", "--start", "09:30:18"], [18, 19, 23, 24]),
        (["--start", "09:30:03", "--stop", "09:30:05", "--slices", "0"], [3, 4]),
        (["--stop", str(OPEN + SECOND), "--slices", "0,1"], [0, 0]),
        (["--start", "2026-11-20T14:30:19Z", "--slices", "1"], [24]),
        (["X", "Y"], []),
    ],
)
def test_what_is_dumped_is_chosen(day: Day, words: list[str], sequences: list[int]) -> None:
    assert [message["sequence"] for message in objects(day.path, *words)] == sequences


def test_a_closed_pipe_ends_a_dump_quietly(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, *(Put(tuple(Row(b"A", b"x" * 40, 1) for _ in range(100)), sequence=100 * i) for i in range(200)))
    process = subprocess.Popen(
        [sys.executable, "-m", "blackbox.cli", "dump", str(day.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("number", "decimals", "text"),
    [(123_450, 4, "12.3450"), (-5, 4, "-0.0005"), (0, 2, "0.00"), (7, 0, "7"), (2**63 - 1, 4, "922337203685477.5807")],
)
def test_prices_are_exact(number: int, decimals: int, text: str) -> None:
    assert decimal_text(number, decimals) == text


# export and compact


def test_an_export_tells_what_is_not_certain(day: Day, tmp_path: Path) -> None:
    ended = invoke("export", day.path, tmp_path / "day.itch")
    assert ended.exit_code == 0, ended.output
    assert value(ended.stdout, "messages") == "40"
    assert (
        "warning: 40 messages of equal times in different slices: their order is not certain; "
        "a feed of one slice keeps it" in ended.stderr
    )
    assert (tmp_path / "day.itch").stat().st_size == 40 * 46


def test_an_export_lacks_what_is_damaged(day: Day, tmp_path: Path) -> None:
    damage(day)
    ended = invoke("export", day.path, tmp_path / "day.itch", "--stop", "09:30:10")
    assert ended.exit_code == Status.LOST
    assert value(ended.stdout, "messages") == "18"
    assert "1 part damaged with 2 messages or more; they are not in" in ended.stderr


def test_a_recording_is_compacted(day: Day, tmp_path: Path) -> None:
    ended = invoke("compact", day.path, tmp_path / "out", "--compression", "lz4", "--block-kib", 1)
    assert ended.exit_code == 0, ended.output
    assert value(ended.stdout, "messages") == "40"
    assert Recording.open(tmp_path / "out").counts() == Recording.open(day.path).counts()
    assert invoke("compact", day.path, tmp_path / "out").exit_code == Status.ERROR


def test_damage_is_left_out_of_what_is_compacted(day: Day, tmp_path: Path) -> None:
    damage(day)
    ended = invoke("compact", day.path, tmp_path / "out")
    assert ended.exit_code == Status.LOST
    assert value(ended.stdout, "messages") == "38"


# All of them


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_examples(command: str) -> None:
    ended = invoke(command, "--help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", ended.stdout).split())
    assert "For example" in text
    assert text.count(f"blackbox {command}") >= 3
    assert "Exit status: 0 fine, 1 error" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_recording_is_one_line(command: str, tmp_path: Path) -> None:
    more = [tmp_path / "out"] if command in {"export", "compact"} else []
    ended = invoke(command, tmp_path / "nothing", *more)
    assert ended.exit_code == Status.ERROR
    assert ended.stderr == f"error: recording '{tmp_path}/nothing' was not found\n"


@pytest.mark.parametrize(
    "words",
    [
        ["dump", "DAY", "--slices", "2"],
        ["dump", "DAY", "--slices", "all"],
        ["dump", "DAY", "--start", "noon"],
        ["dump", "DAY", "--count", "0"],
        ["export", "DAY"],
        ["export", "DAY", "x", "--stop", "25:00"],
        ["compact", "DAY"],
        ["compact", "DAY", "x", "--compression", "gzip"],
        ["compact", "DAY", "x", "--block-kib", "0"],
        ["inspect"],
        ["verify"],
    ],
)
def test_wrong_usage_is_status_2(day: Day, words: list[str]) -> None:
    assert invoke(*(str(day.path) if word == "DAY" else word for word in words)).exit_code == Status.USAGE
