"""Several days as one: each once, by date, with times of day for each day."""

from __future__ import annotations

import datetime
import re
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest
from blackbox_feeds.iex import Iex
from blackbox_feeds.itch50 import Itch50

from blackbox import ConfigError, Feed, Message, Recording, Recordings, Replay, Schema, Subscriber
from blackbox.archive.import_days import import_days
from blackbox.errors import JournalError
from blackbox.feed.schema import QuoteFields, TradeFields, price
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls

ZONE = "America/New_York"
NOON_NS = 1_767_632_400 * 10**9
"""2026-01-05 12:00 in New York."""
HOUR_NS = 3_600 * 10**9
DATES = ("2026-01-05", "2026-01-06", "2026-01-07")


def feed_of(slices: int = 2, name: str = "days", **settings: Any) -> Feed:
    feed = Feed.local(name, slices=slices, **settings)
    return Feed(name=name, slices=feed.slices, schema=feed.schema, key_bytes=feed.key_bytes, time_zone=ZONE)


def write_days(directory: Path, slices: int = 2, dates: tuple[str, ...] = DATES, **settings: Any) -> Path:
    """Write a message of A and of B each hour from 9:00 to 15:00 of each day; payloads are date and hour."""
    for number, date in enumerate(DATES):
        if date in dates:
            hours = [hour for hour in range(9, 16) for _ in "AB"]
            columns = {
                "topic": ["A.t", "B.t"] * 7,
                "ts_event": [NOON_NS + 24 * HOUR_NS * number + HOUR_NS * (hour - 12) for hour in hours],
                "payload": [f"{date} {hour:02}" for hour in hours],
            }
            Recording.create(directory, feed_of(slices, **settings), columns)
    return directory / str(settings.get("name", "days"))


def payloads(recordings: Recordings | Recording, **selection: Any) -> list[str]:
    return sorted({message.payload.decode() for batch in recordings.batches(**selection) for message in batch})


def dates_of(found: Recordings) -> list[str]:
    return [str(day.date) for day in found]


def test_a_day_is_found_by_date_and_by_index(tmp_path: Path) -> None:
    days = Recordings.open(write_days(tmp_path))
    for place, date in enumerate(DATES):
        for which in (date, datetime.date.fromisoformat(date), place, place - 3):
            assert days[which] is days.days[place]
    with pytest.raises(
        KeyError, match="no recording is of 2026-01-08, expected one of 3 days: 2026-01-05, 2026-01-06, 2"
    ):
        days["2026-01-08"]
    with pytest.raises(IndexError, match="index was 3, expected one of 3 days: 2026-01-05, 2026-01-06, 2026-01-07"):
        days[3]
    with pytest.raises(ConfigError, match="date was 'monday', expected one such as"):
        days["monday"]
    with pytest.raises(TypeError, match=r"index was 1.5, expected an integer, a date or a slice"):
        days[1.5]  # type: ignore[call-overload]


@pytest.mark.parametrize("start", [None, *range(-4, 5)])
@pytest.mark.parametrize("stop", [None, *range(-4, 5)])
def test_a_slice_of_indices_works_as_in_a_list(tmp_path: Path, start: int | None, stop: int | None) -> None:
    days = Recordings.open(write_days(tmp_path))
    expected = list(DATES)[start:stop]
    if expected:
        assert dates_of(days[start:stop]) == expected
    else:
        with pytest.raises(IndexError, match=r"no recording is in \[.*\], expected one of 3 days"):
            days[start:stop]


def test_a_slice_of_dates_includes_both_ends(tmp_path: Path) -> None:
    days = Recordings.open(write_days(tmp_path))
    assert dates_of(days["2026-01-06":]) == ["2026-01-06", "2026-01-07"]  # type: ignore[misc]
    assert dates_of(days[: datetime.date(2026, 1, 6)]) == ["2026-01-05", "2026-01-06"]  # type: ignore[misc]
    assert dates_of(days["2026-01-06":"2026-01-06"]) == ["2026-01-06"]  # type: ignore[misc]
    with pytest.raises(IndexError, match=r"no recording is in \[2026-02-01:\], expected one of 3 days"):
        days["2026-02-01":]  # type: ignore[misc]
    with pytest.raises(TypeError, match="step was 2, expected none in a slice of dates"):
        days["2026-01-05"::2]  # type: ignore[misc]


