"""`Recording.book_at`, and replays that start with books, compared with a plain loop over the messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow
import pytest
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Recording, Replay, Source, Subscriber
from blackbox.archive.importing.import_days import import_days
from blackbox.book.book import Level
from blackbox.book.books import Books
from blackbox.book.orders import BUY, SELL
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from tests.book.sessions import order
from tests.feeds.build import messages_of
from tests.feeds.test_dbn_book import SlowBook as SlowMbo
from tests.feeds.test_itch50_book import Slow, all_levels, apply_slowly
from tests.recorded import recorded

DEEP = 100_000
Depths = dict[bytes, tuple[list[Level], list[Level]]]
CAPTURES: dict[str, Callable[[Path], Source]] = {
    "runk": lambda data: Itch50(data / "itch50" / "runk_locate-13-10k.bin", "2020-01-30"),
    "esh4": lambda data: Dbn(data / "dbn" / "esh4-glbx-mdp3-20231225.mbo.dbn.zst"),
    "made": lambda _data: Synthetic(8_000, symbols=6),
}


class SlowItch:
    def __init__(self) -> None:
        self.orders: Slow = {}

    def apply(self, payload: bytes) -> None:
        apply_slowly(self.orders, payload)

    def depths(self) -> tuple[list[Level], list[Level]]:
        return all_levels(self.orders, b"B"), all_levels(self.orders, b"S")


class SlowDbn(SlowMbo):
    def settle(self) -> None:
        """Do nothing: the test reads the levels only at the end."""

    def depths(self) -> tuple[list[Level], list[Level]]:
        return self.levels(BUY), self.levels(SELL)


def depths_before(messages: list[tuple[bytes, int, bytes]], kind: Any, time_ns: int) -> Depths:
    return depths_at(sorted(messages, key=lambda message: message[1]), kind, [time_ns])[0]


def depths_at(messages: list[tuple[bytes, int, bytes]], kind: Any, times: list[int]) -> list[Depths]:
    """Return the depths before each of these rising times, in one pass over the messages in order of time."""
    books: dict[bytes, Any] = {}
    found, place = list[Depths](), 0
    for time_ns in times:
        while place < len(messages) and messages[place][1] < time_ns:
            topic, _, payload = messages[place]
            books.setdefault(topic.rpartition(b".")[0], kind()).apply(payload)
            place += 1
        found.append({symbol: book.depths() for symbol, book in books.items() if any(book.depths())})
    return found


def depths_of(books: Books) -> Depths:
    found = {symbol: books.levels(symbol, DEEP) for symbol in books.symbols}
    return {symbol: (depth.bids, depth.asks) for symbol, depth in found.items() if any(depth)}


@pytest.fixture(scope="module", params=CAPTURES)
def day(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Recording, Any]:
    data = Path() if request.param == "made" else request.getfixturevalue("shared_data")

    def make() -> Source:
        return CAPTURES[request.param](data)

    recording = recorded(tmp_path_factory.mktemp("day"), make, slices=1 if request.param == "esh4" else 2)
    return request.param, recording, sorted(messages_of(make()), key=lambda message: message[1])


def chosen_times(messages: list[tuple[bytes, int, bytes]], name: str) -> list[int]:
    random = Random(name)
    times = sorted({time for _, time, _ in messages})
    picked = random.sample(times, 3)
    return sorted([*picked, picked[0] + 1, times[0], times[-1] + 1])


def test_books_at_random_times(day: tuple[str, Recording, Any]) -> None:
    """A callback registered before the book sees the book before the first message, and no earlier messages."""
    name, recording, messages = day
    kind = SlowDbn if name == "esh4" else SlowItch
    end_ns = messages[-1][1] + 1
    times, synced_at_end = chosen_times(messages, name), recording.book_at(end_ns).synced
    depths = depths_at(messages, kind, times)
    at_end = depths[-1]  # the last time is after all messages
    for time_ns, expected in zip(times, depths, strict=True):
        books = recording.book_at(time_ns)
        assert depths_of(books) == expected
        assert books.synced or name == "esh4"
        subscriber = Subscriber(recording.feed)
        kept: list[Books] = []
        first: list[Depths] = []

        @subscriber.on(b"")
        def _(message: Any, first: list[Depths] = first, kept: list[Books] = kept) -> None:
            if not first:
                first.append(depths_of(kept[0]))

        kept.append(subscriber.book(b""))
        statistics = subscriber.replay(recording, start=time_ns, books=True)
        assert statistics.messages == sum(time >= time_ns for _, time, _ in messages)
        assert first == [expected] * (statistics.messages > 0)
        assert (depths_of(kept[0]), kept[0].synced) == (at_end, synced_at_end)


@pytest.mark.long
def test_replay_seeks_with_books(tmp_path: Path) -> None:
    """After seeks forward and back, the books contain exactly the messages before the new position."""
    recording = recorded(tmp_path, lambda: Synthetic(8_000, symbols=6))
    messages = sorted(messages_of(Synthetic(8_000, symbols=6)), key=lambda message: message[1])
    times = sorted({time for _, time, _ in messages})
    goals = [times[len(times) * part // 10] for part in (8, 3, 5)]
    places = [times[len(times) // 4], *goals]
    subscriber = Subscriber(recording.feed)
    seen: list[tuple[int, Depths, bool]] = []
    books: list[Books] = []
    counts = [0]
    controls = Controls(1.0, clock=ManualClock(automatic=True))  # paced: a seek takes effect before the end
    replay = Replay(recording, start=places[0], stop=times[-1], books=True, controls=controls)

    @subscriber.on(b"")
    def _(message: Any) -> None:
        if len(seen) < len(places) and message.ts_event == places[len(seen)]:
            seen.append((message.ts_event, depths_of(books[0]), books[0].synced))
            counts[0] = 0
        counts[0] += 1
        if counts[0] == 500 and len(seen) < len(places):
            replay.controls.seek(places[len(seen)])

    books.append(subscriber.book(b""))
    subscriber.replay(replay)
    assert seen == [(place, depths_before(messages, SlowItch, place), True) for place in places]


def imported(path: Path, *dates: str) -> list[Recording]:
    feed = msgspec.structs.replace(Feed.local("made", slices=2, schema="itch50"), time_zone="America/New_York")
    days = import_days(feed, path, [Synthetic(9_000, symbols=5, date=date) for date in dates])
    return [Recording.open(day.path) for day in days]


def told(recording: Recording) -> list[tuple[bytes, int, bytes]]:
    messages = (message for batch in recording.batches() for message in batch)
    return [(message.topic, message.ts_event, bytes(message.payload)) for message in messages]


def test_time_of_day_and_prefix(tmp_path: Path) -> None:
    (recording,) = imported(tmp_path, "2026-01-05")
    expected = depths_before(told(recording), SlowItch, recording.time("12:00"))
    assert depths_of(recording.book_at("12:00")) == expected
    symbol = max(expected, key=lambda each: len(expected[each][0]))
    one = recording.book_at("12:00", symbol + b".")
    assert (depths_of(one), one.synced) == ({symbol: expected[symbol]}, True)
    assert not recording.book_at("12:00", symbol + b".A").synced
    assert recording.book_at("03:00").symbols == []


def test_each_day_begins_with_its_own_books(tmp_path: Path) -> None:
    """With a start as a time of day, books of the second day contain no orders of the first."""
    days = imported(tmp_path, "2026-01-05", "2026-01-06")
    subscriber = Subscriber(days[0].feed)
    books: list[Books] = []
    found: dict[int, tuple[Depths, bool]] = {}

    @subscriber.on(b"")
    def _(message: Any) -> None:
        place = int(message.ts_event >= days[1].time("00:00"))
        if place not in found:
            found[place] = depths_of(books[0]), books[0].synced

    books.append(subscriber.book(b""))
    subscriber.replay(days, start="12:00", stop="13:00", books=True)
    for place, recording in enumerate(days):
        assert found[place] == (depths_before(told(recording), SlowItch, recording.time("12:00")), True)


def test_the_book_includes_initial_orders_without_a_time(tmp_path: Path) -> None:
    noon = 1_767_614_400_000_000_000
    feed = Feed.local("untimed", slices=1, schema="itch50")
    payloads = [order(number, b"B", 5) for number in (1, 2, 3)]
    table = pyarrow.table({"topic": ["A.A"] * 3, "ts_event": [0, 0, noon + 2_000], "payload": payloads})
    day = Recording.create(tmp_path, feed, table)
    assert [len(day.book_at(noon + after).orders(b"A")) for after in (1_500, 2_001)] == [2, 3]
