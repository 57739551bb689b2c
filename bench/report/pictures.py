"""The charts of a contest: bars, curves, costs, percentiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.measure.results import Result, Row, Run
from bench.report import charts
from bench.report.charts import Bar, Curve, Line
from bench.report.compare import bound_of, ratio_text
from bench.report.markdown import number

_LEAST_PERCENTILES: Final = 3
_NS: Final = {"ns": 1, "µs": 1_000, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def pictures(run: Run, result: Result) -> Iterator[tuple[str, str]]:
    """Yield name and SVG of each picture of a contest."""
    better = "lower is better" if result.lower else "higher is better"
    told = f"{result.unit}, {better}; "
    if result.series:
        curves = _curves(result)
        if curves:
            yield (
                result.slug,
                charts.curves(result.title, told + "shaded: the range of the rounds", result.axis, curves),
            )
        costs = _cost_curves(result)
        if costs:
            title = f"{result.title}: CPU time a message"
            yield (
                f"{result.slug}-cost",
                charts.curves(title, "µs of CPU; solid: subscriber, dotted: publisher", result.axis, costs),
            )
    elif len(result.rows) > 1 or result.bounds:
        limits = [(bound.name, bound_of(run, bound)) for bound in result.bounds]
        lines = [Line(f"{name}: {number(value)}", value) for name, value in limits if value is not None]
        told += "n ×: how many times as good ours is; thin line: the range of the rounds"
        yield result.slug, charts.bars(result.title, told, _bars(result), lines)
    shown = [each for each in result.percentiles if len(each.points) >= _LEAST_PERCENTILES and each.unit in _NS]
    if shown:
        lags = [
            Curve(
                each.name,
                place % charts.DISTINCT,
                [_level(share, value * _NS[each.unit]) for share, value in each.points],
                place >= charts.DISTINCT,
            )
            for place, each in enumerate(shown)
        ]
        yield (
            f"{result.slug}-percentiles",
            charts.percentiles(result.title, "medians over the rounds of each percentile", lags),
        )


def _level(x: float, y: float) -> tuple[float, float, float, float]:
    """Return a point without a range."""
    return x, y, y, y


def _bars(result: Result) -> list[Bar]:
    rounds = max(len(row.values) for row in result.rows)
    found = []
    for row in result.singles:
        text = number(row.median) if row.median is not None else f"no median: {row.valid} of {rounds} rounds valid"
        found.append(
            Bar(
                row.name,
                charts.COLOUR[row.kind],
                row.median,
                row.low or 0,
                row.high or 0,
                ratio_text(row),
                text,
            )
        )
    return found


def _curves(result: Result) -> list[Curve]:
    places = sorted({row.at for row in result.rows if row.at is not None})
    series = dict(result.series)
    kinds = {name: rows[0].kind for name, rows in series.items()}
    for row in result.singles:  # valid at every point of the axis
        kinds[row.name] = row.kind
    found = []
    for (name, kind), colour in zip(kinds.items(), charts.colours(kinds.values()), strict=True):
        if name in series:
            points = [_point(row.at or 0, row) for row in series[name] if row.median is not None]
        else:
            row = next(row for row in result.singles if row.name == name)
            points = [_point(place, row) for place in places] if row.median is not None else []
        if points:
            found.append(Curve(name, colour, points, kind == "limit"))
    return found


def _point(at: float, row: Row) -> tuple[float, float, float, float]:
    return at, row.low or 0, row.median or 0, row.high or 0


def _cost_curves(result: Result) -> list[Curve]:
    found = []
    kinds = [rows[0].kind for rows in result.series.values()]
    for (name, rows), colour in zip(result.series.items(), charts.colours(kinds), strict=True):
        for cost, dashed in (("subscriber_cpu_s", False), ("publisher_cpu_s", True)):
            points = [_level(row.at or 0, row.spent[cost]) for row in rows if cost in row.spent]
            if len(points) > 1:
                who = cost.removesuffix("_cpu_s")
                found.append(Curve(f"{name}, {who}", colour, points, dashed))
    return found