def test_a_date_of_several_feeds_is_ambiguous(tmp_path: Path) -> None:
    days = Recordings.open(write_days(tmp_path, name="one"), write_days(tmp_path, name="two"))
    with pytest.raises(KeyError, match="2 recordings are of 2026-01-05: choose a feed by `of_feed`, expected one of 6"):
        days["2026-01-05"]
    assert days.of_feed("two")["2026-01-05"].feed.name == "two"


def test_the_latest_day_is_the_newest_by_date_not_by_directory_name(tmp_path: Path) -> None:
    path = write_days(tmp_path)
    assert str(Recording.latest(path).date) == str(Recording.latest(str(path)).date) == "2026-01-07"
    (path / "2026-01-07").rename(path / "a-copy")
    assert str(Recording.latest(path).date) == "2026-01-07"
    shutil.rmtree(path / "a-copy")
    assert str(Recording.latest(path).date) == "2026-01-06"
    with pytest.raises(JournalError, match=r"2026-01-06 is a recorded day, expected the directory of a feed, such as"):
        Recording.latest(path / "2026-01-06")
    with pytest.raises(JournalError, match=r"holds the feeds days, expected the directory of a feed with its days"):
        Recording.latest(tmp_path)
    with pytest.raises(JournalError, match=r"none holds no recorded day, expected the directory of a feed"):
        Recording.latest(tmp_path / "none")


def replayed(recordings: Any, **settings: Any) -> list[str]:
    found: list[str] = []
    given = recordings.recordings if isinstance(recordings, Replay) else recordings
    subscriber = Subscriber(next(iter(given)).feed)

    @subscriber.on(b"A.")
    def take(message: Message) -> None:
        found.append(message.payload.decode())

    subscriber.replay(recordings, **settings)
    return found


def expected(hours: range, dates: tuple[str, ...] = DATES) -> list[str]:
    return [f"{date} {hour:02}" for date in dates for hour in hours]


def test_a_feed_directory_opens_all_its_days(tmp_path: Path) -> None:
    recordings = Recordings.open(write_days(tmp_path))
    assert [str(day.date) for day in recordings] == list(DATES)
    assert payloads(recordings) == expected(range(9, 16))
    assert recordings.counts() == {b"A.t": 21, b"B.t": 21}
    assert recordings.topics() == [b"A.t", b"B.t"]
    assert (recordings.gaps(), recordings.verify(), recordings.damage) == ([], [], [])
    assert repr(recordings) == "Recordings('days', 3 days, 2026-01-05 to 2026-01-07)"


@pytest.mark.parametrize(
    ("first", "last", "dates"),
    [
        ("2026-01-06", None, DATES[1:]),
        (None, datetime.date(2026, 1, 6), DATES[:2]),
        ("2026-01-06", "2026-01-06", DATES[1:2]),
    ],
)
def test_a_range_of_dates_is_selected(tmp_path: Path, first: Any, last: Any, dates: tuple[str, ...]) -> None:
    directory = write_days(tmp_path)
    (directory / DATES[1]).rename(directory / "copy")  # its manifest has the date
    recordings = Recordings.open(directory, first=first, last=last)
    assert tuple(str(day.date) for day in recordings) == dates


def test_a_day_given_twice_is_read_and_played_once(tmp_path: Path) -> None:
    directory = write_days(tmp_path)
    (tmp_path / "link").symlink_to(directory / DATES[0])
    recordings = Recordings.open(directory / DATES[0], directory, tmp_path / "link")
    assert len(recordings) == 3
    assert replayed(recordings) == expected(range(9, 16))
    day = directory / DATES[0]
    assert replayed([Recording.open(day), Recording.open(day)]) == expected(range(9, 16), DATES[:1])


def test_times_of_day_apply_to_each_day(tmp_path: Path) -> None:
    recordings = Recordings.open(write_days(tmp_path))
    assert payloads(recordings, start="10:00", stop="12:00") == expected(range(10, 12))
    date_time = f"{DATES[1]} 12:00"
    assert payloads(recordings, start=date_time)[0] == f"{DATES[1]} 12"


