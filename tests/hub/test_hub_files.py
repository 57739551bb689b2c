"""Hub files: what each table sets, and errors that name a wrong setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from blackbox import ConfigError, Feed, Hub
from blackbox.archive.maintain.retention import Retention
from blackbox.services.hub.hub_file import load_hub
from blackbox.services.hub.pair.paired_hub import PairedHub
from blackbox.services.hub.settings import HubSettings
from blackbox.testing import wait_until
from tests.cli.commands import write_feed
from tests.hub.hubs import hub_feed
from tests.hub.pairs import pair_feed
from tests.hub.test_join import ports
from tests.hub.test_sites import here

PAIR: Final = '[pair]\nrole = "backup"\nlink = "tcp://127.0.0.1:5601"\npeer = "tcp://127.0.0.1:5600"\n'
JOIN: Final = '[join]\nask = ["tcp://ldn:1"]\ndirectory = "sites"\nports = [17200, 17210]\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Feed, str], Path]:
    """Return a function that writes a hub file with some tables, and its feed file."""

    def write(feed: Feed, tables: str) -> Path:
        path, file = write_feed(feed, tmp_path / "feed.toml"), tmp_path / "hub.toml"
        if feed.hub_backup:
            path.write_text(f'hub_backup = "{feed.hub_backup}"\n{path.read_text()}')
        file.write_text(f'feed = "feed.toml"\ndirectory = "kept"\n{tables}')
        return file

    return write


def test_a_hub_file_names_its_peers(tmp_path: Path, feed: Feed, write: Callable[..., Path]) -> None:
    there = hub_feed("ldn", slices=1)
    seen = here(there)
    write_feed(there, tmp_path / "ldn.toml")
    write_feed(seen, tmp_path / "ldn-here.toml")
    (peer,) = load_hub(write(feed, '[[peers]]\nfeed = "ldn.toml"\nhere = "ldn-here.toml"\n')).peers
    assert peer.upstream.slices[0].endpoints == there.slices[0].endpoints
    assert peer.downstream.slices[0].endpoints == seen.slices[0].endpoints


def test_a_hub_file_names_the_hubs_to_ask(tmp_path: Path, feed: Feed, write: Callable[..., Path]) -> None:
    ldn = hub_feed("ldn", slices=1)
    join = JOIN.replace("tcp://ldn:1", ldn.hub).replace("[17200, 17210]", str(list(ports(2))))
    with Hub(ldn, tmp_path / "ldn"), load_hub(write(feed, join)):
        wait_until((tmp_path / "sites" / "ldn.toml").exists)


def test_a_hub_file_of_one_of_two(write: Callable[..., Path]) -> None:
    feed = pair_feed(slices=1)
    hub = load_hub(write(feed, PAIR), alone=True)
    assert isinstance(hub, PairedHub)
    assert (hub.endpoint, hub.pair.silence_ns, hub.pair.when_cut) == (feed.hub_backup, 2_000_000_000, "wait")


def test_a_hub_file_sets_the_retention(feed: Feed, write: Callable[..., Path]) -> None:
    settings = HubSettings.load(write(feed, "[retention]\ndays = 7\nmost_days = 30\n"))
    assert settings.retention == Retention(days=7, most_days=30)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ('[[peers]]\nfeed = "feed.toml"\n', "here"),
        ("[retention]\ndays = 7\nmost_days = 3\n", "hub.toml: retention: most_days was 3, expected at least days, 7"),
        ("[retention]\nmessages_per_topic = 0\n", "messages_per_topic was 0, expected 1 to"),
        ("[retention]\nweeks = 1\n", "unknown key 'retention.weeks'"),
        (JOIN.replace('directory = "sites"', ""), "join: key 'directory' was missing"),
        (JOIN.replace("[17200, 17210]", "[17210, 17200]"), r"ports were \[17210, 17200\]"),
        (JOIN.replace("[17200, 17210]", "[17200]"), "join.ports"),
        (JOIN.replace("[17200, 17210]", "[0, 9]"), "join.ports"),
        (JOIN.replace("tcp://ldn:1", "ldn"), "ask was 'ldn'|endpoint was 'ldn'"),
        (JOIN.replace("ask", "asks"), "unknown key 'join.asks', did you mean 'ask'"),
        (JOIN + 'ask_keys = ["a", "b"]', "ask_keys were 2"),
        (JOIN + "every_ns = 1", "every_ns was 1"),
        (JOIN + 'host = "1.2.3"', "host of endpoint"),
    ],
)
def test_a_wrong_hub_file_is_one_clear_error(feed: Feed, write: Callable[..., Path], tables: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_hub(write(feed, tables))


@pytest.mark.parametrize(
    ("tables", "changes", "why"),
    [
        ("", {}, r"hub.toml had no table \[pair\], expected one, as feed 'pair' had a hub_backup"),
        (PAIR.replace("backup", "third"), {}, "pair.role"),
        (PAIR + "silence_ns = 5\n", {}, "silence_ns was 5, expected 100000000 to 600000000000"),
        (PAIR.replace("tcp://127.0.0.1:5600", "inproc://x"), {}, "peer was 'inproc://x', expected tcp:// or ipc://"),
        (PAIR, {"hub_backup": ""}, "had no hub_backup"),
        (PAIR, {"archives": ("tcp://127.0.0.1:1",)}, "had 1 archives, expected one for each hub"),
        (PAIR, {"slices": Feed.local("one", slices=1).slices}, "expected line A of the first and line B"),
    ],
)
def test_a_wrong_hub_file_of_one_of_two_is_one_clear_error(
    write: Callable[..., Path], tables: str, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        load_hub(write(msgspec.structs.replace(pair_feed(slices=1), **changes), tables))
