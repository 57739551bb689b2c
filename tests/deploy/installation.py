"""The example in `configs/production` on free ports, run by supervisord; and a venue for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy
from blackbox_feeds.itch50.soupbintcp_server import SoupBinTcpServer, SoupOptions

from blackbox import Feed, Recording
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.venue_url import Address
from blackbox.replay.play.venue_server import VenueMessages
from blackbox.testing import wait_until
from tests.feeds.build import itch

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / "configs" / "production"
PATIENCE_S: Final = 300.0
VENUE: Final = "26400"
METRICS: Final = {
    "twin-a": "19401",
    "twin-b": "19402",
    "relay-1": "19411",
    "relay-2": "19412",
    "recorder-1": "19421",
    "recorder-2": "19422",
    "hub-1": "19431",
    "hub-2": "19432",
}
"""Port of the metrics of each process, in the example."""
_STOCKS: Final = 40
_SESSION: Final = "2026113001"
"""As in session.env."""
_PORT: Final = re.compile(r"127\.0\.0\.1:(\d{5})\b")


def number_of(payload: bytes) -> int:
    """Return the number of a message of `Venue`: its time."""
    return int.from_bytes(payload[5:11], "big")


class Venue:
    """A SoupBinTCP server of the venue. `sent`: its messages so far."""

    def __init__(self, port: int) -> None:
        options = SoupOptions(session=_SESSION, linger=0)
        self._server = SoupBinTcpServer(Address("127.0.0.1", port), [], options)
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        fresh = []
        for number in range(len(self.sent), len(self.sent) + count):
            kind = "R" if number < _STOCKS else "AXPUD"[number % 5]  # the directory first
            fresh.append(itch(kind, number % _STOCKS + 1, number, f"S{number % _STOCKS}"))
        self.sent += fresh
        lengths = numpy.array([len(each) for each in fresh], numpy.int32)
        data = numpy.frombuffer(b"".join(fresh), numpy.uint8)
        addresses = data.ctypes.data + numpy.cumsum(lengths, dtype=numpy.int64) - lengths
        topics = numpy.zeros(count, numpy.int32)
        self._server.send(VenueMessages(numpy.zeros(count, numpy.int64), addresses, lengths, topics, (b"",)))

    def __enter__(self) -> Self:
        self._server.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end(at_once=True)
        self._server.close()


class Installation:
    """A copy of the example on free ports."""

    def __init__(self, directory: Path) -> None:
        self.directory = shutil.copytree(EXAMPLE, directory / "production")
        for name in ("data", "bin"):
            (self.directory / name).mkdir()
        texts = {path: path.read_text() for path in self.directory.iterdir() if path.is_file()}
        used = sorted({port for text in texts.values() for port in _PORT.findall(text)})
        free = free_endpoints("tcp", "production", len(used), 1)
        self.ports = {port: int(each.rpartition(":")[2]) for port, (each,) in zip(used, free, strict=True)}
        for path, text in texts.items():
            own = _PORT.sub(lambda found: f"127.0.0.1:{self.ports[found[1]]}", text)
            path.write_text(re.sub(r"^DAY=.*$", f"DAY={datetime.now(UTC):%Y-%m-%d}", own, flags=re.MULTILINE))
        command = self.directory / "bin" / "blackbox"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m blackbox.cli "$@"\n')
        command.chmod(0o755)

    def load(self, name: str) -> Feed:
        return Feed.load(self.directory / name)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Run all programs. Print the ends of their logs after an error."""
        paths = [str(ROOT), str(ROOT / "feeds"), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {
            "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(self.directory / "supervisord.conf")]
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        try:
            yield
        except BaseException:
            for path in sorted((self.directory / "data").glob("*.log*")):
                print(f"--- {path.name}\n{path.read_text(errors='replace')[-3_000:]}")
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)

    def get(self, name: str, path: str) -> tuple[int, str]:
        """Return status and text of a process's page; 0 if the process does not answer."""
        url = f"http://127.0.0.1:{self.ports[METRICS[name]]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self, name: str) -> list[dict[str, Any]]:
        """Return the status of each part of a process; none if it does not answer."""
        code, text = self.get(name, "/status")
        found: list[dict[str, Any]] = json.loads(text) if code == 200 else []
        return found

    def wait_ready(self, name: str) -> None:
        """Wait until a process does its work: see `/readyz` in docs/watching.md."""
        wait_until(lambda: self.get(name, "/readyz")[0] == 200, PATIENCE_S, f"{name} is ready")

    def wait_recorded(self, name: str, count: int) -> None:
        """Wait until a recorder has received everything up to message `count` of both slices together."""

        def is_recorded() -> bool:
            recorders = [each for each in self.status(name) if each["role"] == "recorder"]
            return sum(int(part["sequence"]) for each in recorders for part in each["slices"]) == count

        wait_until(is_recorded, PATIENCE_S, f"{name} has recorded {count} messages")

    def received(self, recorder: str) -> int:
        """Return the messages that a recorder has received; those of both lines count twice."""
        return sum(int(each["statistics"]["received"]["messages"]) for each in self.status(recorder))

    def wait_carries(self, relay: str, line: str) -> None:
        """Wait until a relay's line has the subscriber's filters, confirmed by the twin above, in each slice."""

        def carries() -> bool:
            lines = [each for part in self.status(relay) for each in part["statistics"]["lines"]]
            mine = [each for each in lines if each["line"] == line]
            return bool(mine) and all(each["is_confirmed"] and each["filters_below"] > 0 for each in mine)

        wait_until(carries, PATIENCE_S, f"line {line} of {relay} carries")

    def reconnects(self, relay: str) -> int:
        """Return how often a relay's lines have connected again."""
        return sum(int(each["reconnects"]) for part in self.status(relay) for each in part["statistics"]["lines"])

    def wait_connected_again(self, relay: str, before: int) -> None:
        """Wait until a relay's lines have connected again since `reconnects` was `before`."""
        wait_until(lambda: self.reconnects(relay) > before, PATIENCE_S, f"{relay} is connected again")

    @contextmanager
    def killed(self, name: str) -> Iterator[None]:
        """Kill -9 a process, run the block, and wait until supervisord has started it again and it does its work."""
        pid = self.status(name)[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        yield
        wait_until(
            lambda: any(part["pid"] != pid for part in self.status(name)), PATIENCE_S, f"{name} is started again"
        )
        self.wait_ready(name)

    def recorded(self, recorder: str) -> list[bytes]:
        """Return what a recorder has recorded in whole days, by the numbers of the messages."""
        payloads: list[bytes] = []
        for manifest in sorted((self.directory / "data" / recorder / "itch").glob("*/manifest.json")):
            day = Recording.open(manifest.parent)
            assert (day.verify(), day.gaps()) == ([], []), f"{recorder}: {day.verify()}, {day.gaps()}"
            payloads += [bytes(message.payload or b"") for batch in day.batches() for message in batch]
        return sorted(payloads, key=number_of)
