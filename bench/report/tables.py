"""Every figure of a run: each contest's topology and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bench.measure.results import Result, Row, Run
from bench.report.compare import AHEAD, in_order, pairs, ratio_text
from bench.report.markdown import anchor, number, table, times

_INTRODUCTION: Final = """\
All contests of one run, every contender and its rivals in turn (A B C A B C …). [performance.md](../{page}) has a
summary and explains where a rival is ahead.

A round is void if its receiver's check fails or a rival raises. Callbacks that work on messages check count, order and
sum, usually for each topic; contenders that discard messages check the count and the bytes, or the last message.
Figures are medians with their range over at least 4 valid rounds. A ratio is the median of the ratios within a round,
because a shared machine drifts from round to round. Above 1, ours is better by that factor; below 1, the other is
ahead."""
_BEHIND: Final = """\
Limits do none of the work of ours, and nothing can exceed them; the list shows the distance. Percentiles are compared
from p99 upwards."""
_COSTS: Final = {
    "publisher_cpu_s": "publisher and any server, CPU s",
    "subscriber_cpu_s": "subscriber, CPU s",
    "wire_bytes": "bytes on the wire, with headers",
}


def tables(run: Run, page: str) -> Iterator[str]:
    """Yield the lines of the page of all tables, which is in the directory of the pictures of `page`."""
    yield from ("# Performance: all tables", "", _INTRODUCTION.format(page=page), "")
    yield from machine_of(run)
    if versions := run.machine.get("versions"):
        yield from (f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.", "")
    yield from ended_early(run)
    yield from _behind(run)
    yield from _not_run(run)
    section = ""
    for result in in_order(run):
        if result.file != section:
            section = result.file
            yield from (f"## {section.replace('_', ' ').capitalize()}", "")
            yield from _drawing(result.topology)
        yield from _contest(result)


def machine_of(run: Run) -> Iterator[str]:
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


def ended_early(run: Run) -> Iterator[str]:
    if run.not_run:
        yield f"**This run ended early.** {len(run.not_run)} of its benchmarks did not run: {', '.join(run.not_run)}."
        yield ""


def _behind(run: Run) -> Iterator[str]:
    yield from ("## Where another is ahead by more than 20 %", "", _BEHIND, "")
    for kind, title in (("rival", "Rivals"), ("limit", "Limits")):
        made = [
            [times(1 / pair.ahead), pair.name, pair.versus, pair.figures, link(result)]
            for result in run.results
            for pair in pairs(result)
            if pair.kind == kind and pair.ahead and pair.ahead < 1 / AHEAD
        ]
        yield from (f"{title}:" if made else f"{title}: none.", "")
        if made:
            yield from table(["it is ahead", "what", "of ours", "absolute", "where"], made)


def _not_run(run: Run) -> Iterator[str]:
    skipped = [[note.name, note.why, link(result)] for result in run.results for note in result.skipped]
    skipped += [[note.name, note.why, ""] for note in run.left_out]
    void = [
        [
            each.name + (f" at {each.at:,.10g}" if each.at is not None else ""),
            str(each.round or "warm-up"),
            each.why,
            link(result),
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


def _contest(result: Result) -> Iterator[str]:
    better = "lower is better" if result.lower else "higher is better"
    yield from (f"### {result.title}", "", f"{result.unit[:1].upper()}{result.unit[1:]}, {better}.", "")
    if result.series:
        yield from _axis_table(result)
    if result.singles:
        yield from _rows_table(result)
    yield from _cost_table(result)
    if result.percentiles:
        names = sorted({name for each in result.percentiles for name in each.median}, key=lambda name: float(name[1:]))
        made = [[each.name, *(number(each.median.get(name)) for name in names)] for each in result.percentiles]
        yield from table([result.percentiles[0].unit, *names], made)
    if result.shown:
        yield from table(["", ""], [[note.name, note.value] for note in result.shown])


def _rows_table(result: Result) -> Iterator[str]:
    rounds = max(len(row.values) for row in result.rows)
    promises = any(row.promise for row in result.singles)
    compared = any(ratio_text(row) for row in result.singles)
    made = []
    for row in result.singles:
        few = f", {row.valid} of {rounds} rounds valid" if row.valid < rounds else ""
        spread = f"{number(row.low)} to {number(row.high)}" if row.median is not None else "no median"
        cells = [_named(row), *([ratio_text(row)] * compared), number(row.median), spread + few]
        made.append([*cells, row.promise] if promises else cells)
    head = ["", *["ours is"] * compared, f"median, {result.unit}", f"range of {rounds} rounds", *["promise"] * promises]
    yield from table(head, made)


def _axis_table(result: Result) -> Iterator[str]:
    places = sorted({row.at for row in result.rows if row.at is not None})
    made = []
    for name, rows in result.series.items():
        at = {row.at: row for row in rows}
        made.append([_named(rows[0]), *(_spread(at[place]) if place in at else "" for place in places)])
        ratios = [ratio_text(at[place]) if place in at else "" for place in places]
        if any(ratios):
            made.append([f"*ours compared with {name}*", *ratios])
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


def _named(row: Row) -> str:
    return {"ours": f"**{row.name}**", "rival": row.name, "limit": f"*{row.name}*"}[row.kind]


def link(result: Result, page: str = "") -> str:
    """Return a link to a contest in the page of all tables."""
    return f"[{result.title}]({page}{anchor(result.title)})"
