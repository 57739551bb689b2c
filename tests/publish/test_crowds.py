"""A crowd that comes at once, as when its publisher or relay begins again, is let in at once."""

from __future__ import annotations

import select
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from blackbox import Feed
from tests.process_state import linux_only
from tests.support import Script

CROWD = 1_000
"""More than libzmq would have wait by itself: 100."""
SERVERS = {
    "publisher": "Publisher(feed).start()",
    "relay": "Relay(source, feed).start()",
    "plain relay": "PlainRelay(source, feed.slices[0].lines[0]).start()",
}


@linux_only
@pytest.mark.parametrize("server", SERVERS)
def test_connections_wait_to_be_taken_in_where_a_process_has_no_time_for_them(server: str) -> None:
    """It is stopped meanwhile: what the system takes in for it is what connects."""
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < CROWD:
        pytest.skip("the system lets fewer connections wait")
    feed = Feed.local("crowd", slices=1)
    where = urlsplit(feed.slices[0].lines[0])
    code = f"""
        source = Feed.local(feed.name, slices=1)
        publisher = Publisher(source).start()
        server = {SERVERS[server]}
        say("bound")
        input()
    """
    with Script(code, feed) as script, ExitStack() as stack:
        script.expect("bound")
        script.process.send_signal(signal.SIGSTOP)
        crowd = {}
        for _ in range(CROWD):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex((where.hostname, where.port))
            crowd[each.fileno()] = each
        poller = select.poll()
        for fd in crowd:
            poller.register(fd, select.POLLOUT)
        connected = set[int]()
        while len(connected) < CROWD and (ready := poller.poll(900)):  # a handshake that is dropped takes a second
            for fd, _ in ready:
                poller.unregister(fd)
                connected.add(fd)
        assert len(connected) == CROWD
        assert not any(crowd[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for fd in connected)
        script.process.send_signal(signal.SIGCONT)
