"""Metrics: every counter is exported or left out for a reason, and scrapers read the right values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
import numpy
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from blackbox import Feed, Publisher, Subscriber
from blackbox.archive.record.recorder import RecorderStatistics
from blackbox.archive.serve.server import ArchiveStatistics
from blackbox.feed.live_source import LiveStatistics
from blackbox.native.tables.histogram import BUCKETS, record_one
from blackbox.publish.statistics import PublisherStatistics
from blackbox.receive.statistics import Statistics
from blackbox.replay.replay import ReplayStatistics
from blackbox.services.bridge.carrier import CarrierStatistics
from blackbox.services.bridge.websocket.clients import BridgeStatistics
from blackbox.services.bridge.websocket.inlet import InletStatistics
from blackbox.services.hub.server.hub import HubStatistics
from blackbox.services.monitor.serve import metric_table
from blackbox.services.monitor.serve.collector import (
    BOUNDS_NS,
    Exposition,
    Families,
    counts_up_to,
    help_of,
    names,
    sum_ns,
)
from blackbox.services.monitor.serve.metric_table import TABLE, Inside, Label, Left, Metric, Total
from blackbox.services.monitor.serve.watched import Watched
from blackbox.services.relay.plain_clients import PlainStatistics
from blackbox.services.relay.relay import RelayStatistics
from blackbox.testing import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
STATISTICS: Final[tuple[type[msgspec.Struct], ...]] = (
    PublisherStatistics,
    Statistics,
    RecorderStatistics,
    ArchiveStatistics,
    RelayStatistics,
    PlainStatistics,
    HubStatistics,
    CarrierStatistics,
    BridgeStatistics,
    InletStatistics,
    ReplayStatistics,
    LiveStatistics,
)
SERIES: Final = re.compile(r"\bblackbox_[a-z0-9_]+")


def structs_in(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield a struct and all structs in its fields."""
    yield struct
    for kind in get_type_hints(struct).values():
        for inside in (kind, *get_args(kind)):
            if isinstance(inside, type) and issubclass(inside, msgspec.Struct):
                yield from structs_in(inside)


ALL: Final = {each.__name__: each for struct in STATISTICS for each in structs_in(struct)}


def test_every_field_of_every_statistics_object_has_a_rule() -> None:
    assert {name: set(struct.__struct_fields__) for name, struct in ALL.items()} == {
        name: set(rules) for name, rules in TABLE.items() if name != "Inlet"
    }


def test_statistics_of_all_parts_are_in_the_table() -> None:
    """A new class with `statistics()` and a struct that is not known here must be added."""
    defined = {
        name
        for path in (ROOT / "blackbox").rglob("*.py")
        for name in re.findall(r"-> (\w*Statistics)(?: \| None)?:\n", path.read_text())
    }
    assert defined - {"SliceStatistics"} <= ALL.keys()


def metrics() -> Iterator[tuple[str, str, Metric]]:
    for name, rules in TABLE.items():
        for field, rule in rules.items():
            metric = rule.rule if isinstance(rule, Total) else rule
            if isinstance(metric, Metric):
                yield name, field, metric


def is_in_ns(field: str) -> bool:
    return field.endswith("_ns") or field == "epoch"


def test_every_metric_is_described_and_named_as_prometheus_expects() -> None:
    assert [(name, field) for name, field, metric in metrics() if not (metric.help or help_of(ALL[name], field))] == []
    for name, field, metric in metrics():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert not metric.name.endswith(("_total", "_ns", "_count", "_sum", "_bucket")), metric.name
        is_time = is_in_ns(field) or field in ("age_s", "behind_s", "market_seconds")
        assert metric.name.endswith("_seconds") == is_time, (name, field)
        assert metric.scale == (1e-9 if is_in_ns(field) else 1.0), (name, field)
    kinds: dict[str, set[str]] = {}
    for _, _, metric in metrics():
        kinds.setdefault(metric.name, set()).add(metric.kind)
    assert [name for name, found in kinds.items() if len(found) > 1] == []
    assert all(rule.why for rules in TABLE.values() for rule in rules.values() if isinstance(rule, Left))


def filled(struct: type[msgspec.Struct], start: int = 1) -> Any:
    """Return a statistics object whose numbers all differ."""
    values: dict[str, Any] = {}
    for number, (field, kind) in enumerate(get_type_hints(struct).items(), start):
        inside = [each for each in (kind, *get_args(kind)) if isinstance(each, type)]
        parts = [each for each in inside if issubclass(each, msgspec.Struct)]
        if parts:
            part = filled(parts[0], 1_000 * number)
            values[field] = (part,) if get_origin(kind) is tuple else part
        elif kind is str:
            values[field] = field
        elif isinstance(kind, type) and issubclass(kind, StrEnum):
            values[field] = next(iter(kind))
        elif kind == dict[str, int]:
            values[field] = {"cut": number}
        elif kind == tuple[str, ...]:
            values[field] = ("london",)
        else:
            values[field] = bool(number % 2) if kind is bool else number
    return msgspec.convert(values, struct, strict=False)


