"""`blackbox feed new` and `feed check`."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Publisher
from blackbox.cli.feed.endpoints import endpoints_of, warnings_of
from blackbox.cli.feed.listeners import use_of
from blackbox.cli.feed.new import Transport, _first_port, _Place, _Shape, _text
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import assert_one_line, invoke, succeed, write_feed
from tests.process_state import linux_only

pytestmark = linux_only


@given(
    st.integers(1, 9),
    st.integers(1, 2),
    st.sampled_from(Transport),
    st.sampled_from([(0, 1), (8, 1), (0, 128)]),
    st.integers(0, 3),
    st.sampled_from(["127.0.0.1", "::1", "md.example"]),
)
def test_a_new_file_has_the_settings_of_the_options(
    slices: int, lines: int, transport: Transport, keys: tuple[int, int], archives: int, host: str
) -> None:
    import tomllib

    file = Path("made.toml")
    text = "".join(_text(file, "made", "itch50", keys, _Shape(slices, lines, archives), _Place(transport, host, 6_000)))
    feed = msgspec.convert(tomllib.loads(text), Feed)
    assert (feed.name, feed.schema, len(feed.slices)) == ("made", "itch50", slices)
    assert (feed.key_bytes, feed.channels) == keys
    assert [part.share for part in feed.slices] == [(number, slices) for number in range(slices)]
    assert all(len(part.lines) == lines for part in feed.slices)
    assert all(bool(part.shared_memory) == (transport is Transport.SHM) for part in feed.slices)
    assert len(feed.archives) == archives
    addresses = [each for part in feed.slices for each in part.lines] + list(feed.archives)
    assert len(set(addresses)) == len(addresses)
    if transport is not Transport.IPC:
        assert [int(each.rpartition(":")[2]) for each in addresses] == list(range(6_000, 6_000 + len(addresses)))


def test_a_new_file_is_written_once_and_shows_defaults_after_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "feed.toml"
    succeed("feed", "new", file)
    text = file.read_text()
    ended = invoke("feed", "new", file, "--slices", 4)
    assert_one_line(ended, "already exists: choose another name")
    assert file.read_text() == text
    plain = Feed.load(file)
    lines = text.splitlines()
    settings = [line.removeprefix("# ") for line in lines if line.startswith("# ") and " = " in line]
    known = [line for line in settings if line.split(" = ")[0] in Feed.__struct_fields__ and "key" not in line]
    assert len(known) == 5
    place = next(number for number, line in enumerate(lines) if line.startswith("key_bytes")) + 1
    file.write_text("\n".join([*lines[:place], *known, *lines[place:]]))
    assert Feed.load(file) == plain


def test_new_feeds_have_ports_by_their_names_so_that_two_of_them_can_run_at_once(tmp_path: Path) -> None:
    def ports_of(name: str, *words: object) -> list[int]:
        path = tmp_path / f"{name}{len(words)}.toml"
        succeed("feed", "new", path, "--name", name, "--archives", 1, *words)
        feed = Feed.load(path)
        endpoints = [*(each for part in feed.slices for each in part.endpoints), *feed.archives]
        return [int(each.rpartition(":")[2]) for each in endpoints]

    assert ports_of("es") == [21_472, 21_473, 21_474]
    assert ports_of("es", "--lines", 2) == [*range(21_472, 21_477)]
    assert ports_of("made-up") == [13_200, 13_201, 13_202]
    assert ports_of("made-up", "--port", 6_000) == [6_000, 6_001, 6_002]
    firsts = [_first_port(f"feed-{number}") for number in range(2_000)]
    assert all(10_000 <= first < 30_000 and (first - 10_000) % 16 == 0 for first in firsts)
    assert len(set(firsts)) > 900
    assert "by a hash of the feed's name" in " ".join(invoke("feed", "new", "--help").out.split())


@pytest.mark.parametrize(
    ("schema", "time_zone"),
    [(name, "America/New_York") for name in ("itch50", "iex_tops16", "iex_deep10", "tape")]
    + [(name, "UTC") for name in ("raw", "dbn", "dbn_ts_out", "binance")],
)
def test_a_new_feed_of_us_equities_is_in_the_time_of_new_york(schema: str, time_zone: str, tmp_path: Path) -> None:
    succeed("feed", "new", tmp_path / "feed.toml", "--schema", schema)
    assert Feed.load(tmp_path / "feed.toml").time_zone == time_zone


def test_the_process_at_each_endpoint_is_named(tmp_path: Path) -> None:
    feed = Feed.local("checked", transport="shm")
    file = write_feed(feed, tmp_path / "feed.toml")
    assert {each["state"] for each in json.loads(invoke("feed", "check", file, "--json").out)["endpoints"]} == {"free"}
    with Publisher(feed):
        ended = invoke("feed", "check", file, "--json")
    found = json.loads(ended.out)
    assert ended.status == 0
    assert [(each["what"], each["endpoint"], each["takes"]) for each in found["endpoints"]] == [
        (f"slice {number} {what}", endpoint, f"share {number} of 2")
        for number, part in enumerate(feed.slices)
        for what, endpoint in zip(("line A", "shared memory"), part.endpoints, strict=True)
    ]
    assert {each["pid"] for each in found["endpoints"]} == {os.getpid()}
    assert f"(PID {os.getpid()})" in found["endpoints"][0]["state"]
    assert (found["feed"], found["schema"], found["warnings"]) == ("checked", "raw", [])


def test_a_unix_socket_is_in_use_while_a_process_listens(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/0"
    assert use_of(endpoint).text == "free"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/0")
        listener.listen()
        assert use_of(endpoint).pid == os.getpid()
    assert use_of(endpoint).text == "free"  # the file exists, but no process listens
    assert use_of(f"ipc://{tmp_path}/none/0").text == f"{tmp_path}/none is not a directory"


@pytest.mark.parametrize(("bound", "asked"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "*"), ("127.0.0.1", "0.0.0.0")])
def test_a_port_is_in_use_at_every_address_that_a_listener_covers(bound: str, asked: str) -> None:
    with socket.create_server((bound, 0)) as server:
        port = server.getsockname()[1]
        assert use_of(f"tcp://{asked}:{port}").pid == os.getpid()
        assert use_of(f"tcp://127.0.0.2:{port}").is_used is (bound == "0.0.0.0")


def test_addresses_elsewhere_and_a_port_of_an_invisible_process(tmp_path: Path) -> None:
    assert use_of("tcp://192.0.2.1:5000").text == "on another host"
    assert use_of("tcp://no-such-host.invalid:5000").text == "no-such-host.invalid is not a known host name"
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:1388 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1001 0 77 1 x"
    (tmp_path / "net" / "tcp").write_text(f"sl local_address\n{line}\n")
    found = use_of("tcp://127.0.0.1:5000", tmp_path)
    assert (found.text, found.is_used, found.pid) == ("in use by another user's process", True, None)
    assert use_of("tcp://127.0.0.1:5001", tmp_path).text == "free"
    assert use_of("udp://239.1.1.1:5000", tmp_path).text == "not joined here"


def test_risks_cause_warnings(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("32768\t60999\n")
    feed = Feed.load(_written(tmp_path, "tcp://192.0.2.1:40000"))
    first, second = warnings_of(feed, endpoints_of(feed), tmp_path / "range")
    assert "tcp://192.0.2.1:40000 is neither encrypted nor authenticated" in first
    assert "one of those that the system gives to outgoing connections (32768 to 60999)" in second
    local = Feed.load(_written(tmp_path, "tcp://127.0.0.1:17101"))
    assert warnings_of(local, endpoints_of(local), tmp_path / "range") == []
    ended = succeed("feed", "check", _written(tmp_path, "tcp://192.0.2.1:17101"))
    assert "warning: tcp://192.0.2.1:17101 is neither encrypted" in ended.errors
    assert "on another host" in ended.out


def _written(directory: Path, endpoint: str) -> Path:
    file = directory / "feed.toml"
    file.write_text(f'name = "x"\n[[slices]]\nendpoints = ["{endpoint}"]\n')
    return file


def test_settings_from_the_environment_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = free_endpoints("tcp", "x", 1, 1)[0][0]
    monkeypatch.setenv("BLACKBOX_FEED_SLICES_0_ENDPOINTS", endpoint)
    found = json.loads(invoke("feed", "check", _written(tmp_path, "tcp://192.0.2.1:5"), "--json").out)
    assert found["environment"] == ["BLACKBOX_FEED_SLICES_0_ENDPOINTS"]
    assert [each["endpoint"] for each in found["endpoints"]] == [endpoint]
