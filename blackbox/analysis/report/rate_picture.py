"""A chart of a recording's message rate over its day, with gaps marked: SVG, or PNG by matplotlib."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.analysis.report.axis import rate_ticks, time_ticks
from blackbox.analysis.report.charts import Axis, line, path, steps
from blackbox.analysis.report.picture import EDGE, HEAD, WIDTH, axes, caption, picture
from blackbox.analysis.report.style import LIGHT
from blackbox.archive.files.day import as_journal_error
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording
    from blackbox.block.gap import Gap

BINS: Final = 420
SUFFIXES: Final = (".svg", ".png")
_LEFT: Final = 78
_PLOT_WIDTH: Final = WIDTH - _LEFT - 2 * EDGE
_PLOT_HEIGHT: Final = 240
_SECOND: Final = 10**9


class Chart(NamedTuple):
    """Data of the chart."""

    title: str
    zone: str
    times: NDArray[numpy.int64]
    """int64[bins + 1], ns since the epoch."""
    rates: NDArray[numpy.float64]
    """float64[bins], messages a second."""
    gaps: dict[int, int]
    """Missing messages by the bin in which they were detected."""
    time_ticks: list[tuple[int, str]]
    rate_ticks: list[tuple[float, str]]

    @classmethod
    def of(cls, recording: Recording, gaps: Iterable[Gap]) -> Self:
        """Count the messages of a recording over time. Reads the heads of all records."""
        rate = recording.rate(BINS)
        times, counts = rate.times, rate.counts
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
        """Describe how many messages are missing."""
        total = sum(self.gaps.values())
        return f"missing: {total:,} message{'s' * (total != 1)}" if self.gaps else "nothing is missing"


def draw(chart: Chart, file: Path) -> None:
    """Write the picture as SVG or PNG, by the suffix of `file`.

    Raises ConfigError as `check` does, JournalError if the file cannot be written.
    """
    check(file)
    try:
        if file.suffix.lower() == ".svg":
            file.write_text(svg(chart), encoding="utf-8")
        else:
            _draw_png(chart, file)
    except OSError as error:
        raise as_journal_error(error, f"picture {file} cannot be written") from error


def svg(chart: Chart) -> str:
    """Return the picture as SVG."""
    since = int(chart.times[0])  # floats have enough digits for a day in ns, not for ns since 1970
    x = Axis(0, int(chart.times[-1]) - since, _PLOT_WIDTH, begin=_LEFT)
    y = Axis(0, chart.rate_ticks[-1][0], _PLOT_HEIGHT, upward=True, begin=HEAD + EDGE)
    edges = (chart.times - since).tolist()
    tops = [y(rate) for rate in chart.rates.tolist()]
    outline = [(x(edge), top) for place, top in enumerate(tops) for edge in edges[place : place + 2]]
    gaps = f"▼ {chart.gaps_text}" if chart.gaps else chart.gaps_text
    parts = [
        caption(x.end, 50, gaps, f"{'bad' if chart.gaps else 'dim'} small right"),
        *axes(
            x, y, [(ns - since, text) for ns, text in chart.time_ticks], chart.rate_ticks, f"local time, {chart.zone}"
        ),
        path("area", steps(x, edges, tops, [y.end] * len(tops))),
        path("line thin", line(outline)),
    ]
    for place, missing in chart.gaps.items():
        at = (x(edges[place]) + x(edges[place + 1])) / 2
        parts.append(
            f"<g><title>{missing:,} missing</title>{path('bound', f'M{at:.1f} {y.begin}V{y.end}')}"
            f"{path('bad', f'M{at - 5:.1f} {y.begin - 8}h10l-5 8z')}</g>"
        )
    return picture(chart.title, "messages a second, by the time of sending", parts, y.end + 38 + EDGE)


def check(file: Path) -> None:
    """Raise ConfigError if `file` is a PNG and matplotlib is not installed."""
    if file.suffix.lower() == ".png" and find_spec("matplotlib") is None:
        raise ConfigError(
            f"a PNG needs matplotlib: pip install 'blackbox-md[picture]'; {file.stem}.svg needs no library"
        )


def _draw_png(chart: Chart, file: Path) -> None:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(WIDTH / 100, 3.6), dpi=200, layout="constrained")
    axes = figure.subplots()
    seconds = (chart.times - chart.times[0]) / _SECOND
    axes.stairs(chart.rates, seconds, fill=True, color=LIGHT["soft"])
    axes.stairs(chart.rates, seconds, color=LIGHT["accent"], linewidth=0.8)
    for place in chart.gaps:
        axes.axvline((seconds[place] + seconds[place + 1]) / 2, color=LIGHT["bad"], linestyle="--", linewidth=0.8)
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
    axes.grid(axis="y", color=LIGHT["grid"])
    axes.set_axisbelow(True)
    axes.text(
        1, 1.02, chart.gaps_text, transform=axes.transAxes, ha="right", color=LIGHT["bad" if chart.gaps else "dim"]
    )
    figure.savefig(file, format="png")
