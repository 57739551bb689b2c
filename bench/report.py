"""Draw the JSON of a run: `python -m bench.report .benchmarks/latest.json docs/performance.md`.

    make bench ──> .benchmarks/latest.json ──> docs/performance.md, docs/performance/*.svg

Every figure comes from the JSON; what is written here only says how to read them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import charts
from bench.charts import Bar, Curve, Line
from bench.results import Bound, Result, Row, Run, read

AHEAD: Final = 1.2
"""A rival or a limit that is so many times as good as ours is told of."""
_LEAST_PERCENTILES: Final = 3
_LISTED: Final = ("p99", "p99.9", "p99.99")
"""Percentiles that are told of: the median mostly is a contest's figure, and the worst of all is luck."""
_NS: Final = {"ns": 1, "µs": 1_000, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_FIRST: Final = ("limits", "delivery", "messages", "publish", "latency")
"""Files that the page begins with; the others follow by name."""
_INTRODUCTION: Final = """\
Made by `make bench` and `make report`: all that stands here was measured in one run, every contender beside its rivals,
in turn (A B C A B C …). A round is void when its receiver's check fails or when a rival raises. What is checked
differs: where callbacks work on messages, the count, the order and the sum, of each topic mostly; of what does no work,
the count and the bytes, or the last message, as the files in `bench/` say. Figures are medians with their range, of at
least 4 rounds that were not void; a ratio is the median of the ratios within a round, as a machine that is shared
drifts from round to round. **Read the ratios first**: above 1, ours is so many times as good; below 1, the other is
ahead."""
_BEHIND: Final = """\
Limits are limits: they do none of the work that ours does beside them, and nothing can get above them. They stand here
to tell how far below ours is. Of percentiles, p99 and beyond are compared; a physical limit, which is measured in a
contest of its own, by medians."""
_COSTS: Final = {
    "publisher_cpu_s": "publisher and any server, CPU s",
    "subscriber_cpu_s": "subscriber, CPU s",
    "wire_bytes": "bytes on the wire (loopback, TCP and IP heads included, or ZMTP alone where that is counted)",
}


def write(run: Run, page: Path) -> None:
    """Write the page, and its pictures into a directory of its name beside it; older pictures are removed."""
    pictures = page.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    for result in run.results:
        for name, svg in _pictures(run, result):
            (pictures / f"{name}.svg").write_text(svg, encoding="utf-8")
    page.write_text(
        "\n".join(_page(run, pictures.name, page.with_name("profile.md").exists())) + "\n", encoding="utf-8"
    )


def _page(run: Run, pictures: str, profiled: bool) -> Iterator[str]:
    yield "# Performance"
    yield ""
    yield _INTRODUCTION
    yield ""
    yield from _machine(run)
    if profiled:
        yield from ("Where each nanosecond of a message goes: [profile.md](profile.md).", "")
    yield from _ended_early(run)
    yield from _behind(run)
    yield from _not_run(run)
    order = {name: place for place, name in enumerate(_FIRST)}
    section = ""
    for result in sorted(run.results, key=lambda result: (order.get(result.file, len(order)), result.file)):
        if result.file != section:
            section = result.file
            yield from (f"## {section.replace('_', ' ').capitalize()}", "")
            yield from _drawing(result.topology)
        yield from _contest(run, result, pictures)


def _ended_early(run: Run) -> Iterator[str]:
    if run.not_run:
        yield f"**This run ended early.** {len(run.not_run)} of its benchmarks did not run: {', '.join(run.not_run)}."
        yield ""


def _machine(run: Run) -> Iterator[str]:
    told: dict[str, Any] = run.machine
    if told:
        kind = "a virtual machine, " * told["virtual"]
        threads = "hyperthreads" if told["hyperthreads"] else "no hyperthreads"
        yield (
            f"The machine: {kind}{told['cpu_model']}, {told['cores']} cores ({threads}), {told['cpus']} CPUs for"
            f" this run, {told['memory_bytes'] / 2**30:.0f} GiB of memory, {told['system']}, Python {told['python']}."
        )
    begin, end = run.load.get("start"), run.load.get("end")
    load = f" Load average {begin[0]:g} at the start, {end[0]:g} at the end." if begin and end else ""
    yield f"Run of {run.when[:16].replace('T', ' ')} UTC, commit `{str(run.commit.get('id', 'unknown'))[:10]}`.{load}"
    yield ""
    if told:
        versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
        yield from (f"Versions: {versions}.", "")


def _behind(run: Run) -> Iterator[str]:
    yield from ("## Where another is ahead by more than 20 %", "", _BEHIND, "")
    for kind, title in (("rival", "Rivals"), ("limit", "Limits")):
        made = [
            [_times(1 / pair.ahead), pair.name, pair.versus, pair.figures, _link(result)]
            for result in run.results
            for pair in _pairs(run, result)
            if pair.kind == kind and pair.ahead and pair.ahead < 1 / AHEAD
        ]
        yield from (f"{title}:" if made else f"{title}: none.", "")
        if made:
            yield from table(["it is ahead", "what", "of ours", "absolute", "where"], made)


class _Pair(NamedTuple):
    """A rival or a limit beside one of ours."""

    kind: str
    name: str
    versus: str
    ahead: float | None
    figures: str


def _pairs(run: Run, result: Result) -> Iterator[_Pair]:
    for row in result.rows:
        for other in row.against:
            figures = f"{number(row.median)} against {number(other.median)} {result.unit}"
            yield _Pair(row.kind, row.label, other.versus, other.ahead, figures)
    for bound in result.bounds:
        value = _bound(run, bound)
        for row in result.rows:
            if row.kind == "ours" and value and row.median:
                ratio = value / row.median if result.lower else row.median / value
                figures = f"{number(value)} against {number(row.median)} {result.unit}, of the medians"
                yield _Pair("limit", bound.name, row.label, ratio, figures)
    for each in result.percentiles:
        for beside in each.against:
            for name, ahead in beside.ahead.items():
                if name in _LISTED:
                    figures = f"{number(each.median[name])} against {number(beside.median[name])} {each.unit}"
                    yield _Pair(each.kind, f"{each.name}, {name}", beside.versus, ahead, figures)


def _not_run(run: Run) -> Iterator[str]:
    skipped = [[note.name, note.why, _link(result)] for result in run.results for note in result.skipped]
    skipped += [[note.name, note.why, ""] for note in run.left_out]
    void = [
        [
            each.name + (f" at {each.at:,.10g}" if each.at is not None else ""),
            str(each.round or "warm-up"),
            each.why,
            _link(result),
        ]
        for result in run.results
        for each in result.void
    ]
    if run.failed:
        yield from ("## What failed", "")
        yield from table(["what", "why"], [[note.name, note.why] for note in run.failed])
    if skipped:
        yield from ("## What could not run", "")
        yield from table(["what", "why", "where"], skipped)
    if void:
        yield from ("## Rounds that were void", "")
        yield from table(["what", "round", "why", "where"], void)


def _drawing(topology: str) -> Iterator[str]:
    if topology:
        yield from ("```text", topology.strip("\n"), "```", "")


def _contest(run: Run, result: Result, pictures: str) -> Iterator[str]:
    better = "lower is better" if result.lower else "higher is better"
    yield from (f"### {result.title}", "", f"{result.unit[:1].upper()}{result.unit[1:]}, {better}.", "")
    for name, _ in _pictures(run, result):
        yield from (f"![{name.replace('-', ' ')}]({pictures}/{name}.svg)", "")
    if result.series:
        yield from _axis_table(result)
    if result.singles:
        yield from _rows_table(run, result)
    yield from _cost_table(result)
    if result.percentiles:
        names = sorted({name for each in result.percentiles for name in each.median}, key=lambda name: float(name[1:]))
        made = [[each.name, *(number(each.median.get(name)) for name in names)] for each in result.percentiles]
        yield from table([result.percentiles[0].unit, *names], made)
    if result.shown:
        yield from table(["", ""], [[note.name, note.value] for note in result.shown])


def _rows_table(run: Run, result: Result) -> Iterator[str]:
    rounds = max(len(row.values) for row in result.rows)
    promises = any(row.promise for row in result.singles)
    compared = any(_ratio_text(row) for row in result.singles)
    made = []
    for row in result.singles:
        few = f", {row.valid} of {rounds} rounds valid" if row.valid < rounds else ""
        spread = f"{number(row.low)} to {number(row.high)}" if row.median is not None else "no median"
        cells = [_named(row), *([_ratio_text(row)] * compared), number(row.median), spread + few]
        made.append([*cells, row.promise] if promises else cells)
    for bound in result.bounds:
        value = _bound(run, bound)
        if value is not None:
            made.append(
                [f"*{bound.name}, in this unit*", *[""] * compared, number(value), "see limits", *[""] * promises]
            )
    head = ["", *["ours is"] * compared, f"median, {result.unit}", f"range of {rounds} rounds", *["promise"] * promises]
    yield from table(head, made)


def _axis_table(result: Result) -> Iterator[str]:
    places = sorted({row.at for row in result.rows if row.at is not None})
    made = []
    for name, rows in result.series.items():
        at = {row.at: row for row in rows}
        made.append([_named(rows[0]), *(_spread(at[place]) if place in at else "" for place in places)])
        ratios = [_ratio_text(at[place]) if place in at else "" for place in places]
        if any(ratios):
            made.append([f"*ours is, beside {name}*", *ratios])
    yield from table([f"{result.unit} at {result.axis}", *(f"{place:,.10g}" for place in places)], made)


def _spread(row: Row) -> str:
    few = f", {row.valid} of {len(row.values)} rounds valid" if row.valid < len(row.values) else ""
    if row.median is None:
        return f"no median{few}"
    return f"{number(row.median)} ({number(row.low)} to {number(row.high)}){few}"


def _cost_table(result: Result) -> Iterator[str]:
    rows = [row for row in result.rows if row.spent]
    if not rows:
        return
    names = [name for name in _COSTS if any(name in row.spent for row in rows)]
    made = [[row.label, *(number(row.spent.get(name)) for name in names)] for row in rows]
    yield from table(["a million messages cost", *(_COSTS[name] for name in names)], made)


def _pictures(run: Run, result: Result) -> Iterator[tuple[str, str]]:
    """Name and text of each picture of a contest."""
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
        limits = [(bound.name, _bound(run, bound)) for bound in result.bounds]
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
    """A point without a range."""
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
                _ratio_text(row),
                text,
            )
        )
    return found


