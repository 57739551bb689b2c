"""Feeds: loading, checks, free endpoints, and routing against a slow obvious reference."""

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blackbox import layout, routing
from blackbox.errors import ConfigError
from blackbox.feed import Feed, Slice

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
CONFIG_FILES = sorted(CONFIGS.glob("*.toml"))
ONE_SLICE = '[[slices]]\nendpoints = ["tcp://127.0.0.1:17001"]\n'


def feed_of_prefixes(*prefixes: tuple[str, ...]) -> Feed:
    return Feed(
        name="test",
        slices=tuple(
            Slice(endpoints=(f"tcp://127.0.0.1:{17_001 + slice_id}",), prefixes=held)
            for slice_id, held in enumerate(prefixes)
        ),
    )


def feed_of_shares(*shares: tuple[int, int]) -> Feed:
    return Feed(
        name="test",
        slices=tuple(
            Slice(endpoints=(f"tcp://127.0.0.1:{17_001 + slice_id}",), share=share)
            for slice_id, share in enumerate(shares)
        ),
    )


def load_text(directory: Path, text: str) -> Feed:
    path = directory / "feed.toml"
    path.write_text(text)
    return Feed.load(path)


# The files in configs/


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.stem)
def test_each_config_loads_and_covers_every_symbol(path: Path) -> None:
    feed = Feed.load(path)
    assert feed.name == path.stem
    found = {feed.slice_of(b"S%d.trade" % number) for number in range(500)}
    assert found == set(range(len(feed.slices)))


def test_ports_of_all_configs_differ_and_are_not_ephemeral() -> None:
    ports = [
        int(endpoint.rpartition(":")[2])
        for path in CONFIG_FILES
        for part in Feed.load(path).slices
        for endpoint in part.endpoints
    ]
    assert len(set(ports)) == len(ports) >= 12
    assert all(1_024 < port < 32_768 for port in ports)


def test_local_config_names_every_setting_with_its_default() -> None:
    text = (CONFIGS / "local.toml").read_text().replace("\n# ", "\n")
    for field in msgspec.structs.fields(Feed):
        if field.name in {"name", "slices"}:
            continue
        line = next(line for line in text.splitlines() if line.startswith(f"{field.name} = "))
        value = line.partition("=")[2].partition(" #")[0].strip()
        assert msgspec.toml.decode(f"value = {value}") == {"value": field.default}, line


# Loading


