"""Wrong arguments and wrong files: one clear error and a status, and nothing is written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from blackbox import Feed, Publisher
from blackbox.cli.ui.status import Status
from tests.cli.commands import assert_one_line, invoke, write_feed
from tests.cli.days import recorded_day, trade
from tests.cli.test_positions import kept
from tests.journals import Day, Put

FILES: Final = {
    "slice.toml": 'name = "x"\nslice = 1',
    "key.toml": 'name = "x"\n[security]\nkey = "none"\n[[slices]]\nendpoints = ["tcp://127.0.0.1:1"]',
    "no_directory.toml": 'feed = "feed.toml"\n',
    "fsink.toml": 'feed = "feed.toml"\ndirectory = "kept"\nfsink = "block"\n',
    "no_feed.toml": 'feed = "none.toml"\ndirectory = "kept"\n',
    "no_ids.toml": 'feed = "feed.toml"\ndirectory = "kept"\nremember_ids = 0\n',
    "unfinished.toml": "feed = ",
    "huge.toml": f"feed = {'9' * 5_000}",
    "text": "no market data",
    "empty_20200130": "",
}
"""Files that commands refuse."""

ERRORS: Final = {
    "publish synthetic --feed FEED": "source was 'synthetic', expected NAME:ARGUMENT",
    "publish itch:x --feed FEED": "source was 'itch', expected one of: .*itch50",
    "publish synthetic:10 -o seed --feed FEED": "option was 'seed', expected NAME=VALUE",
    "publish synthetic:10 -o sead=1 --feed FEED": "option was 'sead', expected one of: seed",
    "publish synthetic:10 --feed no.toml": "feed file 'no.toml' was not found",
    "publish synthetic:10 --feed FEED": r"slice 0: endpoint tcp://127\.0\.0\.1:\d+ is in use",
    "publish synthetic:10 --feed FREE --timeout 0.1": r"feed 'cli' \(5 slices\): too few subscribers after 0\.1 s: "
    "slice 0 has 0, slice 1 has 0, .*expected 1",
    # These are reported before binding: it would be another error.
    "publish itch50:DIR/day.itch --feed FEED": r"DIR/day\.itch: cannot be read: No such file .* expected an ITCH 5\.0",
    "publish itch50:/proc/self/mem --feed FEED": "/proc/self/mem: cannot be read: Input/output error, expected an",
    "publish itch50:DIR/text --feed FEED": "text: the file name tells no one date .* `--option date=2019-12-30` to pub",
    "publish itch50:DIR/empty_20200130 --feed FEED": "empty_20200130 .*has no messages, expected at least one",
    "publish iex:DIR --feed FEED": "DIR: cannot be read: Is a directory, expected a pcap or pcapng capture",
    "publish moldudp64://127.0.0.1:1 synthetic:10 --feed FEED": "is live and was given with 1 more: publish it alone",
    "import synthetic:10 --out DIR/out --feed TAPE": "feed 'cli' has schema 'tape' but source 'synthetic:10' has 'itch",
    "demo iex:nothing.pcap": "nothing.pcap",
    "subscribe --feed no.toml": "feed file 'no.toml' was not found",
    "subscribe --feed FREE --timeout 0.1": r"slice \d: no publisher at tcp://.* confirmed the subscription in 0.1 s",
    "record --serve": "feed 'local' had no archives, expected endpoints such as",
    "serve nowhere": "nowhere/local was not a directory, expected the recordings of feed 'local'",
    "stat --feed no.toml": "feed file 'no.toml' was not found",
    **dict.fromkeys(
        [f"stat --feed FREE --timeout 0.2 {option}" for option in ("--once", "", "--json")],
        r"feed 'cli': no publisher was heard in 0\.2 s at tcp://",
    ),
    "tap FEED --field prise": "--field was 'prise', expected one of .*price",
    "trace FEED --every 1000": "--every was 1000, expected a power of two, such as 1024",
    "relay FEED ENDPOINT --plain": "endpoint ENDPOINT is in use",
    "relay FEED FREE --plain": "expected tcp://",
    "relay FEED FREE": "below the relay had 5 slices, expected 2",
    "control ipc:///no/where pause --timeout 0": "no replay answered at ipc:///no/where",
    "control localhost:17300": "endpoint was 'localhost:17300', expected tcp://",
    "replay DAY --feed FREE --keep-gaps": "gaps were to be kept on feed 'cli', which has other slices or keys",
    "replay DAY --serve mold://127.0.0.1:1": "scheme of a venue server was 'mold', expected one of",
    "replay DAY --serve iextp://127.0.0.1:1": "but iextp:// serves iex_deep10 and iex_tops16",
    "replay DAY --serve moldudp64://127.0.0.1:1/x": "URL had the path '/x', expected none",
    "replay DAY --serve moldudp64://127.0.0.1:1?mtv=1": "option was mtv=1, expected one of .*'mtu'",
    "replay DAY --serve soupbintcp://192.0.2.1:1": "could not be bound: it is not an address of this",
    "replay DAY NEXT --serve moldudp64://127.0.0.1:1": "days 2026-11-20 to 2026-11-21 were to be served, expected one",
    "dump DIR/recorded": "holds 2 days, expected one of them",
    "export DAY --out DIR/none.itch --symbol ''": "symbols had an empty one",
    "bridge ws://127.0.0.1 --feed FEED": "URL was 'ws://127.0.0.1', expected ws://HOST:PORT",
    "bridge http://127.0.0.1:80 --feed FEED": "scheme of a bridge was 'http', expected one of: .*redis, .*ws",
    "bridge ws://127.0.0.1:0 -o keep=5 --feed FEED": "option was keep=5, expected one of ws://: origins, limit",
    "bridge ws://127.0.0.1:0 -o limit=many --feed FEED": "option was limit=many, expected a number, such as limit=1000",
    "feed new DIR/new.toml --schema nothing": "schema was 'nothing', expected one of",
    "feed new DIR/new.toml --name 'a b'": "name was 'a b', expected 1 to 64 letters",
    "feed new DIR/new.toml --host 0.0.0.0": r"host of endpoint 'tcp://0.0.0.0:\d+' was '0.0.0.0', expected the address",
    "feed new DIR/new.toml --port 65535": "port was 65535 and 2 are needed, expected at most 65534",
    "feed check DIR/slice.toml": "unknown key 'slice', did you mean 'slices'",
    "feed check DIR/key.toml": "secret key file .*none.* was not found",
    "keys new ../desk --out DIR/keys": "name was '../desk', expected 1 to 64 letters",
    "hub DIR/no_directory.toml": "key 'directory' was missing",
    "hub DIR/fsink.toml": "unknown key 'fsink', did you mean 'fsync'?",
    "hub DIR/no_feed.toml": "none.toml' was not found",
    "hub DIR/no_ids.toml": "remember_ids was 0",
    "hub DIR/unfinished.toml": "is not TOML",
    "hub DIR/huge.toml": "is not TOML",
    "positions DIR/none": "was no directory, expected the positions of consumers",
    "positions DIR --forget": "--forget was given without --name",
    "positions DIR --to 0:1:2": "--to was given without --name",
    "positions DIR --name strategy-1 --to 0:1": "to was '0:1', expected SLICE:EPOCH:SEQUENCE",
    "positions DIR --name strategy-1 --to 0:1:A:2": "to was '0:1:A:2', expected SLICE:EPOCH:SEQUENCE",
    "positions DIR --name strategy-1 --to 0:1:2 --forget": "choose one",
    "positions DIR --name unknown": "expected the positions of consumer 'unknown'",
    "positions DIR --name unknown --forget": "expected the positions of consumer 'unknown'",
    "positions DIR --name ../x --forget": "name was '../x'",
}
"""Commands that end with status 1, and patterns of their errors."""

WRONG_USAGE: Final = {
    "publish": "",
    "publish synthetic:10 --when-full block": "",
    "publish synthetic:10 --line A": "expected both --line and --epoch",
    "publish synthetic:10 --epoch 2026-01-05": "expected both --line and --epoch",
    "publish synthetic:10 --line A --epoch 09:30": "was '09:30', expected a date",
    "publish synthetic:10 --line A --epoch soon": "time was 'soon'",
    "subscribe --workers -1": "",
    "subscribe --on-slow ignore": "",
    "subscribe --max-lag 1e10": "",
    "subscribe --max-lag nan": "",
    "subscribe --start-grace 1e7": "",
    "record --fsync often": "",
    "record --compression rar": "",
    "record --segment-mib 0": "",
    "record --timeout -1": "",
    "record --keep-gib inf": "",
    "import synthetic:10 --out x --date 2026-13-01": "",
    "import synthetic:10 --out x --date today": "",
    "relay FEED tcp://127.0.0.1:5000 --plain --spare FEED": "",
    "relay FEED tcp://127.0.0.1:5000 --plain --name x": "",
    "relay FEED tcp://127.0.0.1:5000 --plain --hold 1": "",
    "relay FEED tcp://127.0.0.1:5000 --plain --when-full wait": "",
    "relay FEED FEED --in-the-clear": "",
    "stat --twice": "",
    "stat --timeout nan": "",
    "demo --count 0": "",
    "replay": "",
    "replay DAY --speed 0": "",
    "replay DAY --speed fast": "",
    "replay DAY --start noon": "",
    "replay DAY --slice x": "",
    "replay DAY --slice 7": "",
    "replay DAY --loop -1": "",
    "replay DAY --max-silence 0": "",
    "replay DAY --max-silence 1e10": "",
    "replay DAY --serve moldudp64://127.0.0.1:1 --feed FEED": "--feed was given with --serve",
    "replay DAY --serve moldudp64://127.0.0.1:1 --keep-gaps": "--keep-gaps was given with --serve",
    "control": "",
    "control tcp://127.0.0.1:1 jump": "",
    "control tcp://127.0.0.1:1 pause 10": "",
    "control tcp://127.0.0.1:1 seek": "",
    "control tcp://127.0.0.1:1 speed": "",
    "control tcp://127.0.0.1:1 speed 0": "",
    "control tcp://127.0.0.1:1 speed nan": "",
    "control tcp://127.0.0.1:1 step 0": "",
    "control tcp://127.0.0.1:1 step half": "",
    "control tcp://127.0.0.1:1 step 999999999999999999999999999999": "",
    "dump DAY --slice 2": "",
    "dump DAY --slice all": "",
    "dump DAY --start noon": "",
    "dump DAY --count -1": "",
    "export DAY": "",
    "export DAY --out x --stop 25:00": "",
    "export DAY --delta --parquet --out x": "",
    "compact DAY": "",
    "compact DAY --out x --compression gzip": "",
    "compact DAY --out x --block-kib 0": "",
    "inspect": "",
    "inspect DIR/recorded --picture x.svg": "",
    "inspect DAY --picture day.jpeg": "expected a name that ends in .svg or .png",
    "verify": "",
}
"""Commands that end with status 2, and texts of their errors."""

Fill = Callable[[str], str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refused")


@pytest.fixture(scope="module")
def fill(place: Path) -> Iterator[Fill]:
    """Return a function that puts paths into a text. FEED has a publisher, FREE and TAPE have none."""
    feed, free = (msgspec.structs.replace(Feed.local("cli", slices), schema="itch50") for slices in (2, 5))
    day = recorded_day(place / "recorded" / "2026-11-20")
    following = Day(place / "recorded" / "2026-11-21", day.feed, date="2026-11-21")
    following.put(0, Put((trade("AAPL", 86_400),), schema=1))
    kept(place)
    for name, text in FILES.items():
        (place / name).write_text(text)
    names = {
        "DIR": place,
        "DAY": day.path,
        "NEXT": following.path,
        "FEED": write_feed(feed, place / "feed.toml"),
        "FREE": write_feed(free, place / "free.toml"),
        "TAPE": write_feed(msgspec.structs.replace(free, schema="tape"), place / "tape.toml"),
        "ENDPOINT": feed.slices[0].endpoints[0],
    }
    with Publisher(feed):
        yield lambda text: re.sub(r"\b[A-Z]{3,}\b", lambda found: str(names.get(found[0], found[0])), text)


@pytest.fixture(autouse=True)
def nothing_is_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in place.rglob("*")}

    monkeypatch.chdir(place)
    before = content()
    yield
    assert content() == before


@pytest.mark.parametrize("line", ERRORS)
def test_an_error_is_one_line_and_status_1(line: str, fill: Fill) -> None:
    assert_one_line(invoke(*shlex.split(fill(line))), fill(ERRORS[line]))


@pytest.mark.parametrize("line", WRONG_USAGE)
def test_wrong_usage_is_status_2(line: str, fill: Fill) -> None:
    ended = invoke(*shlex.split(fill(line)))
    assert ended.status == Status.USAGE, ended.errors
    assert WRONG_USAGE[line] in " ".join(ended.errors.replace("│", " ").split())