@pytest.mark.parametrize(
    ("start", "stop"),
    [("14:00", "10:00"), (f"{DATES[1]} 12:00", f"{DATES[0]} 12:00"), (NOON_NS + 9, NOON_NS + 8)],
)
def test_a_start_after_the_stop_is_rejected(tmp_path: Path, start: Any, stop: Any) -> None:
    recordings = Recordings.open(write_days(tmp_path))
    message = re.escape(f"start was {start!r}, which is after stop={stop!r}")
    with pytest.raises(ConfigError, match=message):
        payloads(recordings, start=start, stop=stop)
    with pytest.raises(ConfigError, match=message):
        Replay(recordings, start=start, stop=stop)
    assert payloads(recordings, start=NOON_NS, stop=NOON_NS) == []


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("order", ["event", "sent"])
@pytest.mark.parametrize("speed", [None, 3_600.0])
def test_a_replay_plays_times_of_day_of_each_day(tmp_path: Path, slices: int, order: Any, speed: float | None) -> None:
    recordings = Recordings.open(write_days(tmp_path, slices))
    controls = Controls(speed, clock=ManualClock(automatic=True))

    def play(**settings: Any) -> list[str]:
        return replayed(Replay(recordings, order=order, pace_by="ts_event", controls=controls, **settings))

    if order == "event":
        assert play(start="10:00", stop="12:00") == expected(range(10, 12))
        assert play(start="14:00") == expected(range(14, 16))
        assert play(stop="10:00", start=f"{DATES[1]} 00:00") == expected(range(9, 10), DATES[1:])
    else:
        assert sorted(set(play(start="10:00", stop="12:00"))) == expected(range(10, 12))
    assert play(start=f"{DATES[1]} 10:00", stop=f"{DATES[2]} 10:00") == expected(range(10, 16), DATES[1:2]) + expected(
        range(9, 10), DATES[2:]
    )


def test_a_seek_stays_in_a_days_times_and_loops_replay_all_days(tmp_path: Path) -> None:
    recordings = Recordings.open(write_days(tmp_path, 1))
    replay = Replay(recordings, start="10:00", stop="12:00", loops=2)
    assert replayed(replay) == expected(range(10, 12)) * 2
    subscriber = Subscriber(recordings.feed)
    found: list[str] = []
    replay = Replay(recordings, start="10:00", stop="12:00")

    @subscriber.on(b"A.")
    def take(message: Message) -> None:
        found.append(message.payload.decode())
        if len(found) == 1:
            replay.controls.seek(NOON_NS + 24 * HOUR_NS)  # noon of the second day, after its last message

    subscriber.replay(replay)
    assert [each for each in found if not each.startswith(DATES[0])] == expected(range(10, 12), DATES[2:])


def test_messages_of_other_dates_do_not_change_the_date_of_a_time_of_day(tmp_path: Path) -> None:
    columns = {"topic": ["A.t"] * 3, "ts_event": [NOON_NS - 72 * HOUR_NS, NOON_NS, NOON_NS + HOUR_NS], "payload": "abc"}
    recording = Recording.create(tmp_path, feed_of(1), columns, date=datetime.date(2026, 1, 5))
    assert recording.time("12:00") == NOON_NS
    assert payloads(recording, start="12:30") == ["c"]


def test_damage_is_reported_for_its_day(tmp_path: Path) -> None:
    directory = write_days(tmp_path)
    path = directory / DATES[1] / "slice-00000" / "000000.journal"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    read: list[int] = []
    recordings = Recordings.open(directory)
    assert {damage.path for damage in recordings.verify(read.append)} == {path}
    assert read == sorted(read)
    assert read[-1] == recordings.file_bytes
    assert {damage.path for damage in recordings.damage} == {path}


def test_recordings_that_do_not_fit_together_are_rejected(tmp_path: Path) -> None:
    directory = write_days(tmp_path)
    with pytest.raises(JournalError, match="none of 3 days is from 2027-01-01 to None"):
        Recordings.open(directory, first="2027-01-01")
    with pytest.raises(ConfigError, match="date was 'monday', expected one such as '2019-12-30'"):
        Recordings.open(directory, last="monday")
    with pytest.raises(JournalError, match="was not found"):
        Recordings.open(tmp_path / "nowhere")
    write_days(tmp_path, name="other")
    with pytest.raises(JournalError, match="holds the days of feeds, expected one of them: days, other"):
        Recordings.open(tmp_path)
    with pytest.raises(ConfigError, match="there was no recording, expected at least one"):
        Recordings([])
    other = write_days(tmp_path, name="keys", key_bytes=2)
    with pytest.raises(ConfigError, match=r"key_bytes = 0, key_bytes = 2, expected the same keys"):
        Recordings.open(directory, other)
    other = write_days(tmp_path / "other", schema="tape", dates=DATES[:1])
    with pytest.raises(ConfigError, match=r"schema \['raw', 'tape'\], expected the same in all"):
        Recordings.open(directory, other)


