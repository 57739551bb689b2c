"""A real Prometheus scrapes a real feed, and its promtool checks the shipped rules."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from bench.rivals.servers import free_port
from blackbox import Feed, Publisher, Subscriber
from blackbox.services.monitor.serve.metrics import serve_metrics
from blackbox.testing import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "configs" / "monitoring" / "alerts.yml"


def program(name: str) -> str:
    """Return the path of a program of the distribution's package `prometheus`, or skip the test."""
    unpacked = ROOT / ".servers" / "usr" / "bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} was not found: make servers")
    return found


def test_rules_are_valid_and_fire() -> None:
    ended = subprocess.run(
        [program("promtool"), "test", "rules", "alerts_test.yml"],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "SUCCESS" in ended.stdout + ended.stderr


@contextmanager
def prometheus(target: str, directory: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes a target every 100 ms, with the shipped rules; yield its address."""
    config = directory / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 100ms, evaluation_interval: 100ms}\n"
        f"rule_files: [{RULES}]\n"
        f"scrape_configs: [{{job_name: blackbox, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    where = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={where}"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([program("prometheus"), *words], stdout=log, stderr=log)
    try:
        yield f"http://{where}"
    finally:
        process.terminate()
        process.wait()


def test_prometheus_scrapes_a_feed(tmp_path: Path) -> None:
    feed = Feed.local("scraped", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda message: None)

    def query(text: str) -> list[dict[str, Any]]:
        try:
            with urlopen(f"{url}/api/v1/query?query={quote(text)}", timeout=200) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except OSError:  # it is starting
            return []
        return found

    with (
        Publisher(feed) as publisher,
        subscriber,
        serve_metrics([publisher, subscriber], "127.0.0.1:0") as server,
        prometheus(f"127.0.0.1:{server.port}", tmp_path) as url,
    ):
        for _ in range(23):
            publisher.publish(b"AAPL.trade", b"1")
        wait_until(
            lambda: [each["value"][1] for each in query("blackbox_subscriber_deliveries_total")] == ["23"],
            what="the scraped value",
        )
        assert [each["value"][1] for each in query("sum(blackbox_ready)")] == ["2"]
        (quantile,) = query("histogram_quantile(0.99, blackbox_subscriber_lag_seconds_bucket)")
        assert 0 < float(quantile["value"][1]) < 60
        with urlopen(f"{url}/api/v1/targets", timeout=200) as answer:
            (target,) = json.load(answer)["data"]["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        with urlopen(f"{url}/api/v1/rules", timeout=200) as answer:
            rules = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
        assert len(rules) == RULES.read_text().count("alert:")
        assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
