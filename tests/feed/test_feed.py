"""Feeds: the files in `configs/`, loading, and the checks of each setting."""

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.block.form.format import END_BYTES, FLAG_FIXED, MAX_BODY_BYTES, body_layout
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.monitor import Monitor
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES, most_keys
from blackbox.feed.security import Security
from blackbox.feed.slice import Slice
from blackbox.feed.toml import from_document, to_toml
from tests.feed.made import feed_of_prefixes

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
CONFIG_FILES = sorted(CONFIGS.glob("*.toml"))
ONE_SLICE = '[[slices]]\nendpoints = ["tcp://127.0.0.1:17001"]\n'
NAMED = f"name = 'x'\n{ONE_SLICE}"
SECURED = f"{NAMED}[security]\n"


def load_text(directory: Path, text: str) -> Feed:
    path = directory / "feed.toml"
    path.write_text(text)
    return Feed.load(path)


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.stem)
def test_each_config_covers_every_symbol_and_survives_a_round_trip(path: Path, tmp_path: Path) -> None:
    feed = Feed.load(path)
    assert feed.name == path.stem
    found = {feed.slice_of(b"S%d.trade" % number) for number in range(500)}
    assert found == set(range(len(feed.slices)))
    assert load_text(tmp_path, to_toml(feed)) == feed


@given(
    st.lists(st.text(min_size=1).filter(lambda text: text[0] != "\0"), min_size=1), st.text(min_size=1), st.booleans()
)
def test_any_text_survives_a_round_trip(prefixes: list[str], path: str, checksum: bool) -> None:
    part = Slice(endpoints=("tcp://127.0.0.1:17001", "shm://a"), prefixes=tuple(prefixes), allowed_keys=path)
    security = Security(key=path, server_keys=(path, path), allowed_keys="keys")
    feed = Feed(name="a", slices=(part,), security=security, checksum=checksum, linger_ns=7)
    assert from_document(msgspec.toml.decode(to_toml(feed)), Feed) == feed


def test_ports_of_all_configs_differ_and_are_not_ephemeral() -> None:
    slices = [feed_slice for path in CONFIG_FILES for feed_slice in Feed.load(path).slices]
    ports = [int(endpoint.rpartition(":")[2]) for feed_slice in slices for endpoint in feed_slice.endpoints]
    assert len(set(ports)) == len(ports) >= 12
    assert all(1_024 < port < 32_768 for port in ports)


def test_local_config_names_every_setting_with_its_default() -> None:
    text = (CONFIGS / "local.toml").read_text()
    for name, struct in ("security", Security), ("monitor", Monitor):
        part = text.partition(f"\n#     [{name}]\n")[2].partition("\n\n")[0]
        named = [line.removeprefix("#     ").split(" = ")[0] for line in part.splitlines()]
        assert named == [field.name for field in msgspec.structs.fields(struct)]
    text = text.replace("\n# ", "\n")
    for field in msgspec.structs.fields(Feed):
        if field.name in {"name", "slices", "security", "monitor"}:
            continue
        line = next(line for line in text.splitlines() if line.startswith(f"{field.name} = "))
        value = line.partition("=")[2].partition(" #")[0].strip()
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        assert msgspec.toml.decode(f"value = {value}") == {"value": default}, line


def test_every_setting_is_loaded(tmp_path: Path) -> None:
    text = """
        name = "full"
        schema = "itch50"
        key_bytes = 4
        archives = ["tcp://10.0.0.1:6000"]
        topic = "{symbol}.x.{type}"
        symbol = "before_first"
        separator = "/"
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
    """
    feed = load_text(tmp_path, text)
    assert msgspec.toml.decode(to_toml(feed)) == msgspec.toml.decode(text)
    assert feed.slice_of("Äpfel.trade".encode()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'x'\n" + ONE_SLICE, "unknown key 'nmae', did you mean 'name'?"),
        (NAMED + "endpoint = 1", "unknown key 'slices[0].endpoint', did you mean 'endpoints'?"),
        (
            NAMED + "zzz = 1",
            f"unknown key 'slices[0].zzz', expected one of {', '.join(Slice.__struct_fields__)}",
        ),
        (ONE_SLICE, "key 'name' was missing"),
        ("name = 'x'\nslices = [{}]", "slices[0]: key 'endpoints' was missing"),
        ("name = 3\n" + ONE_SLICE, "name was 3, expected str"),
        ("key_bytes = true\n" + NAMED, "key_bytes was True, expected int"),
        ("key_bytes = 1.0\n" + NAMED, "key_bytes was 1.0, expected int"),
        ("checksum = 1\n" + NAMED, "checksum was 1, expected bool"),
        ("name = 'x'\nslices = 3", "slices was 3, expected array"),
        ("name = 'x'\nslices = [3]", "slices[0] was 3, expected table"),
        (NAMED + "cpus = [1, 'a']", "slices[0].cpus[1] was 'a', expected int"),
        (NAMED + "share = [1]", "slices[0].share was [1], expected array of length 2"),
        (
            f"name = 'x'\nslices = [{{endpoints = '{'y' * 300}'}}]",
            f"slices[0].endpoints was '{'y' * 59}..., expected array",
        ),
        (NAMED + "interface = 'eth0'", "slices[0]: interface was 'eth0', expected an IP address"),
        ("key_bytes = 9\n" + NAMED, "feed 'x': key_bytes was 9, expected 0 to 8"),
        (
            "trace_every = 1000\n" + NAMED,
            "feed 'x': trace_every was 1000, expected 0 or a power of two, such as 1024",
        ),
        ("day_start = '0930'\n" + NAMED, "feed 'x': day_start was '0930', expected HH:MM or HH:MM:SS"),
        ("day_start = '09:30:00.5'\n" + NAMED, "feed 'x': day_start was '09:30:00.5', expected HH:MM or HH:MM:SS"),
        ("separator = ''\n" + NAMED, "feed 'x': separator was '', expected one ASCII character other than zero"),
        (SECURED, "security: key 'key' was missing"),
        (SECURED + "kye = 'x'", "unknown key 'security.kye', did you mean 'key'?"),
        (SECURED + "key = 3", "security.key was 3, expected str"),
        (SECURED + "key = ''", "security: key was empty, expected the path of a secret key file"),
        (
            SECURED + "key = 'x'\nserver_keys = ['']",
            "security: server_keys had an empty path, expected paths of public key files",
        ),
    ],
)
def test_wrong_file_is_refused_with_key_position_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    assert str(caught.value) == f"{tmp_path / 'feed.toml'}: {message}"