@pytest.mark.parametrize("what", ["trades", "quotes"])
def test_trades_and_quotes_of_all_days_equal_those_of_each_day(shared_data: Path, tmp_path: Path, what: str) -> None:
    """The ITCH days have the same orders: executions find orders of their own day."""
    dates = ("2020-01-30", "2020-01-31")
    if what == "trades":
        feed = Feed.local("days", slices=2, schema="itch50")
        for date in dates:
            source = Itch50(shared_data / "itch50" / "runk_locate-13-10k.bin", date=date)
            import_days(feed, tmp_path, [source], date=date)
    else:
        feed = Feed.local("days", slices=2, schema="iex_tops16")
        for date in dates:
            quotes = Iex(shared_data / "iex" / "goiex_TOPS16.pcapng.gz")
            quotes.date = datetime.date.fromisoformat(date)  # so that both days have messages
            import_days(feed, tmp_path, [quotes])
    days = Recordings.open(tmp_path / "days")
    each = [
        [{"feed": "days", "date": day.date, **row} for row in getattr(day, what).to_arrow(prices="integer").to_pylist()]
        for day in days
    ]
    assert len(each) == 2
    assert all(each)
    ticks = getattr(days, what)
    assert ticks.to_arrow(prices="integer").to_pylist() == each[0] + each[1]
    chunks = list(ticks.arrow_chunks(rows=100, prices="integer"))
    assert [row for chunk in chunks for row in chunk.to_pylist()] == each[0] + each[1]
    assert max(map(len, chunks)) == 100
    told = [("days", row["date"]) for row in each[0] + each[1]]
    pandas, polars = ticks.to_pandas(), ticks.to_polars()
    assert list(zip(pandas["feed"], pandas["date"], strict=True)) == told
    assert polars.select("feed", "date").rows() == told
    assert polars.columns == list(pandas) == ["feed", "date", *getattr(days.days[0], what).to_pandas()]
    assert [frame.columns for frame in ticks.polars_chunks()] == [polars.columns] * 2


def test_trades_of_several_time_zones_use_that_of_the_last_day(tmp_path: Path) -> None:
    tick = numpy.dtype([("type", "S1"), ("price", price("<i4", 4)), ("size", "<u2")])
    schema = Schema("ticks", schema_id=1_777, records={"t": tick}, trades=(TradeFields("t", "price", "size"),))
    slices = Feed.local("ticks", slices=1).slices
    for date, zone in (("2026-01-05", "UTC"), ("2026-01-06", "America/New_York")):
        feed = Feed(name="ticks", slices=slices, schema=schema, time_zone=zone)
        payload = numpy.array([(b"t", 5, 6)], tick).tobytes()
        columns = {"topic": ["A.t"], "ts_event": [NOON_NS], "payload": [payload]}
        Recording.create(tmp_path, feed, columns, date=date)
    trades = Recordings.open(tmp_path / "ticks").trades
    assert str(trades.to_arrow().schema.field("ts_event").type) == "timestamp[ns, tz=America/New_York]"
    assert {str(chunk.schema.field("ts_event").type) for chunk in trades.arrow_chunks()} == {
        "timestamp[ns, tz=America/New_York]"
    }
    with pytest.raises(TypeError, match="zones"):
        trades.arrow_chunks(zones="UTC")  # type: ignore[call-arg]


def test_a_time_of_day_is_rejected_if_sessions_start_at_different_times(tmp_path: Path) -> None:
    for name, start in (("stocks", "00:00"), ("futures", "18:00")):
        feed = Feed(name=name, slices=Feed.local(name, slices=1).slices, time_zone=ZONE, day_start=start)
        Recording.create(tmp_path, feed, {"topic": ["A.x"], "ts_event": [NOON_NS], "payload": ["x"]})
    both = Recordings.open(tmp_path / "stocks", tmp_path / "futures")
    with pytest.raises(ConfigError, match="sessions that start at"):
        replayed(both, start="10:00")
    assert replayed(both, start=NOON_NS) == ["x", "x"]


