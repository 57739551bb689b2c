"""A relay's socket towards its source: broken connections with pending messages, requests without a connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from blackbox.publish.listeners.subscriptions import SUBSCRIBE, UNSUBSCRIBE
from blackbox.services.relay import upstream_socket
from blackbox.services.relay.failover import Failover
from blackbox.services.relay.line_state import LineState
from blackbox.services.relay.upstream_socket import Source, UpstreamSocket, in_the_end
from blackbox.testing import wait_until
from blackbox.transport.wakeup import Pipe
from tests.relay.relays import PATIENCE_S, chain

FIRST = [b"A", b"0", b"rest"]


def new_way(address: str) -> UpstreamSocket:
    return UpstreamSocket({address: Source(None, "")}, 0.0, LineState(), 1_000_000_000, "relay", Pipe())


@contextmanager
def half_read() -> Iterator[tuple[zmq.Socket[bytes], UpstreamSocket, zmq.Socket[bytes]]]:
    """Yield a source, the upstream socket and its ZeroMQ socket; a poll made libzmq read the first part of FIRST."""
    address = chain()[0].slices[0].lines[0]
    with zmq.Context() as context, context.socket(zmq.XPUB) as source:
        source.linger = 0
        source.bind(address)
        way = new_way(address)
        way.open(context, 1_000)
        way.upstream.want(b"A", 1, 0.0)

        def has_subscribed() -> bool:
            way.read_news()
            way.look(is_needed=False)
            return bool(source.poll(1)) and source.recv() == SUBSCRIBE + b"A"

        wait_until(has_subscribed, PATIENCE_S)
        for number in range(10):
            source.send_multipart([b"A", b"%d" % number, b"rest"])
        xsub = zmq.Socket[bytes].shadow(way.handles[0])
        wait_until(lambda: bool(xsub.poll(0)), PATIENCE_S)
        yield source, way, xsub
        way.close()


def test_a_half_read_message_is_completed_after_its_source_has_ended() -> None:
    with half_read() as (source, way, xsub):
        source.close()

        def is_lost() -> bool:
            way.read_news()
            return not way.upstream.source.is_connected

        wait_until(is_lost, PATIENCE_S)
        assert xsub.poll(0)
        assert xsub.recv_multipart(zmq.DONTWAIT) == FIRST


def test_a_source_can_be_left_while_a_message_is_half_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with half_read() as (_, way, xsub):
        monkeypatch.setattr(way.upstream.source, "is_suspect", lambda *_: True)
        monkeypatch.setattr(way.upstream.source, "why_switch", lambda *_: "sends withdrawn keys")
        way.look(is_needed=False)
        with pytest.raises(zmq.Again):
            xsub.recv_multipart(zmq.DONTWAIT)


@given(st.lists(st.sampled_from([b"", b"A", b"AB"])))
def test_requests_that_cancel_each_other_do_not_wait_for_a_connection(prefixes: list[bytes]) -> None:
    """Each prefix is requested, withdrawn, requested, and so on."""
    in_force, messages = set[bytes](), list[bytes]()
    for prefix in prefixes:
        messages.append((UNSUBSCRIBE if prefix in in_force else SUBSCRIBE) + prefix)
        in_force ^= {prefix}
    assert sorted(in_the_end(messages)) == sorted(SUBSCRIBE + prefix for prefix in in_force)


def test_monitors_of_sockets_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_socket, "id", lambda _: 7, raising=False)  # as of a socket that has just been freed
    with zmq.Context() as context, ExitStack() as stack:
        for _ in range(2):
            way = new_way(chain()[0].slices[0].lines[0])
            stack.callback(way.close)
            way.open(context, 1_000)


def test_an_address_is_there_at_every_moment_of_a_switch() -> None:
    class Watched(list[str]):
        def pop(self, *_at: Any) -> str:
            raise AssertionError("another thread may see no address")

    source = Failover(["tcp://only"], 1.0, "relay")
    source.addresses = Watched(source.addresses)
    source.switch("is silent")
    assert source.address == "tcp://only"
