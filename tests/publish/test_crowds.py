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

CROWD = 300
"""More than libzmq's default backlog of 100."""


@linux_only
def test_connections_wait_while_the_process_is_stopped() -> None:
    """The kernel accepts connections for a stopped process."""
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < CROWD:
        pytest.skip("net.core.somaxconn is too low")
    feed = Feed.local("crowd", slices=1)
    code = """
        source, relayed = (Feed.local("crowd", slices=1) for _ in range(2))
        publisher = Publisher(source).start()
        relay = Relay(source, relayed).start()
        plain = PlainRelay(source, feed.slices[0].lines[0]).start()
        say(*(each.slices[0].lines[0] for each in (source, relayed, feed)))
        input()
    """
    with Script(code, feed) as script, ExitStack() as stack:
        places = [urlsplit(place) for place in script.read().split()]
        script.suspend()
        poller = select.poll()
        crowd = {}
        for where in places:
            for _ in range(CROWD):
                each = stack.enter_context(socket.socket())
                each.setblocking(False)
                each.connect_ex((where.hostname, where.port))
                crowd[each.fileno()] = each
                poller.register(each.fileno(), select.POLLOUT)
        connected = set[int]()
        while len(connected) < len(crowd) and (ready := poller.poll(900)):  # a dropped handshake is retried after 1 s
            for fd, _ in ready:
                poller.unregister(fd)
                connected.add(fd)
        assert len(connected) == 3 * CROWD
        assert not any(crowd[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for fd in connected)
        script.process.send_signal(signal.SIGCONT)
