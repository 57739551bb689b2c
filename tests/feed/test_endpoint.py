"""Endpoints: valid ones, and free ones on this machine."""

import fcntl
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from blackbox.errors import ConfigError
from blackbox.feed import endpoint as ports
from blackbox.feed.feed import Feed
from blackbox.feed.security import Security
from blackbox.feed.slice import Slice
from tests.support import Script


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("pgm://127.0.0.1:5000", "expected tcp://, ipc://, inproc://, udp:// or shm://"),
        ("", "expected tcp://, ipc://, inproc://, udp:// or shm://"),
        ("udp://127.0.0.1:5000", "expected 224.0.0.0 to 239.255.255.255"),
        ("udp://240.0.0.1:5000", "expected 224.0.0.0 to 239.255.255.255"),
        ("udp://quotes:5000", "expected udp://GROUP:PORT with an IPv4 address"),
        ("udp://[ff02::1]:5000", "expected udp://GROUP:PORT with an IPv4 address"),
        ("udp://239.1.1.1", "expected udp://GROUP:PORT with an IPv4 address"),
        ("udp://239.1.1.1:0", "expected 1 to 65535"),
        ("udp://239.1.1.1:65536", "expected 1 to 65535"),
        ("udp://239.1.1.1:x", "expected 1 to 65535"),
        ("ipc://", "expected an address after ipc://"),
        ("ipc://\0", "expected an address after ipc://"),
        ("tcp://127.0.0.1", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1:*", "expected tcp://HOST:PORT"),
        ("tcp://fe80::1:5000", "expected tcp://HOST:PORT"),
        ("tcp://10.0.0.1:0;10.0.0.2:5000", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1:0", "was 0, expected 1 to 65535"),
        ("tcp://127.0.0.1:65536", "was 65536, expected 1 to 65535"),
        ("tcp://127.0.0.300:5000", "expected an address or a name"),
        ("tcp://[fe80]:5000", "expected an address or a name"),
        ("tcp://two words:5000", "expected an address or a name"),
        ("tcp://*:5000", "set `bind` to listen on another"),
        ("tcp://[::]:5000", "set `bind` to listen on another"),
        ("ipc://*", "expected a path to connect to"),
        ("ipc:///" + "x" * 103, "was 104 bytes long, expected at most 103"),
        ("shm:///dev/shm/x", "letters, digits, '.', '_' or '-', the first a letter or digit"),
        ("shm://" + "x" * 65, "letters, digits, '.', '_' or '-', the first a letter or digit"),
    ],
)
def test_malformed_endpoint_is_refused(endpoint: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Slice(endpoints=(endpoint,))
    assert repr(endpoint) in str(caught.value)
    assert str(caught.value).endswith(message)


def test_shared_memory_comes_with_lines() -> None:
    part = Slice(endpoints=("tcp://127.0.0.1:1", "shm://a", "tcp://127.0.0.1:2"), interface="127.0.0.1")
    assert part.lines == ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    assert part.shared_memory == "a"
    assert Slice(endpoints=part.lines).shared_memory == ""
    expected = "expected 1 or 2 (lines A and B) and at most one shm://"
    for endpoints, seen in ((("shm://a",), "0 and 1"), (("inproc://a", "shm://a", "shm://b"), "1 and 2")):
        with pytest.raises(ConfigError, match=re.escape(f"endpoints were {seen} in shared memory, {expected}")):
            Slice(endpoints=endpoints)


def test_multicast_lines_come_last_and_without_shared_memory() -> None:
    part = Slice(endpoints=("tcp://127.0.0.1:1", "udp://239.1.1.1:2"), bind="tcp://0.0.0.0:1", interface="127.0.0.1")
    assert (part.sockets, part.multicast) == (("tcp://127.0.0.1:1",), ("udp://239.1.1.1:2",))
    assert part.lines == part.endpoints
    for endpoints, expected in (
        (("udp://239.1.1.1:2", "tcp://127.0.0.1:1"), "expected udp:// after the other line"),
        (("tcp://127.0.0.1:1", "udp://239.1.1.1:2", "shm://a"), "expected either udp:// or shm://"),
        (("udp://239.1.1.1:2", "udp://239.1.1.2:2", "udp://239.1.1.3:2"), "expected 1 or 2 (lines A and B)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(expected)):
            Slice(endpoints=endpoints)
    with pytest.raises(ConfigError, match="expected an IPv4 address"):
        Slice(endpoints=part.endpoints, interface="::1")


def test_multicast_needs_groups_of_its_own_and_a_group_key_with_security() -> None:
    def feed(*endpoints: str, **settings: Any) -> Feed:
        return Feed(name="x", slices=(Slice(endpoints=endpoints),), **settings)

    assert [str(group.address) for group in ports.groups_of("udp://239.1.1.255:5", 2)] == [
        "239.1.1.255",
        "239.1.2.0",
        "239.1.2.1",
    ]
    feed("udp://239.1.1.1:5", "udp://239.1.1.10:5", channels=8)
    feed("udp://239.1.1.1:5", "udp://239.1.1.2:6", channels=8)
    with pytest.raises(ConfigError, match="each line needs 9 groups"):
        feed("udp://239.1.1.1:5", "udp://239.1.1.9:5", channels=8)
    with pytest.raises(ConfigError, match=r"expected groups up to 239\.255\.255\.255"):
        feed("udp://239.255.255.250:5", channels=8)
    with pytest.raises(ConfigError, match="no group_key, expected one"):
        feed("udp://239.1.1.1:5", security=Security(key="x"))
    assert feed("udp://239.1.1.1:5", security=Security(key="x", group_key="y")).security


def test_every_form_of_endpoint_is_accepted() -> None:
    tcp = ("tcp://127.0.0.1:1", "tcp://md1.example.com:65535", "tcp://[::1]:5000")
    for endpoint in (*tcp, "ipc:///run/feed/0", "ipc://@abstract", "inproc://feed-0", "udp://239.1.1.1:5000"):
        assert Slice(endpoints=(endpoint,)).endpoints == (endpoint,)


@pytest.mark.parametrize(
    "endpoints", [(("inproc://a",), ("inproc://b", "inproc://a")), (("inproc://a", "inproc://a"),)]
)
def test_endpoint_used_twice_is_refused(endpoints: tuple[tuple[str, ...], ...]) -> None:
    last = len(endpoints) - 1
    slices = tuple(Slice(endpoints=lines, share=(index, last + 1)) for index, lines in enumerate(endpoints))
    told = f"feed 'test': endpoint 'inproc://a' of slice {last} is also an endpoint of slice 0"
    with pytest.raises(ConfigError, match=told):
        Feed(name="test", slices=slices)


def ports_of(feed: Feed) -> list[int]:
    return [int(each.rpartition(":")[2]) for feed_slice in feed.slices for each in feed_slice.endpoints]


def test_local_feed_has_free_ports_that_no_other_local_feed_has() -> None:
    feeds = [Feed.local("demo", slices=3, lines=2, schema="itch50", key_bytes=2) for _ in range(20)]
    offered = [port for feed in feeds for port in ports_of(feed)]
    assert len(set(offered)) == 20 * 3 * 2
    assert (feeds[0].name, feeds[0].schema, feeds[0].key_bytes) == ("demo", "itch50", 2)
    for port in offered[:6]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    first_ephemeral, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert max(offered) < first_ephemeral


def test_a_port_that_is_in_use_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = ports_of(Feed.local("demo", slices=2))
    turns = iter((taken - ports._FIRST_PORT, free - ports._FIRST_PORT))
    monkeypatch.setattr(ports, "_turn", lambda: next(turns))
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", taken))
        assert Feed.local("demo", slices=1).slices[0].endpoints == (f"tcp://127.0.0.1:{free}",)


def test_concurrent_processes_are_offered_different_ports() -> None:
    script = (
        "from blackbox.feed import endpoint as e; e._LOCK_TRIES = 100_000; "
        "print(*(port for (port,) in e.free_endpoints('tcp', '', 500, 1)))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)]
    offered = [process.communicate(timeout=200)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(set(offered[0] + offered[1])) == 1_000


def test_ports_are_offered_whatever_the_file_of_turns_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(set(ports_of(Feed.local("demo", slices=20)))) == 20
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "blackbox").mkdir()
    for content in (b"", b"torn", b"\xff" * 8, b"\xff" * 20):
        ports._turns_path().write_bytes(content)
        assert len(set(ports_of(Feed.local("demo", slices=20)))) == 20, content


def test_concurrent_users_are_offered_different_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same holds for containers on one network: they share no file of turns."""
    offered = set[int]()
    for user in range(20):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(user)))
        offered |= set(ports_of(Feed.local("demo", slices=1)))
    assert len(offered) > 10


def test_a_process_stopped_while_taking_a_turn_blocks_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ports, "_LOCK_TRIES", 2)
    Feed.local("demo")
    with ports._turns_path().open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert len(set(ports_of(Feed.local("demo", slices=20)))) == 20


def test_local_ipc_paths_are_private_and_removed_at_exit() -> None:
    script = (
        "import os; from pathlib import Path; from blackbox.feed.feed import Feed\n"
        "feed = Feed.local('demo', transport='ipc', lines=2)\n"
        "paths = [Path(e.removeprefix('ipc://')) for s in feed.slices for e in s.endpoints]\n"
        "assert len({*paths}) == 4\n"
        "directory, = {path.parent for path in paths}\n"
        "assert directory.stat().st_mode & 0o777 == 0o700\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0); assert directory.is_dir(); print(directory)\n"
    )
    with Script(script) as process:
        directory = Path(process.read())
        assert process.finish()[0] == 0
    assert directory.name.startswith("blackbox-")
    assert not directory.exists()


def test_local_feed_out_of_range_is_refused() -> None:
    transport: Any = "udp"
    with pytest.raises(ConfigError, match="transport was 'udp', expected one of tcp, ipc, inproc"):
        Feed.local("demo", transport=transport)
    with pytest.raises(ConfigError, match="slices were 0, expected 1 to 65536"):
        Feed.local("demo", slices=0)
    with pytest.raises(ConfigError, match="lines were 3, expected 1 to 2"):
        Feed.local("demo", lines=3)
    with pytest.raises(ConfigError, match="name was 'a/b'"):
        Feed.local("a/b", transport="ipc")


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
def test_local_feed_of_each_transport_takes_all_topics(transport: Literal["tcp", "ipc", "inproc"]) -> None:
    feed, other = (Feed.local("demo", slices=3, transport=transport) for _ in range(2))
    assert not {each.endpoints for each in feed.slices} & {each.endpoints for each in other.slices}
    assert {feed.slice_of(b"S%d.t" % number) for number in range(100)} == {0, 1, 2}
