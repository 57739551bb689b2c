"""Bridges by scheme, including those of other packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blackbox import ConfigError, Feed
from blackbox.cli.ui.feeds import named_options
from blackbox.services.bridge.amqp.exchange import AmqpExchange
from blackbox.services.bridge.bridge import open_bridge
from blackbox.services.bridge.redis.channels import RedisChannels
from blackbox.services.bridge.redis.group import RedisGroup
from blackbox.services.bridge.redis.listener import RedisListener
from tests.cli.commands import assert_one_line, invoke
from tests.hub.hubs import hub_feed

PLUG_IN = """
class Lines:
    def __init__(self, feed, url, prefix, *, count=1):
        self.told = f"{feed.name} {url} {prefix} {count}"

    def carry(self, say):
        say(self.told)


class Chosen(Lines):
    def __init__(self, feed, url, prefix, *, symbols=None):
        self.told = str(symbols)
"""


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a bridge, as installed by pip."""
    (tmp_path / "lines_bridge.py").write_text(PLUG_IN)
    about = tmp_path / "lines_bridge-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lines-bridge\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[blackbox.bridges_in]\nlines = lines_bridge:Lines\nchosen = lines_bridge:Chosen\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_another_package_adds_a_scheme(plug_in: None) -> None:
    told = invoke("bridge", "lines://here", "--prefix", "A.", "--prefix", "AB", "--in", "-o", "count=3")
    assert (told.status, told.errors.strip()) == (0, "local lines://here (b'A.', b'AB') 3")


def test_options_and_symbols_are_checked(plug_in: None) -> None:
    told = invoke("bridge", "lines://here", "--in", "-o", "size=3")
    assert_one_line(told, "option was size=3, expected one of lines://: count")
    told = invoke("bridge", "lines://here", "--in", "--symbol", "AAPL")
    assert_one_line(told, r"symbols were \[b'AAPL'\], expected none with lines://")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("7", 7), (str(10**19 - 1), 10**19 - 1)]
    + [(text, text) for text in ("007", "00", "-1", "+1", "1_000", "", "\N{ARABIC-INDIC DIGIT SEVEN}", "1" * 5_000)],
    ids=lambda each: str(each)[:20],
)
def test_only_plain_digits_are_a_number(text: str, value: int | str) -> None:
    assert named_options([f"count={text}"]) == {"count": value}


def test_a_bridge_gets_its_symbols(plug_in: None) -> None:
    told = invoke("bridge", "chosen://here", "--symbol", "AAPL", "--symbol", "BRK.B", "--in")
    assert (told.status, told.errors.strip()) == (0, "[b'AAPL', b'BRK.B']")
    assert invoke("bridge", "chosen://here", "--in").errors.strip() == "None"


def test_a_scheme_opens_its_bridge_and_a_name_may_be_a_number() -> None:
    feed = hub_feed()
    assert isinstance(open_bridge(feed, "redis+pubsub://there"), RedisChannels)
    assert isinstance(open_bridge(feed, "redis+pubsub://there", into=True), RedisListener)
    assert isinstance(open_bridge(Feed.local("x"), "amqp://there"), AmqpExchange)
    bridge = open_bridge(feed, "redis://127.0.0.1:1", into=True, stream=7)
    assert isinstance(bridge, RedisGroup)
    assert bridge.stream == "7"


def test_a_scheme_has_its_directions(plug_in: None) -> None:
    with pytest.raises(ConfigError, match="scheme of a bridge was 'lines', expected one of: "):
        open_bridge(Feed.local("carried"), "lines://here")
    with pytest.raises(ConfigError, match="scheme of a bridge into a feed was 'http', expected one of: .*lines"):
        open_bridge(Feed.local("carried"), "http://127.0.0.1:1", into=True)


def test_a_bridge_without_its_library_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from blackbox import Feed\nfrom blackbox.services.bridge.bridge import open_bridge\n"
        "open_bridge(Feed.local('carried'), 'redis://127.0.0.1:1')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "this needs redis: pip install 'blackbox-md[bridge]'" in ended.stderr
