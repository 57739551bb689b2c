"""Collect the metrics of a process for Prometheus from its statistics objects, by the rules of `metric_table`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from blackbox.native.tables.histogram import BOUNDS_NS as _UPPER_BOUNDS_NS
from blackbox.services.monitor.serve.hop_counts import Histogram
from blackbox.services.monitor.serve.metric_table import (
    HISTOGRAMS,
    MOST_PARTS,
    OF_ALL,
    TABLE,
    Inside,
    Label,
    Metric,
    Total,
)
from blackbox.services.monitor.serve.status import ProcessStatus
from blackbox.services.monitor.serve.watched import Watched

_PREFIX: Final = "blackbox_"
BOUNDS_NS: Final = numpy.array(
    [step * 10**power for power in range(4, 10) for step in (1, 2, 5)] + [10**10], numpy.float64
)
"""Upper bounds of the histograms' buckets: 10 µs to 10 s."""
_LE: Final = (*(f"{bound / 1e9:g}" for bound in BOUNDS_NS), "+Inf")

Labels = Mapping[str, str]


class MetricsCollector(Collector):
    """A collector for the parts of a process. One pass costs a look, see `Watched`, and some ms."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def describe(self) -> Iterable[Family]:
        """Return no description: the metrics depend on the parts."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the metrics now, each with the samples of all parts."""
        found = Families()
        seen = self._watched.look()
        parts: dict[tuple[str, str], int] = {}
        for observed, status in zip(seen.observed, seen.statuses, strict=True):
            labels = {"role": status.role, "feed": status.feed}
            parts[status.role, status.feed] = number = parts.get((status.role, status.feed), 0) + 1
            if number > 1:
                labels["part"] = str(number)
            found.add_status(status, labels)
            for statistics in (observed.statistics, *observed.more):
                found.add(statistics, labels)
            for histogram in (*observed.histograms[:MOST_PARTS], *observed.hops):
                found.add_histogram(histogram, labels)
        yield from found.families()