def test_every_setting_is_loaded(tmp_path: Path) -> None:
    feed = load_text(
        tmp_path,
        """
        name = "full"
        schema = "itch50"
        key_bytes = 4
        topic = "{symbol}.x.{type}"
        block_bytes = 65_536
        linger_ns = 1_000
        heartbeat_ns = 5_000_000
        max_lag_ns = 7
        checksum = false
        max_topics = 9
        [[slices]]
        endpoints = ["tcp://10.0.0.1:5000", "tcp://10.1.0.1:5000"]
        prefixes = ["A", "B"]
        cpus = [1, 2]
        io_cpus = [3]
        interface = "10.0.0.2"
        [[slices]]
        endpoints = ["tcp://[fe80::1]:5000"]
        prefixes = ["Ä"]
        """,
    )
    assert feed == Feed(
        name="full",
        schema="itch50",
        key_bytes=4,
        topic="{symbol}.x.{type}",
        block_bytes=65_536,
        linger_ns=1_000,
        heartbeat_ns=5_000_000,
        max_lag_ns=7,
        checksum=False,
        max_topics=9,
        slices=(
            Slice(
                endpoints=("tcp://10.0.0.1:5000", "tcp://10.1.0.1:5000"),
                prefixes=("A", "B"),
                cpus=(1, 2),
                io_cpus=(3,),
                interface="10.0.0.2",
            ),
            Slice(endpoints=("tcp://[fe80::1]:5000",), prefixes=("Ä",)),
        ),
    )
    assert feed.slice_of("Äpfel.trade".encode()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'x'\n" + ONE_SLICE, "unknown key 'nmae', did you mean 'name'?"),
        (
            "name = 'x'\n" + ONE_SLICE + "endpoint = 1",
            "unknown key 'slices[0].endpoint', did you mean 'endpoints'?",
        ),
        (
            "name = 'x'\n" + ONE_SLICE + "zzz = 1",
            ("unknown key 'slices[0].zzz', expected one of endpoints, prefixes, share, cpus, io_cpus, interface"),
        ),
        ("name = 'x'\n[[slice]]\n", "unknown key 'slice', did you mean 'slices'?"),
        (ONE_SLICE, "key 'name' was missing"),
        ("name = 'x'\nslices = [{}]", "slices[0]: key 'endpoints' was missing"),
        ("name = 3\n" + ONE_SLICE, "name was 3, expected str"),
        ("name = 'x'\nkey_bytes = '1'\n" + ONE_SLICE, "key_bytes was '1', expected int"),
        ("name = 'x'\nkey_bytes = true\n" + ONE_SLICE, "key_bytes was True, expected int"),
        ("name = 'x'\nkey_bytes = 1.0\n" + ONE_SLICE, "key_bytes was 1.0, expected int"),
        ("name = 'x'\nchecksum = 1\n" + ONE_SLICE, "checksum was 1, expected bool"),
        ("name = 'x'\nslices = 3", "slices was 3, expected array"),
        ("name = 'x'\nslices = [3]", "slices[0] was 3, expected table"),
        (
            "name = 'x'\n" + ONE_SLICE + "cpus = [1, 'a']",
            "slices[0].cpus[1] was 'a', expected int",
        ),
        (
            "name = 'x'\n" + ONE_SLICE + "share = [1]",
            "slices[0].share was [1], expected array of length 2",
        ),
        (
            "name = 'x'\n" + ONE_SLICE + "prefixes = 'A'",
            "slices[0].prefixes was 'A', expected array",
        ),
        (
            f"name = '{'x' * 300}'\nslices = [{{endpoints = '{'y' * 300}'}}]",
            f"slices[0].endpoints was '{'y' * 59}..., expected array",
        ),
        (
            "name = 'x'\n" + ONE_SLICE + "interface = 'eth0'",
            "slices[0]: interface was 'eth0', expected an IP address",
        ),
        ("name = 'x'\nkey_bytes = 9\n" + ONE_SLICE, "feed 'x': key_bytes was 9, expected 0 to 8"),
    ],
)
def test_wrong_file_is_refused_with_key_place_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    assert str(caught.value) == f"{tmp_path / 'feed.toml'}: {message}"


def test_file_that_is_not_toml_is_refused_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"feed.toml is not TOML: .*line 2, column 7"):
        load_text(tmp_path, "schema = 'raw'\nname =\n")
    (tmp_path / "feed.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match=r"feed.toml is not TOML: .*utf-8.*0xff"):
        Feed.load(tmp_path / "feed.toml")


def test_missing_file_is_refused_with_the_place_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        Feed.load("gone.toml")
    assert str(caught.value) == f"feed file 'gone.toml' was not found in {tmp_path}"
    with pytest.raises(ConfigError, match=r"feed file '.*gone.toml' was not found$"):
        Feed.load(tmp_path / "gone.toml")


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        Feed.load(tmp_path)


# Single settings


@pytest.mark.parametrize(
    ("setting", "lowest", "highest"),
    [
        ("key_bytes", 0, 8),
        ("block_bytes", 4_096, 16 * 1_048_576),
        ("linger_ns", 0, 1_000_000_000),
        ("heartbeat_ns", 1_000_000, 3_600_000_000_000),
        ("max_lag_ns", 1, 2**63 - 1),
        ("max_topics", 1, 2**31 - 1),
    ],
)
def test_number_outside_its_range_is_refused(setting: str, lowest: int, highest: int) -> None:
    feed = feed_of_prefixes(())
    for value in (lowest, highest):
        assert getattr(msgspec.structs.replace(feed, **{setting: value}), setting) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ConfigError) as caught:
            msgspec.structs.replace(feed, **{setting: value})
        message = f"feed 'test': {setting} was {value}, expected {lowest} to {highest}"
        assert str(caught.value) == message


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "ä", "x" * 65])
def test_name_that_is_no_directory_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 64 letters, digits"):
        msgspec.structs.replace(feed_of_prefixes(()), name=name)


