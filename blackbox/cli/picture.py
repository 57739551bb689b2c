"""The rate of a recording over its day, as a picture: SVG by hand, PNG through matplotlib."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.journal.day import as_journal_error
from blackbox.report.ticks import rate_ticks, time_ticks

if TYPE_CHECKING:
    from blackbox.journal.census import Gap
    from blackbox.recording import Recording

BINS: Final = 420
SUFFIXES: Final = (".svg", ".png")
_WIDTH, _HEIGHT = 960, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 64, 56
_INK, _DIM, _GRID, _FILL, _LINE, _RED = "#1f2933", "#616e7c", "#e4e7eb", "#bcdcf5", "#2b6cb0", "#c81e1e"
_FONT: Final = 'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12"'
_SECOND: Final = 10**9


class Chart(NamedTuple):
    """What is drawn, by whatever draws it."""

    title: str
    zone: str
    times: NDArray[numpy.int64]
    """int64[bins + 1], ns since the epoch."""
    rates: NDArray[numpy.float64]
    """float64[bins], messages a second."""
    gaps: dict[int, int]
    """Messages that are missing, by the bin in which that shows."""
    time_ticks: list[tuple[int, str]]
    rate_ticks: list[tuple[float, str]]

    @classmethod
    def of(cls, recording: Recording, gaps: Iterable[Gap]) -> Self:
        """The chart of a recording; reads the heads of all records."""
        times, counts = _rate(recording)
        width = int(times[1] - times[0])
        rates = counts / (width / _SECOND)
        missing: dict[int, int] = {}
        for gap in gaps:
            place = min(max(0, (gap.ts_out - int(times[0])) // width), len(counts) - 1)
            missing[place] = missing.get(place, 0) + gap.count
        feed = recording.feed
        return cls(
            f"{feed.name}, {recording.date}: {int(counts.sum()):,} messages",
            feed.time_zone,
            times,
            rates,
            dict(sorted(missing.items())),
            list(time_ticks(int(times[0]), int(times[-1]), feed.time_zone)),
            list(rate_ticks(float(rates.max()))),
        )

    @property
    def gaps_text(self) -> str:
        """What the marks mean."""
        total = sum(self.gaps.values())
        return f"missing: {total:,} message{'s' * (total != 1)}" if self.gaps else "nothing is missing"


def _rate(recording: Recording) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    rate = recording.rate(BINS)
    return rate.times, rate.counts


def draw(chart: Chart, path: Path) -> None:
    """Write the picture, as the file's name says.

    Raises ConfigError as `check`, JournalError when the file cannot be written.
    """
    check(path)
    try:
        if path.suffix.lower() == ".svg":
            path.write_text(svg(chart), encoding="utf-8")
        else:
            _draw_png(chart, path)
    except OSError as error:
        raise as_journal_error(error, f"picture {path} cannot be written") from error


def svg(chart: Chart) -> str:
    """The picture as text."""
    first, last = int(chart.times[0]), int(chart.times[-1])
    top_rate = chart.rate_ticks[-1][0]
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def x(ns: int) -> float:
        return _LEFT + (right - _LEFT) * (ns - first) / (last - first)

    def y(rate: float) -> float:
        return bottom - (bottom - _TOP) * rate / top_rate

    marks = f"▼ {chart.gaps_text}" if chart.gaps else chart.gaps_text
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" {_FONT}>',
        f"<title>{escape(chart.title)}; {chart.gaps_text}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600" fill="{_INK}">{escape(chart.title)}</text>',
        f'<text x="{_LEFT}" y="43" fill="{_DIM}">messages a second, by the time of sending</text>',
        f'<text x="{right}" y="43" text-anchor="end" fill="{_RED if chart.gaps else _DIM}">{marks}</text>',
    ]
    for rate, text in chart.rate_ticks:
        parts += [
            f'<path d="M{_LEFT} {y(rate):.1f}H{right}" stroke="{_GRID}"/>',
            f'<text x="{_LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end" fill="{_DIM}">{text}</text>',
        ]
    for ns, text in chart.time_ticks:
        parts += [
            f'<path d="M{x(ns):.1f} {bottom}v5" stroke="{_DIM}"/>',
            f'<text x="{x(ns):.1f}" y="{bottom + 19}" text-anchor="middle" fill="{_DIM}">{text}</text>',
        ]
    steps = "".join(
        f"V{y(rate):.1f}H{x(end):.1f}" for rate, end in zip(chart.rates.tolist(), chart.times[1:].tolist(), strict=True)
    )
    parts += [
        f'<path d="M{_LEFT} {bottom}{steps}V{bottom}Z" fill="{_FILL}"/>',
        f'<path d="M{_LEFT} {bottom}{steps}V{bottom}" fill="none" stroke="{_LINE}"/>',
        f'<path d="M{_LEFT} {bottom}H{right}" stroke="{_DIM}"/>',
    ]
    for place, missing in chart.gaps.items():
        at = (x(int(chart.times[place])) + x(int(chart.times[place + 1]))) / 2
        parts.append(
            f'<g stroke="{_RED}" fill="{_RED}"><title>{missing:,} missing</title>'
            f'<path d="M{at:.1f} {_TOP}V{bottom}" stroke-dasharray="3 3"/>'
            f'<path d="M{at - 5:.1f} {_TOP - 8}h10l-5 8z" stroke="none"/></g>'
        )
    parts.append(
        f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 14}" text-anchor="middle" fill="{_DIM}">'
        f"local time, {escape(chart.zone)}</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def check(path: Path) -> None:
    """Raise ConfigError when the picture needs matplotlib and that is not installed."""
    if path.suffix.lower() == ".png" and find_spec("matplotlib") is None:
        raise ConfigError(
            f"a PNG needs matplotlib: pip install 'blackbox-md[picture]'; {path.stem}.svg would need nothing"
        )


def _draw_png(chart: Chart, path: Path) -> None:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(_WIDTH / 100, _HEIGHT / 100), dpi=200, layout="constrained")
    axes = figure.subplots()
    seconds = (chart.times - chart.times[0]) / _SECOND
    axes.stairs(chart.rates, seconds, fill=True, color=_FILL)
    axes.stairs(chart.rates, seconds, color=_LINE, linewidth=0.8)
    for place in chart.gaps:
        axes.axvline((seconds[place] + seconds[place + 1]) / 2, color=_RED, linestyle="--", linewidth=0.8)
    axes.set_xticks(
        [(ns - int(chart.times[0])) / _SECOND for ns, _ in chart.time_ticks], [t for _, t in chart.time_ticks]
    )
    axes.set_yticks([rate for rate, _ in chart.rate_ticks], [text for _, text in chart.rate_ticks])
    axes.set(
        title=chart.title,
        xlabel=f"local time, {chart.zone}",
        ylabel="messages a second",
        xlim=(0, seconds[-1]),
        ylim=(0, chart.rate_ticks[-1][0]),
    )
    axes.grid(axis="y", color=_GRID)
    axes.set_axisbelow(True)
    axes.text(1, 1.02, chart.gaps_text, transform=axes.transAxes, ha="right", color=_RED if chart.gaps else _DIM)
    figure.savefig(path, format="png")
