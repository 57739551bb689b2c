"""Many subscribers that connect at once, as after a restart of their publisher or relay, are accepted at once."""

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
"""More than libzmq's default backlog of 100."""
SERVERS = {
    "publisher": "Publisher(feed).start()",
    "relay": "Relay(source, feed).start()",
    "plain relay": "PlainRelay(source, feed.slices[0].lines[0]).start()",
}


@linux_only
@pytest.mark.parametrize("server", SERVERS)
def test_connections_wait_while_the_process_is_stopped(server: str) -> None:
    """The kernel accepts connections for a stopped process."""
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < CROWD:
        pytest.skip("net.core.somaxconn is too low")
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
        while len(connected) < CROWD and (ready := poller.poll(900)):  # a dropped handshake is retried after a second
            for fd, _ in ready:
                poller.unregister(fd)
                connected.add(fd)
        assert len(connected) == CROWD
        assert not any(crowd[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for fd in connected)
        script.process.send_signal(signal.SIGCONT)