def _curves(result: Result) -> list[Curve]:
    places = sorted({row.at for row in result.rows if row.at is not None})
    series = dict(result.series)
    kinds = {name: rows[0].kind for name, rows in series.items()}
    for row in result.singles:  # it holds for the whole axis
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


def _bound(run: Run, bound: Bound) -> float | None:
    """A physical limit in the unit of a contest: GB/s as M messages/s of so many bytes, or as it is."""
    value = run.limit(bound.name)
    return value if value is None or not bound.bytes_each else value * 1e3 / bound.bytes_each


def _ratio_text(row: Row) -> str:
    """How many times as good ours is; nothing for ours itself."""
    return "" if row.ahead is None else _times(row.ahead)


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×" if 0.1 <= ratio < 10 else f"{number(ratio)} ×"


def _named(row: Row) -> str:
    return {"ours": f"**{row.name}**", "rival": row.name, "limit": f"*{row.name}*"}[row.kind]


def _link(result: Result) -> str:
    anchor = "".join(letter for letter in result.title.lower() if letter.isalnum() or letter in " -_").replace(" ", "-")
    return f"[{result.title}](#{anchor})"


def number(value: float | None) -> str:
    """Three digits: `0.00123`, `1.23`, `123`, `12,346`; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    rows = list(rows)
    figures = [all(row[place][:1] in "-0123456789" for row in rows) for place in range(len(head))]
    yield "|" + "".join("---:|" if is_figure else "---|" for is_figure in figures)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


if __name__ == "__main__":
    run = Path(sys.argv[1])
    if not run.is_file():
        sys.exit(f"{run} was not found, expected a run of the benchmarks: `make bench` first, or FILE=run.json")
    page = Path(sys.argv[2])
    write(read(run), page)
    print(f"wrote {page}")
