"""Readers of other projects understand what the venue servers send: Python packages, and tcpdump on the packets."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

import dpkt
import pytest
from blackbox_feeds.itch50 import Itch50

from tests.feeds.build import ITCH_LENGTHS, framed, itch, payloads_of
from tests.feeds.serving.datagram_client import Client
from tests.feeds.serving.test_moldudp64_server import is_end, messages_of, recorded, serve
from tests.support import ROOT, Script

SERVERS = ROOT / ".servers" / "usr"

MESSAGES = [itch(kind, locate=7, ns=at, fill=b"1") for at, kind in enumerate(ITCH_LENGTHS) if kind != "O"] * 20


def test_packages_of_other_projects_read_moldudp64_and_itch(tmp_path: Path) -> None:
    """`moldudp` reads the packets, and `itchfeed` each field of their messages."""
    decoder = pytest.importorskip("moldudp.codec.decoder")
    parser = pytest.importorskip("itch.parser")
    found: list[bytes] = []

    class Collect:
        def on_msgblk(self, message: bytes) -> None:
            found.append(message)

        def on_hb(self) -> None: ...

    reader = decoder.MoldUDPDecoder(Collect())
    sequence = 1
    with Client() as client:
        serve(client, recorded(tmp_path, MESSAGES))
        for packet in client.receive_until(is_end):
            reader.buffer(packet.data)
            assert (reader.session(), reader.seq()) == (b"2026112001", sequence)
            reader.decode()
            sequence += max(0, reader.count())
    assert found == MESSAGES
    read = list(parser.MessageParser().parse_stream(framed(found)))
    assert [message.to_bytes() for message in read] == MESSAGES
    assert {message.stock_locate for message in read} == {7}


IN_NAMESPACE = """
import subprocess
import time
from pathlib import Path
from blackbox import Recording
from blackbox.feed.venue_url import Address
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client
from blackbox_feeds.itch50.moldudp64_server import MoldOptions, MoldUdp64Server
from tests.feeds.serving import datagram_client
from tests.feeds.serving.test_moldudp64_server import is_end, messages_of, play
from tests.feeds.venue_lines import Client
subprocess.run(["ip", "link", "set", "lo", "up", "multicast", "on"], check=True)
subprocess.run(["ip", "route", "add", "224.0.0.0/4", "dev", "lo"], check=True)
recording = Recording.open({day!r})
"""
TO_TCPDUMP = """
tcpdump = None
if {tcpdump!r}:
    room = ["-s", "2048", "-B", "32768"]  # thousands of packets, if it is late
    command = [{tcpdump!r}, "-Z", "root", "-i", "any", "--immediate-mode", *room, "-U", "-w", {capture!r}, "udp"]
    tcpdump = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while "listening on" not in (line := tcpdump.stderr.readline()):
        assert line, "tcpdump has ended"
with datagram_client.Client(group="239.1.1.1") as client:
    options = MoldOptions(linger=0.0, interface="127.0.0.1", ttl=1)
    with MoldUdp64Server(client.address, [recording], options) as server:
        play(server, recording)
        server.end(at_once=True)
    packets = client.receive_until(is_end)
print(sum(len(packet.messages) for packet in packets), flush=True)
Path({sent!r}).write_bytes(b"".join(message for packet in packets for message in packet.messages))
if tcpdump:
    while packets[-1].data not in Path({capture!r}).read_bytes():
        assert tcpdump.poll() is None, "tcpdump has ended"
        time.sleep(0.01)
    tcpdump.terminate()
    tcpdump.wait()
"""
TO_OUR_CLIENT = """
options = MoldOptions(b="239.1.1.2:26401", linger=0.0, interface="127.0.0.1", drop=0.1, rerequest="127.0.0.1:26402")
url = "//239.1.1.1:26400?b=239.1.1.2:26401&rerequest=127.0.0.1:26402&hold=60&stale=60&interface={interface}"
source = MoldUdp64Client(url, "2026-11-20")
with Client(source) as client, MoldUdp64Server(Address("239.1.1.1", 26400), [recording], options) as server:
    play(server, recording)
    client.wait_for({many})
assert client.found == messages_of({many})
print(source.statistics().duplicates > 0, flush=True)
"""


def run_in_namespace(code: str, *before: str, **values: object) -> str:
    """Run code in a separate network namespace, which only root can make; return the line that it prints."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root makes network namespaces, on Linux")
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed")
    with Script((IN_NAMESPACE + code).format(**values), before=["unshare", "-n", *before]) as script:
        line = script.read()
        assert script.finish()[0] == 0
    return line


def test_a_multicast_group_gets_the_day_and_tcpdump_captures_it(tmp_path: Path) -> None:
    """The capture is read by dpkt and by this project's source."""
    day = recorded(tmp_path, MESSAGES).path
    places = (str(SERVERS / "bin"), os.environ["PATH"])
    tcpdump = shutil.which("tcpdump", path=os.pathsep.join(places)) or ""
    capture, sent = tmp_path / "capture.pcap", tmp_path / "sent"
    libraries = f"LD_LIBRARY_PATH={SERVERS / 'lib' / f'{platform.machine()}-linux-gnu'}"
    values = {"day": str(day), "tcpdump": tcpdump, "capture": str(capture), "sent": str(sent)}
    assert run_in_namespace(TO_TCPDUMP, "env", libraries, **values) == str(len(MESSAGES))
    assert sent.read_bytes() == b"".join(MESSAGES)
    if tcpdump:
        check_capture(capture)


@pytest.mark.parametrize("interface", ["lo", pytest.param("127.0.0.1", marks=pytest.mark.long)])
def test_our_client_gets_the_day_from_two_multicast_groups_that_lose_packets(tmp_path: Path, interface: str) -> None:
    day = recorded(tmp_path, messages_of(4_000)).path
    assert run_in_namespace(TO_OUR_CLIENT, day=str(day), many=4_000, interface=interface) == "True"


def check_capture(capture: Path) -> None:
    of_link = {113: dpkt.sll.SLL, 276: dpkt.sll2.SLL2}
    with capture.open("rb") as file:
        reader = dpkt.pcap.UniversalReader(file)
        frames = [of_link[reader.datalink()](data).data.data for _, data in reader]
    datagrams = list(dict.fromkeys(bytes(frame.data) for frame in frames))  # lo shows each one twice
    assert b"".join(packet[20:] for packet in datagrams) == framed(MESSAGES)
    assert payloads_of(Itch50(capture, "2026-11-20")) == MESSAGES
