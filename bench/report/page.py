"""The pages of a run: `python -m bench.report.page .benchmarks/latest.json docs/performance.md`.

    make bench ──> .benchmarks/latest.json ──> docs/performance.md and its *.svg  summary: ahead, behind and why, limits
                                               docs/performance/tables.md         everything

Every figure comes from the JSON; the text here explains how to read them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench.measure.results import Kind, Result, Run, read
from bench.report import charts
from bench.report.compare import Pair, in_order, pairs
from bench.report.markdown import anchor, number, table, times
from bench.report.tables import ended_early, machine_of, tables
from bench.report.words import ASKED, WHY

_INTRODUCTION: Final = """\
`make bench` compares blackbox with its rivals in contests, in alternating rounds; rounds that lost a message are void.
Contests of one kind have one line here: the one in which the **strongest** rival is farthest
ahead, or behind; not if their ranges overlap. [{tables}]({tables}) has all contests and rivals,
with ranges, percentiles and costs. A ratio is the median of the ratios within a round. Figures give the rival
first."""
_AHEAD: Final = "n ×: blackbox is n times as good as its strongest rival; bars by powers of two"
_BEHIND: Final = "n ×: the strongest rival is n times as good as blackbox; bars by powers of two"
_LIMITS: Final = "n ×: the nearest limit is n times as good as blackbox; bars by powers of two"
_BELOW: Final = """\
A limit copies the same bytes, receives the same blocks, or calls an empty function, without the work of blackbox.
Nothing can exceed it. The bars show the nearest limit of each contest; [{tables}]({tables}) has their figures."""
_CLOSE: Final = 0.95
"""A limit counts as reached above this share of it."""


class _Headline(NamedTuple):
    """A contest in one line: the strongest of its rivals, or the nearest of its limits."""

    result: Result
    pair: Pair
    ahead: float

    @property
    def asked(self) -> str:
        return ASKED.get(self.result.slug, self.result.title)

    @property
    def bar(self) -> charts.Bar:
        """A bar as long as the larger of the two ratios."""
        far = max(self.ahead, 1 / self.ahead)
        colour = charts.COLOUR["ours" if self.ahead >= 1 else self.pair.kind]
        return charts.Bar(f"{self.asked}: {self.pair.name}", colour, far, times(far))


def write(run: Run, page: Path) -> None:
    """Write both pages and the pictures, into a directory named like the page; remove older pictures of contests."""
    place = page.with_suffix("")
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("*.svg"):
        if old.name != "profile.svg":
            old.unlink()
    _write_lines(place / "tables.md", tables(run, page.name))
    _write_lines(page, summary(run, place, (place / "profile.md").exists()))


def _write_lines(path: Path, lines: Iterator[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def summary(run: Run, place: Path, has_profile: bool = False) -> Iterator[str]:
    """Yield the lines of the summary page; draw its pictures into the directory `place`."""
    all_tables = f"{place.name}/tables.md"
    yield from ("# Performance", "", _INTRODUCTION.format(tables=all_tables), "")
    yield from machine_of(run)
    yield from ended_early(run)
    if has_profile:
        yield from (f"[profile.md]({place.name}/profile.md) divides the time of a message by step.", "")
    rivals = _headlines(run, "rival")
    ahead = _widest([line for line in rivals if line.ahead >= 1])
    behind = _widest([line for line in rivals if line.ahead < 1])
    limits = sorted((line for line in _headlines(run, "limit") if line.ahead < _CLOSE), key=lambda line: line.ahead)
    for title, name, told, lines in (
        ("Where blackbox is ahead", "ahead", _AHEAD, ahead),
        ("Where a rival is ahead, and why", "behind", _BEHIND, behind),
        ("Distance from the limits", "limits", _LIMITS, limits),
    ):
        if not lines:
            continue
        svg = charts.bars(title, told, [line.bar for line in lines])
        (place / f"{name}.svg").write_text(svg, encoding="utf-8")
        yield from (f"## {title}", "")
        if name == "limits":
            yield from (_BELOW.format(tables=all_tables), "")
        yield from (f"![{title}]({place.name}/{name}.svg)", "")
        if name != "limits":
            yield from _table(lines, all_tables, name)
    yield from _large_day(run)
    yield from _notes(run, all_tables)


def _headlines(run: Run, kind: Kind) -> list[_Headline]:
    """Return each contest's strongest rival or nearest limit; contests of limits alone have none."""
    found = []
    for result in in_order(run):
        rows = {row.label for row in result.rows}
        best: dict[str, tuple[float, Pair]] = {}
        for pair in pairs(result):  # of several of ours, the best counts
            if pair.kind == kind and pair.name in rows and pair.ahead and pair.ahead > best.get(pair.name, (0,))[0]:
                best[pair.name] = pair.ahead, pair
        if best:
            ahead, pair = (min if kind == "rival" else max)(best.values(), key=lambda each: each[0])
            found.append(_Headline(result, pair, ahead))
    return found