@pytest.mark.parametrize("topic", ["", "{symbol", "{}", "{0}", "{symbol.x}", "{type!r}", "{a:>3}"])
def test_malformed_topic_template_is_refused(topic: str) -> None:
    with pytest.raises(ConfigError, match="feed 'test': topic template"):
        msgspec.structs.replace(feed_of_prefixes(()), topic=topic)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("udp://127.0.0.1:5000", "expected tcp://, ipc:// or inproc://"),
        ("127.0.0.1:5000", "expected tcp://, ipc:// or inproc://"),
        ("", "expected tcp://, ipc:// or inproc://"),
        ("tcp://", "expected an address behind tcp://"),
        ("ipc://", "expected an address behind ipc://"),
        ("inproc://", "expected an address behind inproc://"),
        ("tcp://127.0.0.1", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1:", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1:*", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1:-1", "expected tcp://HOST:PORT"),
        ("tcp://fe80::1:5000", "expected tcp://HOST:PORT"),
        ("tcp://10.0.0.1:0;10.0.0.2:5000", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1:0", "was 0, expected 1 to 65535"),
        ("tcp://127.0.0.1:65536", "was 65536, expected 1 to 65535"),
        ("tcp://127.0.0.300:5000", "expected an address or a name"),
        ("tcp://[fe80]:5000", "expected an address or a name"),
        ("tcp://two words:5000", "expected an address or a name"),
        ("tcp://*:5000", "expected the one address that subscribers connect to"),
        ("tcp://0.0.0.0:5000", "expected the one address that subscribers connect to"),
        ("tcp://[::]:5000", "expected the one address that subscribers connect to"),
        ("ipc://*", "expected a path to connect to"),
        ("ipc:///" + "x" * 103, "was 104 bytes long, expected at most 103"),
    ],
)
def test_malformed_endpoint_is_refused(endpoint: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Slice(endpoints=(endpoint,))
    assert repr(endpoint) in str(caught.value)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:1",
        "tcp://md1.example.com:65535",
        "tcp://[::1]:5000",
        "ipc:///run/feed/0",
        "ipc://@abstract",
        "inproc://feed-0",
    ],
)
def test_every_form_of_endpoint_is_taken(endpoint: str) -> None:
    assert Slice(endpoints=(endpoint,)).endpoints == (endpoint,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoints": ()}, "endpoints were 0, expected 1 or 2 (lines A and B)"),
        (
            {"endpoints": ("inproc://a", "inproc://b", "inproc://c")},
            "endpoints were 3, expected 1 or 2 (lines A and B)",
        ),
        ({"prefixes": ("\0x",)}, "prefix b'\\x00x' starts with a zero byte"),
        ({"prefixes": ("x" * 65_536,)}, "was 65536 bytes long, expected at most 65535"),
        ({"prefixes": ("A",), "share": (0, 1)}, "prefixes and a share were both set"),
        ({"share": (2, 2)}, "share was 2 of 2, expected 0 to 1"),
        ({"share": (-1, 2)}, "share was -1 of 2, expected 0 to 1"),
        ({"share": (0, 0)}, "share was one of 0, expected one of 1 to 65536"),
        ({"cpus": (-1,)}, "cpus had CPU -1, expected 0 to 65535"),
        ({"io_cpus": (2**64,)}, f"io_cpus had CPU {2**64}, expected 0 to 65535"),
        ({"cpus": (1, 1)}, "cpus were (1, 1), expected each CPU once"),
        ({"interface": "eth0"}, "interface was 'eth0', expected an IP address"),
        ({"interface": "0.0.0.0"}, "expected the address of one interface"),
        (
            {"endpoints": ("tcp://a:1", "ipc://b"), "interface": "10.0.0.1"},
            "interface was '10.0.0.1' beside endpoint 'ipc://b', expected tcp endpoints only",
        ),
        ({"cpus": "1"}, "cpus was '1', expected array"),
    ],
)
def test_wrong_slice_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Slice(**{"endpoints": ("tcp://127.0.0.1:5000",), **settings})
    assert message in str(caught.value)