def several_schemas(directory: Path) -> Recordings:
    """Write days of four feeds: prices of 4 and 9 decimals, of JSON, and none; integer ids, string ids, and none."""
    fields = {
        "stocks": [("type", "S1"), ("price", price("<i8", 4)), ("size", "<u4"), ("id", "<u8")],
        "futures": [("type", "S1"), ("price", price("<i8", 9)), ("size", "<u4")],
        "named": [("type", "S1"), ("price", price("<i8", 4)), ("size", "<u4"), ("id", "S2")],
    }
    values = {"stocks": (b"t", 15_000, 7, 1), "futures": (b"t", -1, 8), "named": (b"t", 20_000, 9, b"a")}
    payloads: dict[str, Any] = {"crypto": '{"p":"0.1","q":"0.5","t":3}', "other": "x"}
    schemas: dict[str, Any] = {"other": "raw"}
    for number, (name, each) in enumerate(fields.items()):
        dtype = numpy.dtype(each)
        found = TradeFields("t", "price", "size", id="id" if "id" in (dtype.names or ()) else None)
        schemas[name] = Schema(name, schema_id=1_780 + number, records={"t": dtype}, trades=(found,))
        payloads[name] = numpy.array([values[name]], dtype).tobytes()
    json = TradeFields("t", "p", "q", id="t"), QuoteFields("b", "b", "B", "a", "A")
    schemas["crypto"] = Schema("crypto", schema_id=1_788, records={}, trades=json[:1], quotes=json[1:], json="data")
    for name, payload in payloads.items():
        feed = Feed(name=name, slices=Feed.local(name, slices=1).slices, schema=schemas[name])
        columns = {"topic": ["A.t"], "ts_event": [NOON_NS], "payload": [payload]}
        Recording.create(directory, feed, columns, date="2026-01-05")
    return Recordings.open(*(directory / name for name in ("stocks", "futures", "crypto", "other")))


def test_trades_of_several_schemas_have_common_columns(tmp_path: Path) -> None:
    several = several_schemas(tmp_path)
    columns = ["feed", "price", "size", "trade_id"]
    rows = [("stocks", 1.5, 7.0, 1), ("futures", -1e-9, 8.0, None), ("crypto", 0.1, 0.5, 3)]
    assert several.trades.to_polars().select(columns).rows() == rows
    assert [frame.select(columns).row(0) for frame in several.trades.polars_chunks()] == rows
    both = Recordings.open(tmp_path / "stocks", tmp_path / "futures").trades
    exact = both.to_polars(prices="decimal").select(columns[:3]).rows()
    assert exact == [("stocks", Decimal("1.5"), 7), ("futures", Decimal("-0.000000001"), 8)]
    with pytest.raises(ConfigError, match="prices were 'long', but 'price' has several units: expected 'float' or"):
        both.to_arrow(prices="integer")
    assert several.quotes.to_polars().columns[-4:] == ["bid_price", "bid_size", "ask_price", "ask_size"]
    with pytest.raises(ConfigError, match="'stocks' declares no quotes"):
        _ = Recordings.open(tmp_path / "stocks").quotes
    with pytest.raises(ConfigError, match="field 'trade_id' was uint64 and string, with no common type"):
        Recordings.open(tmp_path / "stocks", tmp_path / "named").trades.to_arrow()
    with pytest.raises(ConfigError, match="messages of one feed, not of"):
        several.to_arrow()


def test_feeds_of_one_schema_are_read_and_played_together(tmp_path: Path) -> None:
    directory = write_days(tmp_path)
    other = write_days(tmp_path, slices=1, name="other")
    recordings = Recordings.open(directory, other)
    assert recordings.counts() == {b"A.t": 42, b"B.t": 42}
    assert replayed(recordings) == [each for each in expected(range(9, 16)) for _ in range(2)]
    shutil.rmtree(other / DATES[0])
    assert len(Recordings.open(directory, other)) == 5


def test_a_second_replay_of_another_feed_is_rejected(tmp_path: Path) -> None:
    first, second = (
        Recordings.open(write_days(tmp_path / name, dates=DATES[:1], name=name)) for name in ("days", "others")
    )
    subscriber = Subscriber(first.feed)
    subscriber.on(b"")(lambda _: None)
    subscriber.replay(first)
    subscriber.replay(first)
    with pytest.raises(ConfigError, match="slice 0 of feed 'others' was played where slice 0 of 'days' was before"):
        subscriber.replay(second)
