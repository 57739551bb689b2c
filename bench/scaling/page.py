"""Write docs/scaling.md and its pictures: `make scaling`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.measure.machine import describe
from bench.report.charts import Curve, curves
from bench.report.markdown import number, table
from bench.scaling import scenario
from bench.scaling.costs import Costs, measure
from bench.scaling.scenario import Choice, Outcome, simulate
from bench.scaling.tree import Traffic

_PICTURES: Final = "scaling"
_GIGABIT: Final = 1e9 / 8
_TEMPLATE: Final = Path(__file__).with_name("page.md")
_SHOWN_KEY_BYTES: Final = scenario.KEY_BYTES[-1]


def cores(costs: Costs, level: Traffic) -> float:
    """Return the CPU seconds per second of one relay."""
    return level.blocks_in * costs.block_in + level.blocks_out * costs.block_out + level.bytes_out * costs.byte_out


def name_of(fan_outs: Sequence[int]) -> str:
    """Return a tree's name: the number of relays of each level."""
    width, widths = 1, []
    for fan_out in fan_outs:
        width *= fan_out
        widths.append(f"{width:,}")
    return " → ".join(["1", *widths])


def _level(place: int, levels: Sequence[object]) -> str:
    return "source" if place == 0 else "subscriber" if place == len(levels) - 1 else f"level {place}"


def _loads(costs: Costs, outcomes: Sequence[Outcome]) -> Iterator[str]:
    rows = []
    for outcome in outcomes:
        choice = _shown(outcome)
        for place, level in enumerate(choice.levels[:-1]):
            rows.append([
                name_of(outcome.fan_outs) if place == 0 else "",
                _level(place, choice.levels),
                f"{level.relays:,}",
                number(outcome.filters[place]),
                number(level.bytes_in / _GIGABIT) if place else "",
                number(level.bytes_out / _GIGABIT),
                number(cores(costs, level)),
            ])  # fmt: skip
    head = ["relays by level", "", "number", "prefixes subscribed", "Gb/s in", "Gb/s out", "cores of each"]
    yield from table(head, rows)


def _shown(outcome: Outcome) -> Choice:
    return next(choice for choice in outcome.choices if choice.key_bytes == _SHOWN_KEY_BYTES)


def _keys(costs: Costs, outcome: Outcome) -> Iterator[str]:
    rows = []
    for choice in outcome.choices:
        source, leaf, subscriber = choice.levels[0], choice.levels[-2], choice.levels[-1]
        rows.append([
            str(choice.key_bytes),
            number(source.bytes_in / _GIGABIT),
            number(source.blocks_in),
            number(leaf.bytes_out / _GIGABIT),
            number(cores(costs, leaf)),
            number(subscriber.bytes_in * 8 / 1e6),
            number(subscriber.blocks_in),
        ])  # fmt: skip
    head = [
        "key_bytes",
        "feed, Gb/s",
        "blocks/s",
        "last relay out, Gb/s",
        "its cores",
        "subscriber in, Mb/s",
        "blocks/s",
    ]
    yield from table(head, rows)


def _zapping(outcomes: Sequence[Outcome]) -> Iterator[str]:
    rows = [[name_of(each.fan_outs), *(number(zapping.mean[0]) for zapping in each.zapping)] for each in outcomes]
    holds = [f"changes/s at the source, `hold_s` {zapping.hold_s:g}" for zapping in outcomes[0].zapping]
    yield from table(["relays by level", *holds], rows)


def _deaths(outcome: Outcome) -> Iterator[str]:
    rows = [
        [
            str(death.level),
            f"{death.restored:,}",
            f"{death.asked_above:,}",
            f"{death.asked_source:,}",
            number(death.seconds),
        ]
        for death in outcome.deaths
    ]
    yield from table(["its level", "prefixes repeated", "changes above", "at the source", "seconds"], rows)


def page(costs: Costs, outcomes: Sequence[Outcome]) -> str:
    """Return the page."""
    machine, middle = describe(), outcomes[1]
    return _TEMPLATE.read_text().format(
        subscribers=scenario.SUBSCRIBERS,
        machine=f"{machine['cpu_model']}, {machine['cpus']} CPUs, {machine['system']}",
        topics=scenario.TOPICS,
        messages_per_s=scenario.MESSAGES_PER_S,
        payload_bytes=scenario.PAYLOAD_BYTES,
        window_ms=scenario.WINDOW_S * 1e3,
        topics_each=scenario.TOPICS_EACH,
        zaps_per_s=scenario.ZAPS_PER_S,
        block_in_us=costs.block_in * 1e6,
        block_out_us=costs.block_out * 1e6,
        byte_out_ns=costs.byte_out * 1e9,
        change_us=costs.change * 1e6,
        shown_key_bytes=_SHOWN_KEY_BYTES,
        loads="\n".join(_loads(costs, outcomes)),
        middle=name_of(middle.fan_outs),
        keys="\n".join(_keys(costs, middle)),
        zapping="\n".join(_zapping(outcomes)),
        reconnect_s=scenario.RECONNECT_S,
        hop_ms=scenario.HOP_S * 1e3,
        deaths="\n".join(_deaths(middle)),
    )


def pictures(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each picture."""
    by_level = [
        Curve(
            name_of(outcome.fan_outs),
            place,
            [_point(level, each.bytes_out / _GIGABIT) for level, each in enumerate(_shown(outcome).levels[:-1])],
        )
        for place, outcome in enumerate(outcomes)
    ]
    yield "out-by-level", curves("Gb/s out of each relay", "0: the source", "level", by_level)
    gets = [_point(each.key_bytes, each.levels[-1].bytes_in * 8 / 1e6) for each in outcomes[1].choices]
    told = f"Mb/s; {scenario.TOPICS_EACH} topics of {scenario.TOPICS:,}"
    yield "by-key-bytes", curves("Data received by a subscriber", told, "key_bytes", [Curve("received", 0, gets)])


def _point(x: float, y: float) -> tuple[float, float, float, float]:
    return float(x), y, y, y


def main(target: Path) -> None:
    """Measure costs, simulate trees and write the page."""
    print("measuring the costs of a relay", flush=True)
    costs = measure()
    outcomes = []
    for fan_outs in scenario.TREES:
        print(f"simulating {scenario.SUBSCRIBERS:,} subscribers below {name_of(fan_outs)}", flush=True)
        outcomes.append(simulate(fan_outs, costs))
    target.write_text(page(costs, outcomes))
    folder = target.parent / _PICTURES
    folder.mkdir(exist_ok=True)
    for name, text in pictures(outcomes):
        (folder / f"{name}.svg").write_text(text)
    print(f"wrote {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