# Slices together


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        (
            (("A", "B"), ("C", "AA")),
            "prefix 'AA' of slice 1 overlaps with prefix 'A' of slice 0",
        ),
        (
            (("AA",), ("B", "A")),
            "prefix 'AA' of slice 0 overlaps with prefix 'A' of slice 1",
        ),
        ((("A",), ("A",)), "prefix 'A' of slice 1 overlaps with prefix 'A' of slice 0"),
        ((("",), ("A",)), "prefix 'A' of slice 1 overlaps with prefix '' of slice 0"),
        ((("A",), ()), "slice 1 has neither prefixes nor a share"),
        ((), "slices were 0, expected 1 to 65536"),
    ],
)
def test_prefixes_that_do_not_fit_together_are_refused(prefixes: tuple[tuple[str, ...], ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feed_of_prefixes(*prefixes)
    assert str(caught.value).startswith(f"feed 'test': {message}")


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (((0, 3), (2, 3)), "share 1 of 3 is held by no slice"),
        (((1, 2), (1, 2)), "share 1 of 2 is held by slice 0 and by slice 1, expected one holder"),
        (((0, 2), (1, 3)), "share of slice 1 was one of 3, expected one of 2 as in slice 0"),
    ],
)
def test_shares_that_do_not_cover_each_topic_once_are_refused(
    shares: tuple[tuple[int, int], ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        feed_of_shares(*shares)
    assert str(caught.value) == f"feed 'test': {message}"


def test_prefixes_mixed_with_shares_are_refused() -> None:
    with pytest.raises(ConfigError, match="slice 1 has a share but others have none"):
        Feed(
            name="test",
            slices=(
                Slice(endpoints=("inproc://a",), prefixes=("A",)),
                Slice(endpoints=("inproc://b",), share=(0, 1)),
            ),
        )


@pytest.mark.parametrize(
    "endpoints", [(("inproc://a",), ("inproc://b", "inproc://a")), (("inproc://a", "inproc://a"),)]
)
def test_endpoint_used_twice_is_refused(endpoints: tuple[tuple[str, ...], ...]) -> None:
    last = len(endpoints) - 1
    with pytest.raises(ConfigError) as caught:
        Feed(
            name="test",
            slices=tuple(
                Slice(endpoints=lines, share=(index, len(endpoints))) for index, lines in enumerate(endpoints)
            ),
        )
    assert str(caught.value) == (
        f"feed 'test': endpoint 'inproc://a' of slice {last} is also an endpoint of slice 0, "
        "expected each endpoint once"
    )


def test_feed_made_in_code_is_checked_like_a_file() -> None:
    slices: Any = [{"endpoints": ["inproc://a"]}]
    feed = Feed(name="test", slices=slices)
    assert feed.slices == (Slice(endpoints=("inproc://a",)),)
    wrong: Any = "7"
    with pytest.raises(ConfigError, match="feed 'test': key_bytes was '7', expected int"):
        Feed(name="test", slices=slices, key_bytes=wrong)


def test_feed_is_frozen_hashable_and_survives_pickling() -> None:
    feed = feed_of_prefixes(("A",), ("B",))
    with pytest.raises(AttributeError):
        feed.name = "other"  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(feed))
    assert copy == feed
    assert hash(copy) == hash(feed)
    assert copy.slice_of(b"B") == 1


def test_repr_is_short() -> None:
    assert repr(feed_of_prefixes(("A", "B"), ("C",))) == "Feed('test', schema='raw', slices=2)"
    slices = (
        Slice(endpoints=("tcp://a:1", "tcp://b:1")),
        Slice(endpoints=("tcp://a:1",), prefixes=("A",)),
        Slice(endpoints=("tcp://a:1",), prefixes=("A", "B")),
        Slice(endpoints=("tcp://a:1",), share=(0, 2)),
    )
    assert [repr(part) for part in slices] == [
        "Slice(tcp://a:1 + tcp://b:1, all topics)",
        "Slice(tcp://a:1, 1 prefix)",
        "Slice(tcp://a:1, 2 prefixes)",
        "Slice(tcp://a:1, share 0 of 2)",
    ]


# Feeds for this machine


def test_local_feed_has_free_ports_that_no_other_local_feed_has() -> None:
    feeds = [Feed.local("demo", slices=3, lines=2, schema="itch50", key_bytes=2) for _ in range(20)]
    endpoints = [e for feed in feeds for part in feed.slices for e in part.endpoints]
    assert len(set(endpoints)) == 20 * 3 * 2
    assert (feeds[0].name, feeds[0].schema, feeds[0].key_bytes) == ("demo", "itch50", 2)
    for endpoint in endpoints[:6]:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        with socket.socket() as probe:
            probe.bind((host, int(port)))


def test_local_ipc_paths_are_private_and_end_with_the_process() -> None:
    script = (
        "import os; from pathlib import Path; from blackbox.feed import Feed\n"
        "feed = Feed.local('demo', transport='ipc', lines=2)\n"
        "paths = [Path(e.removeprefix('ipc://')) for s in feed.slices for e in s.endpoints]\n"
        "assert len({*paths}) == 4\n"
        "directory, = {path.parent for path in paths}\n"
        "assert directory.stat().st_mode & 0o777 == 0o700\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0); assert directory.is_dir(); print(directory)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CONFIGS.parent)},
    )
    directory = Path(done.stdout.strip())
    assert directory.name.startswith("blackbox-")
    assert not directory.exists()


def test_local_inproc_names_differ_between_feeds() -> None:
    feeds = [Feed.local("demo", slices=1, transport="inproc") for _ in range(2)]
    assert feeds[0].slices[0].endpoints != feeds[1].slices[0].endpoints


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
def test_local_feed_of_each_transport_takes_all_topics(
    transport: Literal["tcp", "ipc", "inproc"],
) -> None:
    feed = Feed.local("demo", slices=3, transport=transport)
    assert {feed.slice_of(b"S%d.t" % number) for number in range(100)} == {0, 1, 2}


# Routing


def test_uncovered_topic_is_refused_with_the_known_prefixes() -> None:
    feed = feed_of_prefixes(("A",), ("C", "B"))
    with pytest.raises(ConfigError) as caught:
        feed.slice_of(b"X.trade")
    assert str(caught.value) == (
        "topic b'X.trade' is covered by no slice, known prefixes: 'A' (slice 0), 'B' (slice 1), 'C' (slice 1)"
    )
    assert feed.slices_for(b"X") == ()


def test_error_of_uncovered_topic_stays_short_with_many_prefixes() -> None:
    feed = feed_of_prefixes(tuple(f"S{number:04}" for number in range(1_000)))
    with pytest.raises(ConfigError, match=r"'S0007' \(slice 0\) and 992 more$"):
        feed.slice_of(b"X")


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (b"", "topic was empty, expected at least one byte"),
        (b"\0x", "topic b'\\x00x' starts with a zero byte, which is reserved for control"),
        (b"x" * 65_536, "was 65536 bytes long, expected at most 65535"),
        ("AAPL", "topic was 'AAPL' (str), expected bytes"),
    ],
)
@pytest.mark.parametrize("feed", [feed_of_prefixes(()), feed_of_shares((0, 1))], ids=repr)
def test_topic_that_cannot_be_sent_is_refused(feed: Feed, topic: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feed.slice_of(topic)
    assert message in str(caught.value)
    if topic:
        with pytest.raises(ConfigError):
            feed.slices_for(topic)


def test_longest_topic_is_taken_and_is_the_longest_of_a_block() -> None:
    assert feed_of_prefixes(()).slice_of(b"x" * 65_535) == 0
    assert routing.MAX_TOPIC_BYTES == layout.MAX_TOPIC_BYTES == 65_535


def test_single_slice_without_prefixes_takes_everything() -> None:
    feed = feed_of_prefixes(())
    assert feed.slice_of(b"anything") == 0
    assert feed.slices_for(b"") == feed.slices_for(b"any") == (0,)


def test_share_is_crc32_of_the_symbol_and_slices_may_hold_shares_in_any_order() -> None:
    # CRC-32 of "123456789" is 0xCBF43926, the check value in every catalogue of CRCs.
    feed = feed_of_shares((2, 4), (3, 4), (0, 4), (1, 4))
    assert 0xCBF43926 % 4 == 2
    assert feed.slice_of(b"123456789") == feed.slice_of(b"123456789.trade.x") == 0


def test_prefix_with_a_dot_fixes_the_slice_and_one_without_does_not() -> None:
    feed = feed_of_shares((0, 2), (1, 2))
    assert feed.slices_for(b"AAPL.") == (feed.slice_of(b"AAPL.trade"),)
    assert feed.slices_for(b"AAPL") == feed.slices_for(b"") == (0, 1)


# An alphabet this small makes shared prefixes and dots frequent.
topics = st.binary(min_size=1, max_size=6).map(lambda raw: bytes(b"AB."[byte % 3] for byte in raw))
prefix_texts = st.text("AB.", max_size=4)


@st.composite
def feeds(draw: st.DrawFn) -> Feed:
    if draw(st.booleans()):
        of = draw(st.integers(1, 5))
        return feed_of_shares(*((index, of) for index in draw(st.permutations(range(of)))))
    sets = draw(st.lists(st.lists(prefix_texts, min_size=1, max_size=4), min_size=1, max_size=4))
    try:
        return feed_of_prefixes(*map(tuple, sets))
    except ConfigError:
        assume(False)  # two of them overlap
        raise


def slow_slices_of(feed: Feed, topic: bytes) -> list[int]:
    """Return the slices of a topic, from the definition alone."""
    found = []
    for slice_id, part in enumerate(feed.slices):
        if part.share is not None:
            index, of = part.share
            if crc32(topic.split(b".")[0]) % of == index:
                found.append(slice_id)
        elif any(topic.startswith(prefix.encode()) for prefix in part.prefixes):
            found.append(slice_id)
    return found


@given(feeds(), topics)
def test_topic_falls_into_the_slice_of_the_reference(feed: Feed, topic: bytes) -> None:
    expected = slow_slices_of(feed, topic)
    if expected:
        assert [feed.slice_of(topic)] == expected
    else:
        with pytest.raises(ConfigError, match="is covered by no slice"):
            feed.slice_of(topic)


@given(feeds(), topics, st.data())
def test_topic_falls_into_a_slice_of_each_of_its_prefixes(feed: Feed, topic: bytes, data: st.DataObject) -> None:
    prefix = topic[: data.draw(st.integers(0, len(topic)))]
    assert set(slow_slices_of(feed, topic)) <= set(feed.slices_for(prefix))


@given(feeds(), prefix_texts.map(str.encode))
def test_slices_of_a_prefix_are_ascending_and_each_can_hold_a_topic(feed: Feed, prefix: bytes) -> None:
    found = feed.slices_for(prefix)
    assert list(found) == sorted(set(found))
    for slice_id in found:
        part = feed.slices[slice_id]
        if part.share is None:
            candidates = [held.encode() for held in part.prefixes] + [prefix + b"A"]
        else:
            candidates = [prefix] + [prefix + b"%d" % number for number in range(200)]
        assert any(
            topic.startswith(prefix) and slow_slices_of(feed, topic) == [slice_id]
            for topic in (candidate or b"A" for candidate in candidates)
        )


@given(topics, topics, st.integers(0, 8))
def test_key_of_a_topic_starts_with_the_subscription_of_each_of_its_prefixes(
    prefix: bytes, rest: bytes, key_bytes: int
) -> None:
    feed = msgspec.structs.replace(feed_of_prefixes(()), key_bytes=key_bytes)
    topic = prefix + rest
    assert feed.key_of(topic).startswith(feed.subscription_of(prefix))
    assert len(feed.key_of(topic)) == min(key_bytes, len(topic))


@given(st.lists(st.lists(prefix_texts, min_size=1, max_size=3), min_size=1, max_size=3))
def test_prefixes_are_refused_exactly_when_a_topic_could_fall_into_two_slices(
    sets: list[list[str]],
) -> None:
    overlap = any(
        one.startswith(other) or other.startswith(one)
        for first, ones in enumerate(sets)
        for others in sets[first + 1 :]
        for one in ones
        for other in others
    )
    if overlap:
        with pytest.raises(ConfigError, match="overlaps with prefix"):
            feed_of_prefixes(*map(tuple, sets))
    else:
        feed_of_prefixes(*map(tuple, sets))
