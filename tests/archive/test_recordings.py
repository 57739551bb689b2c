"""Several days as one: each once, by date, with times of day for each day."""

from __future__ import annotations

import datetime
import itertools
import re
import shutil
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest
from polars.testing import assert_frame_equal

from blackbox import ConfigError, Feed, Message, Recording, Recordings, Replay, Schema, Subscriber
from blackbox.errors import JournalError
from blackbox.feed.schema.schema import QuoteFields, TradeFields, price, utc_time
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from tests.damaged import flip
from tests.deals import Sides, write_deals
from tests.journals import Day, Put, Row
from tests.journals import feed_of as journal_feed

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


def test_days_are_chosen_by_date_index_and_slice(tmp_path: Path) -> None:
    recordings = Recordings.open(write_days(tmp_path, name="one"))
    days = recordings.days
    for place, date in enumerate(DATES):
        for which in (date, datetime.date.fromisoformat(date), place, place - 3):
            assert recordings[which] is days[place]
    for start, stop in itertools.product([None, *range(-4, 5)], repeat=2):
        if days[start:stop]:
            assert recordings[start:stop].days == days[start:stop]
        else:
            with pytest.raises(IndexError, match=r"no recording is in \[.*\], expected one of 3 days"):
                recordings[start:stop]
    any_slice: Any = recordings  # slices of dates are not in the types of slices
    assert any_slice["2026-01-06":].days == days[1:]
    assert any_slice[: datetime.date(2026, 1, 6)].days == days[:2]
    assert any_slice["2026-01-06":"2026-01-06"].days == days[1:2]
    both = Recordings.open(tmp_path / "one", write_days(tmp_path, name="two"))
    assert both.of_feed("two")["2026-01-05"].feed.name == "two"
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (recordings, "2026-01-08", KeyError, "no recording is of 2026-01-08, expected one of 3 days: 2026-01-05"),
        (recordings, 3, IndexError, "index was 3, expected one of 3 days: 2026-01-05, 2026-01-06, 2026-01-07"),
        (recordings, "monday", ConfigError, "date was 'monday', expected one such as"),
        (recordings, 1.5, TypeError, r"index was 1.5, expected an integer, a date or a slice"),
        (recordings, slice("2026-02-01", None), IndexError, r"in \[2026-02-01:\], expected one of 3 days"),
        (recordings, slice("2026-01-05", None, 2), TypeError, "step was 2, expected none in a slice of dates"),
        (both, "2026-01-05", KeyError, "2 recordings are of 2026-01-05: choose a feed by `of_feed`, expected one of 6"),
    ]
    for of, which, error, text in wrong:
        with pytest.raises(error, match=text):
            of[which]


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
    given = recordings.playlist.recordings if isinstance(recordings, Replay) else recordings
    subscriber = Subscriber(next(iter(given)).feed)

    @subscriber.on(b"A.")
    def take(message: Message) -> None:
        found.append(message.payload.decode())

    subscriber.replay(recordings, **settings)
    return found


def expected(hours: range, dates: tuple[str, ...] = DATES) -> list[str]:
    return [f"{date} {hour:02}" for date in dates for hour in hours]


def test_a_feed_directory_opens_its_days_once(tmp_path: Path) -> None:
    directory = write_days(tmp_path)
    (tmp_path / "link").symlink_to(directory / DATES[0])
    recordings = Recordings.open(directory / DATES[0], directory, tmp_path / "link")
    assert [str(day.date) for day in recordings] == list(DATES)
    assert payloads(recordings) == replayed(recordings) == expected(range(9, 16))
    assert recordings.counts() == {b"A.t": 21, b"B.t": 21}
    assert recordings.topics() == [b"A.t", b"B.t"]
    assert (recordings.gaps(), recordings.verify(), recordings.damage) == ([], [], [])
    assert repr(recordings) == "Recordings('days', 3 days, 2026-01-05 to 2026-01-07)"
    day = directory / DATES[0]
    assert replayed([Recording.open(day), Recording.open(day)]) == expected(range(9, 16), DATES[:1])
    (directory / DATES[1]).rename(directory / "copy")  # its manifest has the date
    ranges: list[tuple[Any, Any, slice]] = [
        ("2026-01-06", None, slice(1, 3)),
        (None, datetime.date(2026, 1, 6), slice(2)),
        ("2026-01-06", "2026-01-06", slice(1, 2)),
    ]
    for first, last, of in ranges:
        assert tuple(str(day.date) for day in Recordings.open(directory, first=first, last=last)) == DATES[of]


