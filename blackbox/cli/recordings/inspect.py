"""`blackbox inspect`: the content of a recording."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from blackbox.cli.ui.days import (
    damage_objects,
    damage_text,
    days_of,
    gap_objects,
    local_time,
    open_day,
    without_warnings,
)
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.progress import reading
from blackbox.cli.ui.status import exit_statuses, warn
from blackbox.cli.ui.terminal import bad_if, columns_table, print_json, say, stdout, titled, values_table
from blackbox.notebook import escaped
from blackbox.numbers import byte_size, count, counted

if TYPE_CHECKING:
    from blackbox.archive.files.segment import Damage
    from blackbox.archive.read.summary import LateBegin, Summary
    from blackbox.archive.recording import Recording
    from blackbox.block.gap import Gap

_EPOCHS_SHOWN: Final = 4
_MARKS_SHOWN: Final = 20


def inspect(
    recordings: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDING...",
            help="Directory of a recorded day, with its `manifest.json`; or of a feed, or several days, to list days.",
        ),
    ],
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw the rate over the day, gaps marked: .svg, or .png, which needs the extra `picture`.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, help="Show the N busiest topics; 0: do not count them.")
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show the content of a recorded day: messages, times, gaps, damage and topics.

    Reads the whole day. Damage and gaps do not change the exit status; use `blackbox verify` for that.

    JSON is one object for a day, with all gaps and damaged parts, and an array of objects for several days. Times are
    ns since 1970, null if unknown.

    For example:

    blackbox inspect recordings/nasdaq                       its days

    blackbox inspect recordings/nasdaq/2026-11-20            one of them

    blackbox inspect recordings/nasdaq/2026-11-20 --json     for a script

    blackbox inspect recordings/nasdaq/2026-11-20 --top 50 --picture day.svg
    """
    with exit_statuses(), without_warnings():
        from blackbox.analysis.report.rate_picture import SUFFIXES, Chart, check, draw

        if picture is not None and picture.suffix.lower() not in SUFFIXES:
            raise typer.BadParameter(
                f"file was {str(picture)!r}, expected a name that ends in {' or '.join(SUFFIXES)}",
                param_hint="--picture",
            )
        if picture is not None:
            check(picture)
        recording = recordings[0]
        days = days_of(recording) if len(recordings) == 1 else recordings
        if days:
            if picture is not None:
                raise typer.BadParameter(
                    f"{days[0].parent} holds {counted(len(days), 'day')}, expected one of them", param_hint="--picture"
                )
            if as_json:
                print_json([_summary_object(open_day(path)) for path in days])
            else:
                _print_days(days[0].parent, days)
            return
        day = open_day(recording)
        with reading(f"reading {recording}", day.file_bytes) as progress:
            damage, gaps, begins = day.examine(progress)
        counts = Counter[bytes]()
        if top:
            with reading(f"counting the topics of {recording}", day.file_bytes):
                counts = Counter(day.counts())
        if as_json:
            print_json(_day_object(day, damage, gaps, begins, counts.most_common(top)))
        else:
            _print_day(day, damage, gaps, begins)
            if top:
                _print_topics(counts, top)
        if picture is not None:
            draw(Chart.of(day, gaps), picture)
            say(f"drew {picture}")


def _summary_object(day: Recording) -> dict[str, Any]:
    feed, total = day.feed, msgspec.structs.asdict(day.summary())
    total["slices"] = [
        {"slice" if name == "slice_id" else name: value for name, value in msgspec.structs.asdict(each).items()}
        for each in total["slices"]
    ]
    return {
        "recording": str(day.path),
        "feed": feed.name,
        "date": str(day.date),
        "schema": feed.schema_name,
        "time_zone": feed.time_zone,
        **total,
        "damage": damage_objects(day, day.damage),
    }


def _day_object(
    day: Recording, damage: list[Damage], gaps: list[Gap], begins: list[LateBegin], topics: list[tuple[bytes, int]]
) -> dict[str, Any]:
    return _summary_object(day) | {
        "damage": damage_objects(day, damage),
        "missing": sum(gap.count for gap in gaps),
        "gaps": gap_objects(gaps),
        "not_heard": sum(begin.sequence for begin in begins),
        "topics": [{"topic": topic.decode(errors="backslashreplace"), "messages": many} for topic, many in topics],
    }


def _print_days(feed: Path, days: list[Path]) -> None:
    table = columns_table(("date", "slices", "messages", "blocks", "on disk", "first", "last", "torn", "damage"))
    zones: dict[str, None] = {}
    for path in days:
        day = open_day(path)
        zones[day.feed.time_zone] = None
        total = day.summary()
        table.add_row(
            str(day.date),
            count(len(total.slices)),
            count(total.messages),
            count(total.blocks),
            byte_size(total.file_bytes),
            local_time(day, total.first_ts_event)[:8],
            local_time(day, total.last_ts_event)[:8],
            bad_if(total.torn_bytes > 0, count(total.torn_bytes)),
            bad_if(len(day.damage) > 0, count(len(day.damage))),
        )
    table.caption = f"market times, {', '.join(zones)}; inspect one day to find its gaps and damaged bodies"
    stdout.print(titled(f"{feed}: {counted(len(days), 'day')}", table))