@pytest.mark.parametrize("struct", STATISTICS)
def test_each_value_arrives_at_the_scraper(struct: type[msgspec.Struct]) -> None:
    """Walk the object with a second, slow loop, and compare all samples."""
    found = Families()
    statistics = filled(struct)
    found.add(statistics, {"feed": "f"})
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in found.families()
        for sample in family.samples
    }
    expected: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def walk(value: msgspec.Struct, labels: dict[str, str]) -> None:
        rules = TABLE[type(value).__name__]
        labels = labels | {
            rule.name: str(getattr(value, field)) for field, rule in rules.items() if isinstance(rule, Label)
        }
        for field, rule in rules.items():
            each = getattr(value, field)
            if isinstance(rule, Inside):
                for part in each if isinstance(each, tuple) else [each]:
                    walk(part, labels)
            if isinstance(rule, Metric):
                name = f"blackbox_{rule.name}" + ("_total" if rule.kind == "counter" else "")
                own = labels | dict(rule.labels)
                if isinstance(each, dict):
                    own, each = own | {rule.by: "cut"}, each["cut"]
                elif isinstance(each, str):
                    own, each = own | {rule.by: each}, 1
                expected[name, tuple(sorted(own.items()))] = float(each) / (1e9 if is_in_ns(field) else 1)

    walk(statistics, {"feed": "f"})
    assert samples == pytest.approx(expected)
    assert len(samples) > 2


def test_with_too_many_parts_only_sums_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed.local("wide", slices=3)
    publisher = Publisher(feed)
    with publisher:
        monkeypatch.setattr(metric_table, "MOST_PARTS", 2)
        monkeypatch.setattr("blackbox.services.monitor.serve.collector.MOST_PARTS", 2)
        found = Families()
        found.add(publisher.statistics(), {})
        (sent,) = [each for each in found.families() if each.name == "blackbox_publisher_messages"]
        assert [sample.labels for sample in sent.samples] == [{}]


def test_connections_without_an_address_become_one_sample() -> None:
    peer = filled(ALL["PeerStatistics"])
    peers = tuple(msgspec.structs.replace(peer, behind_s=each, unsent_bytes=int(each)) for each in (3.0, 9.0, 2.0))
    found = Families()
    for each in peers:
        found.add(each, {})
    values = {sample.name: sample.value for family in found.families() for sample in family.samples}
    assert values["blackbox_peer_unsent_bytes"] == 14.0
    assert values["blackbox_peer_behind_seconds"] == 9.0


def test_unknown_values_are_left_out() -> None:
    found = Families()
    found.add(msgspec.structs.replace(filled(HubStatistics), peer_lacks=-1), {})
    exported = {family.name for family in found.families()}
    assert "blackbox_hub_term" in exported
    assert "blackbox_hub_peer_lacks_turns" not in exported


def test_histogram_counts_match_a_plain_count() -> None:
    lags = numpy.random.default_rng(5).lognormal(13, 3, 5_000).astype(numpy.int64)
    histogram = numpy.zeros(BUCKETS, numpy.int64)
    for lag in lags.tolist():
        record_one(histogram.ctypes.data, lag)
    counts = counts_up_to(histogram, BOUNDS_NS)
    assert counts[-1] == len(lags)
    assert counts == sorted(counts)
    for bound, count in zip(BOUNDS_NS, counts, strict=False):
        assert (lags <= bound / 1.032).sum() <= count <= (lags <= bound).sum()
    assert lags.sum() <= sum_ns(histogram) <= 1.032 * lags.sum() + len(lags)


def test_scraped_text_has_the_values_of_the_statistics() -> None:
    feed = Feed.local("scraped", slices=1)
    subscriber, twin = Subscriber(feed), Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    twin.on(b"MSFT.")(lambda message: None)
    with Publisher(feed) as publisher, subscriber, twin:
        exposition = Exposition(Watched(publisher, subscriber, twin))
        for _ in range(11):
            publisher.publish(b"AAPL.trade", b"12345")
        wait_until(lambda: subscriber.statistics().delivery.delivered == 11, what="messages")
        publisher.flush()
        wait_until(lambda: publisher.statistics().subscribers == 2, what="both acceptances")
        text, content_type = exposition.text("text/plain")
        assert content_type.startswith("text/plain; version=")
        found = {
            (sample.name, *(sample.labels.get(label, "") for label in ("role", "part"))): sample.value
            for family in parse(text.decode())
            for sample in family.samples
            if "le" not in sample.labels
        }
        assert found["blackbox_publisher_messages_total", "publisher", ""] == 11
        assert found["blackbox_publisher_subscribers", "publisher", ""] == 2
        assert found["blackbox_subscriber_deliveries_total", "subscriber", ""] == 11
        assert found["blackbox_subscriber_deliveries_total", "subscriber", "2"] == 0
        assert found["blackbox_subscriber_lag_seconds_count", "subscriber", ""] == 11
        assert found["blackbox_ready", "subscriber", "2"] == 1
        assert found["process_open_fds", "", ""] > 0
        started = found["blackbox_publisher_epoch_timestamp_seconds", "publisher", ""]
        assert started == pytest.approx(publisher.epoch / 1e9)
        modern, content_type = exposition.text("application/openmetrics-text; version=1.0.0")
        assert content_type.startswith("application/openmetrics-text")
        samples = [
            sample
            for family in parse_openmetrics(modern.decode())  # type: ignore[no-untyped-call]
            for sample in family.samples
        ]
        assert {sample.labels["slice"] for sample in samples if "slice" in sample.labels} == {"0"}
        known = names()
        assert {sample.name for sample in samples if sample.name.startswith("blackbox_")} <= known.keys()
        texts = [value for sample in samples for value in sample.labels.values()]
        assert not any("AAPL" in value for value in texts)


def test_dashboard_and_rules_name_only_metrics_that_exist() -> None:
    known = names()
    dashboard = json.loads((ROOT / "configs/monitoring/dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = (ROOT / "configs/monitoring/alerts.yml").read_text()
    exprs = re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)
    assert len(exprs) == rules.count("alert:")
    asked += exprs
    used = {name for text in asked for name in SERIES.findall(text)}
    assert len(used) > 20
    assert used - known.keys() == set()
    for text in asked:
        for name in re.findall(r"(?:rate|increase)\((blackbox_\w+)", text):
            assert known[name] != "gauge", text