def test_file_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"feed.toml is not TOML: .*line 2, column 7"):
        load_text(tmp_path, "schema = 'raw'\nname =\n")
    with pytest.raises(ConfigError, match=r"feed.toml is not TOML: Exceeds the limit"):
        load_text(tmp_path, f"key_bytes = {'9' * 5_000}")
    (tmp_path / "feed.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match=r"feed.toml is not TOML: .*utf-8.*0xff"):
        Feed.load(tmp_path / "feed.toml")
    with pytest.raises(ConfigError, match=r"cannot be read: it is a directory"):
        Feed.load(tmp_path)
    with pytest.raises(ConfigError, match=r"feed file '.*gone.toml' was not found$"):
        Feed.load(tmp_path / "gone.toml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"feed file 'gone.toml' was not found in {tmp_path}$"):
        Feed.load("gone.toml")


@pytest.mark.parametrize(
    ("setting", "lowest", "highest"),
    [
        ("key_bytes", 0, 8),
        ("channels", 1, 128),
        ("block_bytes", 4_096, 16 * 1_048_576),
        ("linger_ns", 0, 1_000_000_000),
        ("heartbeat_ns", 1_000_000, 3_600_000_000_000),
        ("max_lag_ns", 1, 2**63 - 1),
        ("max_topics", 1, 2**31 - 1),
        ("trace_every", 0, 2**62),
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


@pytest.mark.parametrize("key_bytes", range(3, MAX_KEY_BYTES + 1))
def test_a_heartbeat_of_the_most_keys_fits_into_a_block(key_bytes: int) -> None:
    most = most_keys(key_bytes)
    feed = msgspec.structs.replace(feed_of_prefixes(()), key_bytes=key_bytes, max_topics=most)
    assert feed.max_keys == most

    def heartbeat_bytes(keys: int) -> int:
        return int(body_layout(keys, keys, key_bytes * keys, END_BYTES * keys, FLAG_FIXED).end)

    assert heartbeat_bytes(most) <= MAX_BODY_BYTES < heartbeat_bytes(most + 2)
    with pytest.raises(ConfigError, match=f"max_topics was {most + 1}, expected at most {most} with key_bytes = "):
        msgspec.structs.replace(feed, max_topics=most + 1)


def test_names_that_are_no_directories_and_malformed_topic_templates_are_refused() -> None:
    for name in ("", ".hidden", "a/b", "a b", "ä", "x" * 65):
        with pytest.raises(ConfigError, match="expected 1 to 64 letters, digits"):
            Feed.local(name)
    for topic in ("", "{symbol", "{}", "{symbol.x}", "{type!r}", "{a:>3}"):
        with pytest.raises(ConfigError, match="feed 'test': topic template"):
            msgspec.structs.replace(feed_of_prefixes(()), topic=topic)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoints": ()}, "endpoints were 0, expected 1 or 2 (lines A and B)"),
        ({"prefixes": ("\0x",)}, "prefix b'\\x00x' starts with a zero byte"),
        ({"prefixes": ("x" * 65_536,)}, "was 65536 bytes long, expected at most 65535"),
        ({"prefixes": ("A",), "share": (0, 1)}, "prefixes and a share were both set"),
        ({"share": (2, 2)}, "share was 2 of 2, expected 0 to 1"),
        ({"share": (0, 0)}, "share was one of 0, expected one of 1 to 65536"),
        ({"cpus": (-1,)}, "cpus had CPU -1, expected 0 to 65535"),
        ({"io_cpus": (2**64,)}, f"io_cpus had CPU {2**64}, expected 0 to 65535"),
        ({"cpus": (1, 1)}, "cpus were (1, 1), expected each CPU once"),
        ({"idle": "sleep"}, "idle was 'sleep', expected 'park' or 'spin'"),
        ({"interface": "0.0.0.0"}, "expected the address of one interface"),
        (
            {"endpoints": ("tcp://a:1", "ipc://b"), "interface": "10.0.0.1"},
            "interface was '10.0.0.1' with endpoint 'ipc://b', expected tcp or udp endpoints",
        ),
        ({"cpus": "1"}, "cpus was '1', expected array"),
    ],
)
def test_wrong_slice_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Slice(**{"endpoints": ("tcp://127.0.0.1:5000",), **settings})
    assert message in str(caught.value)


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
