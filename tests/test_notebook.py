"""Objects in a notebook: short tables that hostile names cannot break, made without reading a whole day."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blackbox_feeds.synthetic import Synthetic

from blackbox import Batch, Feed, Recording, Recordings, Subscriber
from blackbox.archive.importing.import_days import import_days
from blackbox.book.books import Books
from blackbox.notebook import MOST_ROWS, Rows, text, view
from tests.archive.written_journals import Journal, block
from tests.book.sessions import order

HOSTILE = b"<script>alert('&amp;')</script>\xff\n\xe2\x80\xae"
NOON = 1_767_614_400 * 10**9
"""2026-01-05 12:00 UTC."""


class Page(HTMLParser):
    """The elements of some HTML, the text of its cells, and all its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self.text = ""
        self._in_cell = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in ("td", "th"):
            self.cells.append("")
        self._in_cell = tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.cells[-1] += data

    def fact(self, name: str) -> str:
        return self.cells[self.cells.index(name) + 1]


def page_of(shown: Any) -> Page:
    html = shown._repr_html_()
    page = Page(html)
    assert set(page.tags) <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "small"}
    assert page.attributes <= {"class", "style"}
    assert len(html) < 20_000
    assert page.text.isprintable()
    return page


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Return a made-up session in two slices."""
    place, feed = tmp_path_factory.mktemp("day"), Feed.local("session", slices=2, schema="itch50")
    (made,) = import_days(feed, place, [Synthetic(20_000, symbols=50)], date="2026-01-05")
    return Recording.open(made.path)


def test_a_recording_shows_the_totals_of_its_summary(day: Recording) -> None:
    page, summary = page_of(day), day.summary()
    assert page.fact("messages") == f"{summary.messages:,}"
    assert page.fact("feed") == "session"
    assert page.fact("date") == "2026-01-05"
    assert page.fact("on disk") in page.text
    at = page.cells.index("slice")
    assert page.cells[at + 4 : at + 12 : 4] == ["0", "1"]
    assert page.cells[at + 5 : at + 13 : 4] == [f"{each.messages:,}" for each in summary.slices]
    assert f"{summary.messages:,} messages" in repr(day)
    days = page_of(Recordings([day]))
    assert days.fact("messages") == f"{summary.messages:,}"


def test_a_recording_shows_its_first_messages_with_prices_and_times(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("own", slices=1, schema="itch50"), time_zone="America/New_York")
    payloads = [order(number, b"B", 1_899_800 + number) for number in range(7)]
    columns = {"topic": ["AAPL.A"] * 7, "ts_event": [NOON + number for number in range(7)], "payload": payloads}
    page = page_of(Recording.create(tmp_path, feed, columns))
    assert "time, America/New_York" in page.cells
    for number in range(5):
        at = page.cells.index(f"2026-01-05 07:00:00.{number:09d}")
        assert page.cells[at + 1] == "AAPL.A"
        assert f"189.980{number}" in page.cells[at:]
    assert f"2026-01-05 07:00:00.{5:09d}" not in page.cells
    assert "5 of 7 messages" in page.text


def test_a_recording_that_begins_with_many_marks_shows_its_first_messages(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(1_000):
        journal.hear({b"": 0}, 1, number * 20 * 10**9)
    journal.put(block(0, 3, NOON))
    journal.writer.close()
    opened = Recording.open(tmp_path)
    (segment,) = opened.segments
    assert segment.entries["records"][0] == 0
    assert page_of(opened).cells[-9:] == ["-", "A", "0", "-", "A", "1", "-", "A", "2"]


def test_a_recording_is_shown_without_reading_on_after_its_first_index_entry(tmp_path: Path) -> None:
    feed = Feed.local("long", slices=1)
    columns = {"topic": ["A.t"] * 40_000, "ts_event": [NOON] * 40_000, "payload": [bytes(200)] * 40_000}
    opened = Recording.create(tmp_path, feed, columns)
    before = opened._repr_html_()
    (segment,) = opened.segments
    assert len(segment.entries) > 10
    with segment.path.open("r+b") as file:  # the rest of the day is now damaged
        file.seek(int(segment.entries["stop"][0]))
        file.write(bytes(len(segment.memory) - file.tell()))
    assert opened._repr_html_() == before
    assert opened.damage == []
    assert opened.verify() != []


def test_hostile_names_are_inert_in_every_object(tmp_path: Path) -> None:
    topic = HOSTILE + b".A"
    feed = Feed.local("own", slices=1, schema="itch50")
    columns = {"topic": [topic], "ts_event": [NOON], "payload": [order(1, b"B", 98)]}
    recording = Recording.create(tmp_path, feed, columns)
    (batch,) = recording.batches()
    subscriber = Subscriber(feed)
    table, books = subscriber.table(b""), subscriber.book(b"")
    subscriber.replay(recording)
    shown = "<script>alert('&amp;')</script>\\xff\\n\\u202e"
    for each in (recording, batch, table):
        assert f"{shown}.A" in page_of(each).cells
    assert shown in page_of(books).cells
    assert page_of(subscriber.statistics()).cells[-1]
    plain = Recording.create(tmp_path, Feed.local("plain", slices=1), columns | {"payload": [HOSTILE]})
    assert shown in page_of(plain).cells


def test_books_show_the_best_prices_of_each_symbol(day: Recording) -> None:
    subscriber = Subscriber(day.feed)
    books = subscriber.book(b"")
    subscriber.replay(day)
    page = page_of(books)
    assert page.fact("symbols") == str(len(books.symbols))
    assert f"{MOST_ROWS} of {len(books.symbols)} symbols" in page.text
    for symbol in books.symbols[:MOST_ROWS]:
        best, at = books.best(symbol), page.cells.index(symbol.decode())
        bid, ask = best.bid, best.ask
        assert page.cells[at + 1 : at + 5] == [
            *(("-", "-") if bid is None else (f"{bid.price / 10**4:.4f}", f"{bid.shares:,}")),
            *(("-", "-") if ask is None else (f"{ask.price / 10**4:.4f}", f"{ask.shares:,}")),
        ]


def test_statistics_show_each_slice_and_counters_that_are_not_zero(day: Recording) -> None:
    subscriber = Subscriber(day.feed, on_error="log")

    @subscriber.on(b"", fields=("sequence",))
    def take(sequence: int) -> None:
        if sequence == 7:
            raise ValueError("odd")

    subscriber.replay(day)
    statistics = subscriber.statistics()
    page = page_of(statistics)
    messages = day.summary().messages
    at = page.cells.index("all")
    assert page.cells[at + 1] == f"{messages:,}"
    assert page.fact("delivery.callback_errors") == f"{statistics.delivery.callback_errors:,}"
    assert "delivery.dropped" not in page.cells
    assert repr(statistics).startswith(f"Statistics({messages:,} messages, lost 0, delivered ")


def test_empty_objects_are_shown(tmp_path: Path, day: Recording) -> None:
    feed = Feed.local("none", slices=1, schema="itch50")
    nothing: dict[str, list[Any]] = {"topic": [], "ts_event": [], "payload": []}
    empty = Recording.create(tmp_path, feed, nothing, date="2026-01-05")
    assert page_of(empty).fact("messages") == "0"
    assert page_of(empty).fact("market time") == "-"
    subscriber = Subscriber(feed)
    assert page_of(subscriber.table(b"")).fact("topics") == "0"
    assert page_of(Books("itch50")).fact("symbols") == "0"
    assert page_of(subscriber.statistics()).cells
    batch: Batch = next(day.batches())
    assert page_of(batch.of_type("P").of_type("A")).fact("messages") == "0"


def test_long_and_odd_text_is_cut_and_escaped() -> None:
    assert text(b"\xf0\x9f\x98\x80" * 101) == "\U0001f600" * 100 + "…"
    assert text(b"\xf0\x9f\x98\x80" * 100) == "\U0001f600" * 100
    assert text("\udcff\x1b[2J") == "\\udcff\\x1b[2J"
    assert [text(None), text(1_234), text("")] == ["-", "1,234", ""]
    html = view("<b>", {"<i>": "<u>"}, Rows(("<a>",), ([f"<{number}>"] for number in range(10**9)), 10**9, "rows"))
    page = Page(html)
    assert page.text.startswith("<b><i><u><a><0><1>")
    assert page.text.endswith("<9>10 of 1,000,000,000 rows")
