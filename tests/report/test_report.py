"""The page of a report as text, and as displayed by a real headless browser."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import msgspec
import pytest

from blackbox.analysis.report.axis import lag_ticks, rate_ticks, span_ticks, time_ticks
from blackbox.analysis.report.cards import interval
from blackbox.analysis.report.day_report import DayReport, Lag
from blackbox.analysis.report.page import page
from tests.chromium import Page, browser
from tests.report.reports import OPEN, SECOND, empty_report, full_report, raw_report

REPORTS: Final[dict[str, Callable[[], DayReport]]] = {"full": full_report, "raw": raw_report, "empty": empty_report}

# Returns everything that looks broken to a reader, as sentences; there must be none.
ASK: Final = """() => {
  const wrong = [], wide = document.documentElement.scrollWidth;
  const name = element => `${element.tagName}.${element.getAttribute("class")} ${element.textContent.slice(0, 30)}`;
  const box = element => element.getBoundingClientRect();
  if (wide > innerWidth) wrong.push(`the page is ${wide} wide`);
  for (const card of document.querySelectorAll(".card, .tile, header, footer")) {
    const outer = box(card);
    if (outer.height < 20 || !card.textContent.trim()) wrong.push(`${name(card)} is empty`);
    for (const inner of card.querySelectorAll("h2, span, b, p, svg, li, .chart")) {
      const place = box(inner);
      if (!place.width || inner.closest(".scroll")) continue;
      if (place.left < outer.left - 0.5 || place.right > outer.right + 0.5 || place.bottom > outer.bottom + 0.5)
        wrong.push(`${name(inner)} leaves ${name(card)}`);
    }
    for (const text of card.querySelectorAll("b, h2"))
      if (text.scrollWidth > text.clientWidth + 1 && getComputedStyle(text).display !== "inline")
        wrong.push(`${name(text)} is cut off`);
  }
  for (const chart of document.querySelectorAll(".chart svg")) {
    if (box(chart).width < 150 || box(chart).height < 40) wrong.push(`${name(chart)} is too small`);
    if (!chart.querySelector("path, rect")) wrong.push(`${name(chart)} shows nothing`);
    const shape = chart.getBBox();
    if (shape.width < 500 || shape.x < -1 || shape.x + shape.width > 1001) wrong.push(`${name(chart)} draws outside`);
    if (shape.y < -1 || shape.y + shape.height > 101) wrong.push(`${chart.getAttribute("aria-label")} draws over`);
  }
  for (const axis of document.querySelectorAll(".x, .y")) {
    const shown = [...axis.children].map(box).filter(place => place.width);
    const across = axis.classList.contains("x");
    shown.sort((one, other) => across ? one.left - other.left : other.top - one.top);
    shown.slice(1).forEach((place, number) => {
      const before = shown[number];
      if (across ? place.left < before.right : place.bottom > before.top + 1)
        wrong.push(`labels of ${name(axis)} lie on each other`);
    });
  }
  const seen = selector => document.querySelectorAll(selector).length;
  return {wrong, charts: seen(".chart"), bars: seen("rect.rise, rect.fall"), tips: seen("svg title"),
          marks: seen(".mark"), tiles: seen(".tile"), background: getComputedStyle(document.body).backgroundColor};
}"""


class Tags(HTMLParser):
    """Checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that is closed at once."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", REPORTS)
def test_page_is_complete_and_self_contained(name: str) -> None:
    text = page(REPORTS[name]())
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.links == []
    assert "url(" not in text
    assert "<script" not in text
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_names_are_escaped() -> None:
    text = page(msgspec.structs.replace(full_report(), feed="<b>&", recording="<i>", prices="<u>"))
    assert "&lt;M&amp;&gt;" in text
    assert not re.search(r"<(b>&|i>|u>|M&)", text)