def test_times_of_day_apply_to_each_day(tmp_path: Path) -> None:
    recordings = Recordings.open(write_days(tmp_path))
    assert payloads(recordings, start="10:00", stop="12:00") == expected(range(10, 12))
    assert payloads(recordings, start=f"{DATES[1]} 12:00")[0] == f"{DATES[1]} 12"
    assert payloads(recordings, start=NOON_NS, stop=NOON_NS) == []
    both: list[tuple[Any, Any]] = [("14:00", "10:00"), (f"{DATES[1]} 12:00", f"{DATES[0]} 12:00")]
    both.append((NOON_NS + 9, NOON_NS + 8))
    for start, stop in both:
        message = re.escape(f"start was {start!r}, which is after stop={stop!r}")
        with pytest.raises(ConfigError, match=message):
            payloads(recordings, start=start, stop=stop)
        with pytest.raises(ConfigError, match=message):
            Replay(recordings, start=start, stop=stop)
    # Messages of other dates do not change the date of a time of day.
    times = [NOON_NS - 72 * HOUR_NS, NOON_NS, NOON_NS + HOUR_NS]
    columns = {"topic": ["A.t"] * 3, "ts_event": times, "payload": ["a", "b", "c"]}
    recording = Recording.create(tmp_path / "odd", feed_of(1), columns, date=datetime.date(2026, 1, 5))
    assert recording.time("12:00") == NOON_NS
    assert payloads(recording, start="12:30") == ["c"]


@pytest.mark.parametrize(("slices", "speed"), [(1, None), (2, 3_600.0)])
@pytest.mark.parametrize("order", ["event", "sent"])
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
    of_second, of_third = expected(range(10, 16), DATES[1:2]), expected(range(9, 10), DATES[2:])
    assert play(start=f"{DATES[1]} 10:00", stop=f"{DATES[2]} 10:00") == of_second + of_third


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


def test_damage_is_reported_for_its_day(tmp_path: Path) -> None:
    directory = write_days(tmp_path)
    path = directory / DATES[1] / "slice-00000" / "000000.journal"
    flip(path, -200)
    read: list[int] = []
    recordings = Recordings.open(directory)
    assert {damage.path for damage in recordings.verify(read.append)} == {path}
    assert read == sorted(read)
    assert read[-1] == recordings.file_bytes
    assert {damage.path for damage in recordings.damage} == {path}


def test_recordings_that_do_not_fit_together_are_rejected(tmp_path: Path) -> None:
    directory, other = write_days(tmp_path), write_days(tmp_path, slices=1, name="other")
    keys = write_days(tmp_path / "more", name="keys", key_bytes=2)
    tape = write_days(tmp_path / "tape", schema="tape", dates=DATES[:1])
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: Recordings.open(directory, first="2027-01-01"), "none of 3 days is from 2027-01-01 to None"),
        (lambda: Recordings.open(directory, last="monday"), "date was 'monday', expected one such as '2019-12-30'"),
        (lambda: Recordings.open(tmp_path / "nowhere"), "was not found"),
        (lambda: Recordings.open(tmp_path), "holds the days of feeds, expected one of them: days, other"),
        (lambda: Recordings([]), "there was no recording, expected at least one"),
        (lambda: Recordings.open(directory, keys), "key_bytes = 0, key_bytes = 2, expected the same keys"),
        (lambda: Recordings.open(directory, tape), r"schema \['raw', 'tape'\], expected the same in all"),
    ]
    for call, text in wrong:
        with pytest.raises((ConfigError, JournalError), match=text):
            call()
    recordings = Recordings.open(directory, other)
    assert recordings.counts() == {b"A.t": 42, b"B.t": 42}
    assert replayed(recordings) == [each for each in expected(range(9, 16)) for _ in range(2)]
    shutil.rmtree(other / DATES[0])
    assert len(Recordings.open(directory, other)) == 5
    days, others = Recordings.open(directory), Recordings.open(write_days(tmp_path / "more", name="others"))
    subscriber = Subscriber(days.feed)
    subscriber.on(b"")(lambda _: None)
    subscriber.replay(days)
    subscriber.replay(days)
    with pytest.raises(ConfigError, match="slice 0 of feed 'others' was played where slice 0 of 'days' was before"):
        subscriber.replay(others)