def _print_day(day: Recording, damage: list[Damage], gaps: list[Gap], begins: list[LateBegin]) -> None:
    total = day.summary()
    missing = sum(gap.count for gap in gaps)
    feed = day.feed
    epochs = ", ".join(map(str, total.epochs[:_EPOCHS_SHOWN]))
    more = f" and {len(total.epochs) - _EPOCHS_SHOWN} more" if len(total.epochs) > _EPOCHS_SHOWN else ""
    stdout.print(
        titled(
            str(day.path),
            values_table(
                [
                    ("feed", feed.name),
                    ("date", str(day.date), f"session date, {feed.time_zone}"),
                    ("schema", feed.schema_name),
                    ("messages", count(total.messages)),
                    ("blocks", count(total.blocks), _mean(total)),
                    ("bytes", byte_size(total.body_bytes), "of bodies, unpacked"),
                    ("on disk", byte_size(total.file_bytes), "of segments, without indexes"),
                    (
                        "market time",
                        local_time(day, total.first_ts_event, date=True),
                        f"of the first message, {feed.time_zone}",
                    ),
                    ("", local_time(day, total.last_ts_event, date=True), f"of the last message, {feed.time_zone}"),
                    ("sent", local_time(day, total.first_ts_out, date=True), f"first block, {feed.time_zone}"),
                    ("", local_time(day, total.last_ts_out, date=True), f"last block, {feed.time_zone}"),
                    ("epochs", count(len(total.epochs)), f"runs of the publisher: {epochs}{more}"),
                    ("missing", bad_if(missing > 0, count(missing)), f"messages, in {counted(len(gaps), 'gap')}"),
                    (
                        "not heard",
                        count(sum(begin.sequence for begin in begins)),
                        f"published before the first message that is here, of {counted(len(begins), 'epoch')}",
                    ),
                    (
                        "torn",
                        bad_if(total.torn_bytes > 0, count(total.torn_bytes)),
                        "bytes after the last complete block",
                    ),
                    ("damage", bad_if(len(damage) > 0, count(len(damage))), damage_text(damage)),
                ]
            ),
        )
    )
    stdout.print(titled(f"what the slices hold, market times, {day.feed.time_zone}", _slices_table(day, total)))
    stdout.print(titled("how whole they are", _health_table(total, damage, gaps)))
    _print_marks(day)
    if damage or gaps:
        warn("see `blackbox verify` for each gap and each damaged part")


def _print_marks(day: Recording) -> None:
    """Print when recorders and the publisher's runs began and ended, slice by slice.

    With their dates: an import that ends today begins with the session.
    """
    from blackbox.archive.files.format import MarkKind
    from blackbox.archive.files.marks import AFTER_KILL

    silent = (MarkKind.SEGMENT_BEGIN, MarkKind.SEGMENT_END, MarkKind.HEARD)
    told = [mark for mark in day.marks() if mark.kind not in silent]
    told.sort(key=lambda mark: mark.ts)
    table = columns_table(("time", "slice", "what", "epoch", "records before"), left=3)
    for mark in told[:_MARKS_SHOWN]:
        what = mark.kind.name.lower().replace("_", " ")
        table.add_row(
            local_time(day, mark.ts, date=True),
            str(mark.slice_id),
            f"{what}, after a kill" if mark.flags & AFTER_KILL and mark.kind is MarkKind.RECORDER_BEGIN else what,
            str(mark.epoch) if mark.epoch else "",
            count(mark.totals.records),
        )
    if told:
        rest = f", the first {_MARKS_SHOWN} of {count(len(told))}" if len(told) > _MARKS_SHOWN else ""
        stdout.print(titled(f"what its recorders noted{rest}, {day.feed.time_zone}", table))


def _mean(total: Summary) -> str:
    return f"of {total.messages / total.blocks:,.1f} messages on average" if total.blocks else ""


def _slices_table(day: Recording, total: Summary) -> Table:
    table = columns_table(("slice", "messages", "blocks", "bytes", "on disk", "first", "last"), left=0)
    for feed_slice in total.slices:
        table.add_row(
            str(feed_slice.slice_id),
            count(feed_slice.messages),
            count(feed_slice.blocks),
            byte_size(feed_slice.body_bytes),
            byte_size(feed_slice.file_bytes),
            local_time(day, feed_slice.first_ts_event)[:12],
            local_time(day, feed_slice.last_ts_event)[:12],
        )
    return table


def _health_table(total: Summary, damage: list[Damage], gaps: list[Gap]) -> Table:
    table = columns_table(("slice", "segments", "epochs", "gaps", "missing", "torn bytes", "damaged"), left=0)
    gap_counts, missing, broken = Counter[int](), Counter[int](), Counter[str]()
    for gap in gaps:
        gap_counts[gap.slice_id] += 1
        missing[gap.slice_id] += gap.count
    for each in damage:
        broken[each.path.parent.name] += 1
    for feed_slice in total.slices:
        bad = broken[f"slice-{feed_slice.slice_id:05d}"]
        table.add_row(
            str(feed_slice.slice_id),
            count(feed_slice.segments),
            count(len(feed_slice.epochs)),
            bad_if(gap_counts[feed_slice.slice_id] > 0, count(gap_counts[feed_slice.slice_id])),
            bad_if(missing[feed_slice.slice_id] > 0, count(missing[feed_slice.slice_id])),
            bad_if(feed_slice.torn_bytes > 0, count(feed_slice.torn_bytes)),
            bad_if(bad > 0, count(bad)),
        )
    return table


def _print_topics(counts: Counter[bytes], many: int) -> None:
    total = sum(counts.values())
    table = columns_table(("topic", "messages", "share"))
    for topic, messages in counts.most_common(many):
        table.add_row(escaped(topic.decode(errors="backslashreplace")), count(messages), f"{messages / total:.1%}")
    rest = f", the busiest {many}" if len(counts) > many else ""
    stdout.print(titled(f"{counted(len(counts), 'topic')}{rest}", table))
