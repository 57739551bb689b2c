"""The times of hops in many traces: percentiles of the command, and histograms of the metrics."""

from __future__ import annotations

import numpy
import pytest

from blackbox.native.tables.histogram import BUCKETS
from blackbox.receive.trace.hops import Hop, Trace
from blackbox.services.monitor.serve.collector import BOUNDS_NS, Families
from blackbox.services.monitor.serve.hop_counts import HopCounts
from blackbox.services.monitor.trace import Hops

START_NS = 1_767_571_200_000_000_000


@pytest.fixture
def traces() -> list[Trace]:
    """Traces with known, random times."""
    random = numpy.random.default_rng(7)
    names = ("venue", "publish", "send", "relay in", "relay out", "receive", "match", "callback")
    found = []
    for number in range(337):
        took = [0, *random.lognormal(11, 2, len(names) - 1).astype(int).tolist()]
        at = numpy.cumsum(took) + START_NS
        hops = tuple(
            Hop(
                name=name,
                relay=f"london-{number}" if name.startswith("relay") else "",
                place=int(name.startswith("relay")),
                at_ns=int(at[i]),
                took_ns=took[i],
            )
            for i, name in enumerate(names)
        )
        found.append(Trace(slice_id=0, epoch=1, sequence=number, worker=0, hops=hops))
    return found


def test_percentiles_are_those_of_numpy_and_of_a_plain_loop(traces: list[Trace]) -> None:
    hops = Hops()
    for trace in traces:
        hops.add(trace)
    relay = "relay london-336"
    ends = ["venue", "publish", "send", f"{relay} in", f"{relay} out", "receive", "match", "callback"]
    expected = {f"{ends[i - 1]} to {ends[i]}": [trace.hops[i].took_ns for trace in traces] for i in range(1, 8)}
    expected["venue to callback"] = [trace.hops[-1].at_ns - trace.hops[0].at_ns for trace in traces]
    expected["publish to callback"] = [trace.age_ns for trace in traces]
    times = hops.times()
    assert [each.hop for each in times] == [*expected]
    for each in times:
        samples = expected[each.hop]
        assert (each.samples, each.max_ns) == (len(traces), max(samples))
        for percent, found in ((50, each.p50_ns), (99, each.p99_ns)):
            assert found == next(
                value for value in sorted(samples) if 100 * sum(x <= value for x in samples) >= percent * len(samples)
            )
            assert found == numpy.percentile(samples, percent, method="inverted_cdf")


def test_histograms_of_hops_match_a_plain_count_and_have_few_labels(traces: list[Trace]) -> None:
    counts, found = HopCounts(), Families()
    for trace in traces:
        counts.add(trace)
    for histogram in counts.histograms():
        assert len(histogram.counts) == BUCKETS
        found.add_histogram(histogram, {"feed": "f"})
    (family,) = found.families()
    assert (family.name, family.type) == ("blackbox_subscriber_hop_seconds", "histogram")
    ends = ["venue", "publish", "send", "relay 1 in", "relay 1 out", "receive", "match", "callback"]
    assert {sample.labels["hop"] for sample in family.samples} == {
        f"{before} to {hop}" for before, hop in zip(ends, ends[1:], strict=False)
    }
    for number in range(1, len(ends)):
        took = numpy.array([trace.hops[number].took_ns for trace in traces])
        hop = f"{ends[number - 1]} to {ends[number]}"
        values = [each.value for each in family.samples if each.labels["hop"] == hop and "le" in each.labels]
        for bound, value in zip(BOUNDS_NS, values, strict=False):
            assert (took <= bound / 1.032).sum() <= value <= (took <= bound).sum()
        assert values[-1] == len(traces)