def test_trades_and_quotes_of_all_days_equal_those_of_each_day(tmp_path: Path) -> None:
    """The ITCH days have the same order numbers at other prices: executions find orders of their own day."""
    for number, date in enumerate(DATES[:2]):
        day = Day(tmp_path / "itch" / date, journal_feed(schema="itch50"), date=date)
        orders = [b"A" + bytes(10) + struct.pack(">QcI8sI", n, b"B", 1, b"", 100 * number + n) for n in range(1, 151)]
        trades = [b"E" + bytes(10) + struct.pack(">QIQ", n, 1, n) for n in range(1, 151)]
        day.put(0, Put(tuple(Row(b"S.%c" % each[0], each, NOON_NS + 1) for each in orders + trades)))
        sides = [Sides("A", 1_000 + n, 2_000 + n, time=1 + n) for n in range(150)]
        write_deals(tmp_path / "deals" / date, sides, date)
    prices = [[100 * number + n for n in range(1, 151)] for number in range(2)]
    assert [
        day.trades.to_arrow(prices="integer")["price"].to_pylist() for day in Recordings.open(tmp_path / "itch")
    ] == prices
    for what in ("trades", "quotes"):
        days = Recordings.open(tmp_path / {"trades": "itch", "quotes": "deals"}[what])
        ticks = getattr(days, what)
        each = [
            {"feed": "recorded", "date": day.date, **row}
            for day in days
            for row in getattr(day, what).to_arrow(prices="integer").to_pylist()
        ]
        assert len(each) == 300
        assert ticks.to_arrow(prices="integer").to_pylist() == each
        chunks = list(ticks.arrow_chunks(rows=100, prices="integer"))
        assert [row for chunk in chunks for row in chunk.to_pylist()] == each
        assert max(map(len, chunks)) == 100
        told = [("recorded", row["date"]) for row in each]
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
    with pytest.raises(ConfigError, match="prices were 'integer', but 'price' has several units: expected 'float' or"):
        both.to_arrow(prices="integer")
    assert several.quotes.to_polars().columns[-4:] == ["bid_price", "bid_size", "ask_price", "ask_size"]
    with pytest.raises(ConfigError, match="'stocks' declares no quotes"):
        _ = Recordings.open(tmp_path / "stocks").quotes
    with pytest.raises(ConfigError, match="field 'trade_id' was uint64 and string, with no common type"):
        Recordings.open(tmp_path / "stocks", tmp_path / "named").trades.to_arrow()
    with pytest.raises(ConfigError, match="messages of one feed, not of"):
        several.to_arrow()


OLD = [("type", "S1"), ("size", "<u4"), ("price", price("<i4", 2)), ("venue", "S2"), ("time", utc_time("<i8", "s"))]
NEW = [("type", "S1"), ("flags", "u1"), ("price", price("<i8", 4)), ("size", "<u8"), ("time", utc_time("<i8", "ns"))]