def _widest(lines: list[_Headline]) -> list[_Headline]:
    """Return the line with the largest ratio of each benchmark file, the largest first; none with equal figures."""
    found: dict[str, _Headline] = {}
    for line in sorted(lines, key=lambda line: -max(line.ahead, 1 / line.ahead)):
        if not _overlap(line):
            found.setdefault(line.result.file, line)
    return list(found.values())


def _table(lines: list[_Headline], all_tables: str, name: str) -> Iterator[str]:
    whys = name == "behind"
    head = ["contest", "rival", "ratio", "figures"]
    rows = []
    reasons: dict[str, int] = {}
    for line in lines:
        ratio = times(1 / line.ahead) if whys else times(line.ahead)
        link = f"[{line.asked}]({all_tables}{anchor(line.result.title)})"
        rows.append([link, line.pair.name, ratio, line.pair.figures])
        if whys:
            reason = WHY.get(line.result.slug, "")
            rows[-1].append(f"{reasons.setdefault(reason, len(reasons) + 1)}" if reason else "")
    yield from table([*head, "why"] if whys else head, rows)
    if reasons:
        yield from (*(f"{place}. {reason}" for reason, place in reasons.items()), "")


def _overlap(line: _Headline) -> bool:
    """Return True if the range of each contains the median of the other."""
    rows = {row.label: row for row in line.result.rows}
    mine, other = rows.get(line.pair.versus), rows.get(line.pair.name)
    if mine is None or other is None or mine.median is None or other.median is None:
        return False
    return (mine.low or 0) <= other.median <= (mine.high or 0) and (other.low or 0) <= mine.median <= (other.high or 0)


def _large_day(run: Run) -> Iterator[str]:
    """Yield the table of the contest of a large day."""
    for result in run.results:
        if result.file == "days":
            shown = {note.name: note.value for note in result.shown}
            more = "M messages/s", "peak memory"
            rows = [
                [row.name, number(row.median), *(shown.get(f"{row.name}: {each}", "") for each in more)]
                for row in result.rows
            ]
            yield from (f"## {result.title}", "")
            yield from table(["", "rate at its end / beginning", *more], rows)


def _notes(run: Run, all_tables: str) -> Iterator[str]:
    """Yield a line with the number of failed, skipped and void rounds, with links."""
    counts = {
        "failed": (len(run.failed), "#what-failed"),
        "could not run": (len(run.left_out) + sum(len(each.skipped) for each in run.results), "#what-could-not-run"),
        "rounds were void": (sum(len(each.void) for each in run.results), "#rounds-that-were-void"),
    }
    told = [f"[{count} {what}]({all_tables}{where})" for what, (count, where) in counts.items() if count]
    if told:
        yield from (f"In this run {', '.join(told)}.", "")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    if not source.is_file():
        sys.exit(f"{source} was not found: run `make bench` first, or set FILE=run.json")
    target = Path(sys.argv[2])
    write(read(source), target)
    print(f"wrote {target} and {target.with_suffix('') / 'tables.md'}")