def test_all_figures_are_there() -> None:
    report = full_report()
    text = page(report)
    first, last = report.instruments[0].bars[0], report.instruments[0].bars[-1]
    assert f"{last.close:,.4f}" in text
    assert f"{abs(last.close / first.open - 1):.2%}" in text
    assert f"open {first.open:,.4f}  high {first.high:,.4f}" in text
    assert "09:30:00 – 09:35:00" in text
    assert f"{report.messages:,}" in text
    assert f"{sum(gap.count for gap in report.gaps):,} messages, in 17 gaps" in text
    assert "and 5 more" in text
    assert "12 arrived before they were sent: two clocks differ" in text
    assert "31 messages without a time" in text
    assert "3 others" in text
    assert "1 damaged part<" in text
    assert "market time<" in page(full_report())
    assert "market time, 20\N{NO-BREAK SPACE}Nov\N{NO-BREAK SPACE}2026<" in page(
        msgspec.structs.replace(full_report(), date="2026-11-27")
    )


def test_lags_of_all_sizes_have_a_scale() -> None:
    for ns in (-5, 0, 1, 999, 10**18):
        lag = Lag(
            name="sent to received", messages=1, negative=int(ns < 0), percentiles=((0.0, ns), (0.5, ns), (1.0, ns))
        )
        assert "How late" in page(msgspec.structs.replace(full_report(), lags=(lag,)))
    assert [text for _, text in lag_ticks(100, 1e9)] == [
        "100 ns",
        "1 µs",
        "10 µs",
        "100 µs",
        "1 ms",
        "10 ms",
        "100 ms",
        "1 s",
    ]


def test_round_prices_and_lengths_of_intervals() -> None:
    def ticks(low: float, high: float, decimals: int) -> list[str]:
        return [text for _, text in span_ticks(low, high, decimals)]

    assert ticks(9.991, 10.018, 2) == ["9.995", "10.000", "10.005", "10.010", "10.015"]
    assert ticks(-1.1, 1.1, 0) == ["-1.0", "-0.5", "0.0", "0.5", "1.0"]
    assert ticks(150, 950, 2) == ["200.00", "400.00", "600.00", "800.00"]
    assert ticks(0, 2e17, 0)[-1] == f"{2 * 10**17:,}"
    assert [interval(ns) for ns in (1, 20_000_000, SECOND, 90 * SECOND, 300 * SECOND, 3_600 * SECOND)] == [
        *("1 nanosecond", "20 milliseconds", "1 second", "90 seconds", "5 minutes", "1 hour"),
    ]


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


def test_ticks_after_a_change_of_the_clocks_are_local_times() -> None:
    first = int(datetime.datetime(2026, 11, 1, 4, tzinfo=datetime.UTC).timestamp()) * SECOND
    labels = [text for _, text in time_ticks(first, first + 6 * 3_600 * SECOND, "America/New_York")]
    assert labels == ["00:00", "01:00", "01:00", "02:00", "03:00", "04:00", "05:00"]


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (0, ["0", "0.001"]),
        (3, ["0", "1", "2", "3"]),
        (99_000, ["0", "20 k", "40 k", "60 k", "80 k", "100 k"]),
        (4e16, ["0", "1e+07 G", "2e+07 G", "3e+07 G", "4e+07 G"]),
    ],
)
def test_rates_are_round_and_reach_the_highest(highest: float, expected: list[str]) -> None:
    ticks = list(rate_ticks(highest))
    assert [text for _, text in ticks] == expected
    assert ticks[-1][0] >= highest


# In a browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.mark.long
@pytest.mark.parametrize(("name", "width", "dark"), [
    ("full", 1_280, False), ("full", 1_280, True), ("full", 390, False), ("raw", 1_024, True), ("raw", 390, False),
    ("empty", 390, False),
])  # fmt: skip
def test_page_is_displayed_correctly(tab: Page, tmp_path: Path, name: str, width: int, dark: bool) -> None:
    (tmp_path / "page.html").write_text(page(REPORTS[name]()), encoding="utf-8")
    url = (tmp_path / "page.html").as_uri()
    tab.open(url, width=width, height=900, dark=dark)
    tab.wait(f"location.href === '{url}' && document.readyState === 'complete'")
    told = tab.ask(f"({ASK})()")
    assert told["wrong"] == []
    assert tab.errors == []
    assert tab.ask("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    expected = {"full": (9, 152, 17, 7), "raw": (2, 0, 0, 5), "empty": (0, 0, 0, 3)}[name]
    assert (told["charts"], told["bars"], told["marks"], told["tiles"]) == expected
    assert told["background"] == ("rgb(13, 17, 23)" if dark else "rgb(244, 246, 249)")
    tab.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5_000