class Families:
    """Metrics being collected, by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[str, str]] = {}
        self._values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        for name, values in self._values.items():
            kind, text = self._kinds[name]
            family = Family(_PREFIX + name, text, kind)
            for (suffix, labels), value in values.items():
                family.add_sample(_PREFIX + name + suffix, dict(labels), value)
            yield family

    def add(self, statistics: Any, labels: Labels) -> None:
        """Add the metrics of a statistics object, or of a dict of counts of an inlet."""
        is_struct = isinstance(statistics, msgspec.Struct)
        name = type(statistics).__name__ if is_struct else "Inlet"
        rules = TABLE[name]
        values = {field: getattr(statistics, field) for field in rules} if is_struct else statistics
        parts = [field for field, rule in rules.items() if isinstance(rule, Inside) and rule.is_parts]
        has_many = any(len(values[field]) > MOST_PARTS for field in parts)
        own = {rule.name: str(values[field]) for field, rule in rules.items() if isinstance(rule, Label)}
        labels = {**labels, **own}
        for field, value in values.items():
            rule = rules[field]
            if isinstance(rule, Total):
                if not has_many:
                    continue
                rule = rule.rule
            if isinstance(rule, Metric):
                self._add_value(rule, rule.help or help_of(type(statistics), field), value, labels)
            elif isinstance(rule, Inside) and not (rule.is_parts and has_many):
                for each in value if isinstance(value, tuple) else (value,):
                    if each is not None:
                        self.add(each, labels)

    def _add_value(self, metric: Metric, text: str, value: Any, labels: Labels) -> None:
        if value is None or value == metric.unknown:
            return
        if metric.by:
            values = value if isinstance(value, Mapping) else {value: 1}
            for key, count in values.items():
                self._put(metric, text, count, {**labels, metric.by: str(key)})
            return
        self._put(metric, text, value * metric.scale, {**labels, **dict(metric.labels)})

    def _put(self, metric: Metric, text: str, value: float, labels: Labels) -> None:
        self._kinds[metric.name] = metric.kind, text
        values = self._values.setdefault(metric.name, {})
        key = "_total" if metric.kind == "counter" else "", tuple(labels.items())
        if key in values:
            value = max(values[key], value) if metric.merge == "max" else values[key] + value
        values[key] = value

    def add_status(self, status: ProcessStatus, labels: Labels) -> None:
        """Add the metrics that every part has."""
        own = {name: Metric(name, "gauge") for name in OF_ALL}
        for name, value, more in (
            ("ready", status.ready, {}),
            ("healthy", status.healthy, {}),
            ("info", True, {"version": status.version}),
        ):
            self._put(own[name], OF_ALL[name], float(value), {**labels, **more})
        for each in status.slices[:MOST_PARTS]:
            of_slice = {**labels, "slice": str(each.slice_id)}
            self._put(own["slice_ready"], OF_ALL["slice_ready"], float(not each.reason), of_slice)
            self._put(own["slice_silence_seconds"], OF_ALL["slice_silence_seconds"], each.silence_s, of_slice)

    def add_histogram(self, histogram: Histogram, labels: Labels) -> None:
        """Add the lag or age of the messages of one slice, or the time of traced ones for one hop."""
        name = f"subscriber_{histogram.of}_seconds"
        self._kinds[name] = "histogram", HISTOGRAMS[histogram.of]
        values = self._values.setdefault(name, {})
        own = *labels.items(), histogram.label
        counts = counts_up_to(histogram.counts, BOUNDS_NS)
        for bound, count in zip(_LE, counts, strict=True):
            values["_bucket", (*own, ("le", bound))] = count
        values["_count", own] = counts[-1]
        values["_sum", own] = sum_ns(histogram.counts) / 1e9


def counts_up_to(histogram: NDArray[numpy.int64], bounds_ns: NDArray[numpy.float64]) -> list[int]:
    """Return the numbers of messages with a lag up to each bound, then of all messages.

    A message of a bucket with a bound inside it counts for the next bound: its lag seems up to 3.2 % longer.
    """
    below = numpy.concatenate([[0], numpy.cumsum(histogram)])
    places = numpy.searchsorted(_UPPER_BOUNDS_NS, bounds_ns, side="right")
    return [*below[places].tolist(), int(below[-1])]


def sum_ns(histogram: NDArray[numpy.int64]) -> float:
    """Return the sum of all lags, each as the upper bound of its bucket: up to 3.2 % too long."""
    return float(histogram @ _UPPER_BOUNDS_NS)


def help_of(struct: type, field: str) -> str:
    """Return the first paragraph of the docstring of a struct's field, on one line; empty if it has none."""
    return _texts_of(struct).get(field, "")


@cache
def _texts_of(struct: type) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    except (OSError, TypeError, SyntaxError):  # installed without sources
        return {}
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if is_text and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = str(after.value.value)  # type: ignore[attr-defined]  # checked above
            texts[field.target.id] = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return texts


class Exposition:
    """The metrics of a process as text, for scrapers."""

    def __init__(self, watched: Watched) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(MetricsCollector(watched))
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that a scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def names() -> dict[str, str]:
    """Return the names of all metrics as they are scraped, with their kinds; histograms by each of their series."""
    found = {f"{_PREFIX}{name}": "gauge" for name in OF_ALL}
    for name in HISTOGRAMS:
        found |= {f"{_PREFIX}subscriber_{name}_seconds{end}": "histogram" for end in ("_bucket", "_count", "_sum")}
    for rules in TABLE.values():
        for rule in rules.values():
            metric = rule.rule if isinstance(rule, Total) else rule
            if isinstance(metric, Metric):
                found[f"{_PREFIX}{metric.name}{'_total' * (metric.kind == 'counter')}"] = metric.kind
    return found