def write_ticks(path: Path, number: int, fields: list[Any], columns: dict[str, Any], **more: Any) -> Recording:
    records = {"t": numpy.dtype(fields), **more}
    feed = Feed.local("own", schema=Schema("own", 1_001, records, names={"tick": "t"}))
    time = NOON_NS + 24 * HOUR_NS * number
    table = {"topic": ["A.t", "B.t"], "ts_event": [time, time + 1], **columns}
    return Recording.create(path, feed, table, message_type="tick")


@pytest.fixture
def days(tmp_path: Path) -> Recordings:
    old = {"size": [1, 2**32 - 1], "price": [1.25, 1.5], "venue": ["X", "YZ"], "time": [1_700_000_000, 0]}
    new = {"flags": [3, 4], "price": [1.2501, 1.5], "size": [5, 2**40], "time": [1_700_000_000 * 10**9 + 1, 0]}
    more = {"q": numpy.dtype([("type", "S1"), ("bid", "<i4")])}
    return Recordings([write_ticks(tmp_path, 0, OLD, old), write_ticks(tmp_path, 1, NEW, new, **more)])


def test_fields_are_widened_and_missing_ones_are_null(days: Recordings) -> None:
    frame = days.to_polars(message_type="tick")
    assert frame["size"].to_list() == [1, 2**32 - 1, 5, 2**40]
    assert frame["price"].to_list() == [1.25, 1.5, 1.2501, 1.5]
    assert frame["venue"].to_list() == ["X", "YZ", None, None]
    assert frame["flags"].to_list() == [None, None, 3, 4]
    assert frame["time"].dt.timestamp("ns").to_list() == [1_700_000_000 * 10**9, 0, 1_700_000_000 * 10**9 + 1, 0]
    assert frame["symbol"].to_list() == ["A", "B", "A", "B"]
    lazy = days.scan_polars(message_type="tick")
    assert_frame_equal(lazy.collect(), frame, categorical_as_str=True)
    chunks = list(days.arrow_chunks(message_type="tick", rows=1, prices="decimal"))
    assert [str(chunk.column("price")[0].as_py()) for chunk in chunks] == ["1.2500", "1.5000", "1.2501", "1.5000"]
    assert len(days.to_pandas(message_type=["tick", "q"])) == 4
    assert len(days.to_arrow(message_type="q")) == 0


def test_changes_are_reported(days: Recordings) -> None:
    changes = {each.field: (each.before, each.after) for each in days.schema_changes()}
    assert changes == {
        "type": ("", "|S1"), "bid": ("", "<i4"), "size": ("<u4", "<u8"), "price": ("<i4 decimals=2", "<i8 decimals=4"),
        "venue": ("|S2", ""), "time": ("<i8 utc=s", "<i8 utc=ns"), "flags": ("", "|u1"),
    }  # fmt: skip
    (venue,) = [each for each in days.schema_changes() if each.field == "venue"]
    assert str(venue) == f"{days[-1].path}: type 'tick', field 'venue': |S2 -> gone"
    assert days[:1].schema_changes() == []


def test_a_conflict_names_day_field_and_types(days: Recordings, tmp_path: Path) -> None:
    first, last = (str(day.path) for day in days)
    cases: list[tuple[Any, str, str]] = [
        ({"prices": "integer"}, "int32 of 2 decimals", "int64 of 4 decimals"),
        ({"times": "integer"}, "timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"),
    ]
    for options, before, after in cases:
        with pytest.raises(ConfigError) as raised:
            days.to_arrow(message_type="tick", **options)
        assert f"was {after} on {last} and {before} on {first}, which have no common type" in str(raised.value)
    other = write_ticks(tmp_path / "other", 2, [("type", "S1"), ("venue", "<f8")], {"venue": [1.0, 2.0]})
    with pytest.raises(ConfigError, match=r"'venue' was double on .*2026-01-07 and string on .*2026-01-05, which"):
        Recordings([*days, other]).to_polars(message_type="tick")
    with pytest.raises(ConfigError, match="message type was 'x', expected one of: tick"):
        days.to_polars(message_type="x")
