"""The project's clients with its servers, on bad networks: every message of a recorded day once and in order."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from blackbox_feeds.iex.iextp_server import IexTpOptions, IexTpServer
from blackbox_feeds.iex.live import IexClient
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client
from blackbox_feeds.itch50.live_soupbintcp import SoupBinTcpClient
from blackbox_feeds.itch50.moldudp64_server import MoldOptions, MoldUdp64Server
from blackbox_feeds.itch50.soupbintcp_server import SoupBinTcpServer, SoupOptions

from blackbox.feed.endpoint import _free_ports
from blackbox.feed.venue_url import Address
from blackbox.testing import wait_until
from tests.feeds.build import messages_in
from tests.feeds.serving import test_iextp_server as iex
from tests.feeds.serving import test_moldudp64_server as mold
from tests.feeds.venue_lines import Client
from tests.support import Script

MANY = 4_000


@pytest.mark.parametrize("is_mold", [True, False])
def test_datagrams_with_faults(tmp_path: Path, is_mold: bool) -> None:
    a, b, requests = _free_ports(3)
    lines, answers = [f"127.0.0.1:{port}" for port in (a, b)], f"127.0.0.1:{requests}"
    common: dict[str, Any] = {
        "b": lines[1],
        "rerequest": answers,
        "mtu": 500,
        "drop": 0.05,
        "duplicate": 0.05,
        "reorder": 0.05,
    }
    messages = mold.messages_of(MANY) if is_mold else iex.messages_of(MANY, "85TDS")
    recording = mold.recorded(tmp_path, messages) if is_mold else iex.recorded(tmp_path, messages, "iex_deep10")
    server = (
        MoldUdp64Server(Address("127.0.0.1", a), [recording], MoldOptions(linger=0.0, **common))
        if is_mold
        else IexTpServer(Address("127.0.0.1", a), [recording], IexTpOptions(linger=0.0, **common))
    )
    option = "rerequest" if is_mold else "gapfill"
    url = f"//{lines[0]}?b={lines[1]}&{option}={answers}&hold=60&stale=60"
    source = MoldUdp64Client(url, "2026-11-20") if is_mold else IexClient(url)
    with Client(source) as client, server:
        mold.play(server, recording)
        client.wait_for(MANY)
    assert client.found == messages
    found = source.statistics()
    assert (found.missing, found.malformed, found.foreign) == (0, 0, 0)
    assert found.duplicates > MANY / 2


def test_soupbintcp_until_the_end_of_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLACKBOX_VENUE_PASSWORD", "secret")
    monkeypatch.setenv("BLACKBOX_SOUPBINTCP_PASSWORD", "secret")
    (port,) = _free_ports(1)
    messages = mold.messages_of(MANY)
    recording = mold.recorded(tmp_path, messages)
    source = SoupBinTcpClient(f"//bob@127.0.0.1:{port}?retry=0.01", "2026-11-20")
    source.compile()
    found: list[bytes] = []

    def run() -> None:
        for chunk in source.chunks():
            assert not chunk.gaps
            found.extend(payload for _, _, payload in messages_in(chunk))

    thread = threading.Thread(target=run, daemon=True)
    options = SoupOptions(user="bob", linger=0.0)
    with SoupBinTcpServer(Address("127.0.0.1", port), [recording], options) as server:
        thread.start()
        server.wait_for(1, 120)
        mold.play(server, recording)
        wait_until(lambda: len(found) == MANY)
        server.end(at_once=False)
        thread.join()
    assert found == messages
    assert not source.statistics().connected


IN_NAMESPACE = """
import subprocess
from blackbox import Recording
from blackbox.feed.venue_url import Address
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client
from blackbox_feeds.itch50.moldudp64_server import MoldOptions, MoldUdp64Server
from tests.feeds.serving import test_moldudp64_server as mold
from tests.feeds.venue_lines import Client
subprocess.run(["ip", "link", "set", "lo", "up", "multicast", "on"], check=True)
subprocess.run(["ip", "route", "add", "224.0.0.0/4", "dev", "lo"], check=True)
recording = Recording.open({day!r})
options = MoldOptions(b="239.1.1.2:26401", linger=0.0, interface="127.0.0.1", drop=0.1, rerequest="127.0.0.1:26402")
url = "//239.1.1.1:26400?b=239.1.1.2:26401&rerequest=127.0.0.1:26402&hold=60&stale=60&interface={interface}"
source = MoldUdp64Client(url, "2026-11-20")
with Client(source) as client, MoldUdp64Server(Address("239.1.1.1", 26400), [recording], options) as server:
    mold.play(server, recording)
    client.wait_for({many})
assert client.found == mold.messages_of({many})
print(source.statistics().duplicates > 0, flush=True)
"""


@pytest.mark.parametrize("interface", ["lo", pytest.param("127.0.0.1", marks=pytest.mark.long)])
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root makes network namespaces, on Linux")
def test_two_multicast_groups(tmp_path: Path, interface: str) -> None:
    """In a separate network namespace."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed")
    day = mold.recorded(tmp_path, mold.messages_of(MANY)).path
    code = IN_NAMESPACE.format(day=str(day), many=MANY, interface=interface)
    with Script(code, before=["unshare", "-n"]) as script:
        assert script.read() == "True"
        assert script.finish()[0] == 0
