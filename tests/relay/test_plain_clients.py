"""Clients in other languages read a feed from the wire format page alone: from its source, below a relay, and plain.

Their sources are in `clients/`. They share no code with this project and use only ZeroMQ's SUB socket.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import pytest
import zmq

from blackbox import Feed, Publisher
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.cli.commands import Command, write_feed
from tests.examples import first_of
from tests.relay.relays import PATIENCE_S, chain

CLIENTS = Path(__file__).parent / "clients"
NODE_PACKAGE = "zeromq@6.8.0"
_INSTALL_S = 300
_WARM = b"warm.up"


class Sent(NamedTuple):
    """A published message."""

    topic: bytes
    payload: bytes | None
    ts_event: int

    def line(self, sequence: int | None = None) -> str:
        """The line that a client prints for it."""
        payload = "-" if self.payload is None else self.payload.hex()
        words = (self.topic.hex(), str(self.ts_event), payload, *([] if sequence is None else [str(sequence)]))
        return " ".join(words)


class Client:
    """A running client, killed when the `with` block is left. Its output goes to a file: a full pipe would stop it."""

    def __init__(self, command: Sequence[str], output: IO[str]) -> None:
        self._output = output
        self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True)

    @property
    def is_ready(self) -> bool:
        return os.fstat(self._output.fileno()).st_size > 0

    def lines(self) -> list[str]:
        """Wait until it ends; return its output after "ready"."""
        _, errors = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, errors
        self._output.seek(0)
        first, *lines = self._output.read().splitlines()
        assert first == "ready"
        return lines

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def c_client(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The client in C, linked with pyzmq's libzmq, or else with the system's."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: no `cc`")
    program = tmp_path_factory.mktemp("clients") / "client"
    bundled = sorted((Path(zmq.__file__).parents[1] / "pyzmq.libs").glob("libzmq*.so*"))
    libraries = [str(bundled[0]), f"-Wl,-rpath,{bundled[0].parent}"] if bundled else ["-lzmq"]
    command = [compiler, "-Wall", "-Werror", "-O1", str(CLIENTS / "client.c"), "-o", str(program), *libraries]
    done = subprocess.run(command, capture_output=True, text=True)
    if not bundled and "lzmq" in done.stderr:
        pytest.skip("there is no libzmq to link with: pyzmq brings none, and the system has none")
    assert done.returncode == 0, done.stderr
    return [str(program)]


@pytest.fixture(scope="module")
def node_client(request: pytest.FixtureRequest) -> list[str]:
    """The client in Node, with its one package, which is installed once into pytest's cache."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no Node: no `node` or no `npm`")
    place = Path(request.config.cache.mkdir("node-client"))
    if not (place / "node_modules" / "zeromq").exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(place), NODE_PACKAGE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, cwd=place)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{NODE_PACKAGE} was not installed in {_INSTALL_S} s")
        if done.returncode:
            pytest.skip(f"{NODE_PACKAGE} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    shutil.copy(CLIENTS / "layout.mjs", place)
    script = shutil.copy(CLIENTS / "client.mjs", place)
    return [node, str(script)]


@pytest.fixture(params=first_of(["c", "node"]))
def client(request: pytest.FixtureRequest) -> list[str]:
    """Command line of a client."""
    words: list[str] = request.getfixturevalue(f"{request.param}_client")
    return words


def messages_to_send() -> Iterator[Sent]:
    """Several keys and topics in both slices; payloads of many sizes, none, and many of one size."""
    for number in range(300):
        topic = (b"AAPL.trade", b"AAPL.quote", b"MSFT.trade", b"M", b"BRK.A.P", b"ZVZZT.x")[number % 6]
        payload = None if number % 50 == 49 else bytes([number % 256]) * (number * number % 997)
        yield Sent(topic, payload, 0 if number % 10 == 0 else 1_700_000_000_000_000_000 + number)
    yield Sent(b"AAPL.trade", b"x" * 300_000, -1)
    yield from (Sent(b"AAPL.trade", b"%08d" % number, number) for number in range(1_000))


def by_topic(lines: Sequence[str]) -> dict[str, list[str]]:
    """Lines in order, grouped by their first word: slices are interleaved arbitrarily."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line.partition(" ")[0], []).append(line)
    return found


def endpoints_of(feed: Feed) -> list[str]:
    return [endpoint for part in feed.slices for endpoint in part.endpoints]


@pytest.mark.parametrize("keys", first_of([{"channels": 4}, {"key_bytes": 2}, {}]))
def test_a_client_reads_what_was_published(client: list[str], keys: dict[str, Any], tmp_path: Path) -> None:
    feed, below = chain(slices=2, **keys, heartbeat_ns=1_000_000_000)
    plain = free_endpoints("tcp", "plain", 1, 1)[0][0]
    files = [write_feed(each, tmp_path / f"{place}.toml") for place, each in enumerate((feed, below))]
    sent = list(messages_to_send())
    of_aapl = [message for message in sent if message.topic.startswith(b"AAPL.")]

    with ExitStack() as stack:

        def open_client(*words: object) -> Client:
            output = stack.enter_context(TemporaryFile("w+"))
            return stack.enter_context(Client([*client, *map(str, words)], output))

        relay = stack.enter_context(Command("relay", files[0], files[1]))
        plain_relay = stack.enter_context(Command("relay", files[0], plain, "--plain"))
        publisher = stack.enter_context(Publisher(feed))
        plain_relay.read_error("relays")
        relay.read_error("relays")
        one_by_one = [
            (open_client("messages", "", len(sent), plain), sent),
            (open_client("messages", "AAPL.", len(of_aapl), plain), of_aapl),
        ]

        def slice_of(line: str) -> int:
            return feed.slice_of(bytes.fromhex(line.partition(" ")[0]))

        def are_ready(clients: Sequence[Client]) -> Callable[[], bool]:
            return lambda: all(each.is_ready for each in clients)

        def warm_up() -> bool:
            publisher.publish(*Sent(_WARM, b"", 0))
            return are_ready([each for each, _ in one_by_one])()

        wait_until(warm_up, PATIENCE_S)
        in_blocks = [
            (open_client("blocks", prefix, feed.key_rule & 0xFF, *endpoints_of(each)), prefix)
            for each in (feed, below)
            for prefix in ("", "AAPL.")
        ]
        wait_until(are_ready([each for each, _ in in_blocks]), PATIENCE_S)
        publisher.flush()
        warm = [publisher.published_count(each) for each in range(2)]
        for message in sent:
            publisher.publish(*message)
        publisher.flush()
        expected_numbers = [range(warm[each], publisher.published_count(each)) for each in range(2)]
        publisher.close()
        for each, expected in one_by_one:
            assert by_topic(each.lines()) == by_topic([message.line() for message in expected])
        for each, prefix in in_blocks:
            wanted = [message.line() for message in sent if message.topic.startswith(prefix.encode())]
            lines = [line.rpartition(" ") for line in each.lines()]
            assert by_topic([line for line, *_ in lines]) == by_topic(wanted)
            for slice_id in range(2) if not prefix else ():
                of_slice = [int(number) for line, _, number in lines if slice_of(line) == slice_id]
                assert sorted(of_slice) == list(expected_numbers[slice_id])
        assert "Traceback" not in plain_relay.interrupt().errors + relay.interrupt().errors
