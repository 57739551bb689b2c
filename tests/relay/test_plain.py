"""A plain relay sends single messages of a feed: what a SUB gets and misses, and how the relay ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import zmq

from blackbox import ConfigError, Feed, Publisher
from blackbox.block.form.block import Block
from blackbox.block.form.rows import PayloadColumns
from blackbox.errors import EndpointError, NotConfirmedError, RelayError
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.relay import plain_clients as plain
from blackbox.services.relay.plain_clients import PlainRelay
from blackbox.services.relay.plain_send import SCRATCH_WORDS, PlainAt, PlainState, send_plain
from blackbox.testing import RawPublisher, wait_until
from blackbox.transport.security.curve import load_pair
from tests.keyring import Keyring
from tests.relay.relays import PATIENCE_S, chain

WARM = b"warm.up"
Frames = list[bytes]


def free_endpoint(transport: str = "tcp") -> str:
    return free_endpoints(transport, "plain", 1, 1)[0][0]


@contextmanager
def client(endpoint: str, publisher: Publisher, *prefixes: bytes, **options: Any) -> Iterator[zmq.Socket[bytes]]:
    """A SUB with active filters: messages under WARM arrive."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger, sub.rcvtimeo = 0, 60_000
        for name, value in options.items():
            setattr(sub, name, value)
        for prefix in (*prefixes, WARM):
            sub.subscribe(prefix)
        sub.connect(endpoint)

        def has_come() -> bool:
            publisher.publish(WARM, b"")
            return bool(sub.poll(0))

        wait_until(has_come, PATIENCE_S)
        yield sub


def receive(sub: zmq.Socket[bytes], count: int) -> list[Frames]:
    """Return the next messages, except those under WARM."""
    found: list[Frames] = []
    while len(found) < count:
        frames = sub.recv_multipart()
        if frames[0] != WARM:
            found.append(frames)
    return found


def stamp(ts_event: int) -> bytes:
    return ts_event.to_bytes(8, "little", signed=True)


@pytest.mark.parametrize(("above", "lines", "below"), [("tcp", 2, "tcp"), ("ipc", 1, "ipc"), ("shm", 1, "tcp")])
def test_each_message_arrives_once_in_the_order_of_its_slice(above: Any, lines: int, below: str) -> None:
    feed, endpoint = Feed.local("plain", slices=2, lines=lines, transport=above), free_endpoint(below)
    sent = {b"T%d.x" % topic: [(b"%d" % number, number - 7) for number in range(50)] for topic in range(6)}
    with Publisher(feed) as publisher, PlainRelay(feed, endpoint).start(PATIENCE_S) as relay:
        with client(endpoint, publisher, b"") as sub:
            for number in range(50):
                for topic, messages in sent.items():
                    publisher.publish(topic, *messages[number])
            got = receive(sub, 300)
        assert relay.statistics().messages >= 300
        assert relay.statistics().full == 0
    assert all(len(frames) == 3 for frames in got)
    for topic, messages in sent.items():
        of_topic = [(payload, ts_event) for name, ts_event, payload in got if name == topic]
        assert of_topic == [(payload, stamp(ts_event)) for payload, ts_event in messages]


@pytest.mark.parametrize("rows", [None, [0, 2, 5], []])
@pytest.mark.parametrize("valid", [None, [True, False, True, True, False, True]])
@pytest.mark.parametrize(
    ("lengths", "sequences"), [([4] * 6, None), ([0, 1, 40, 3, 0, 8], None), ([4] * 6, [3, 4, 9, 10, 11, 20])]
)
def test_rows_of_any_block_are_sent(
    rows: list[int] | None, sequences: list[int] | None, valid: list[bool] | None, lengths: list[int]
) -> None:
    topics, index, times = [b"A", b"BB.t", b"C" * 300], [0, 1, 2, 1, 0, 2], [5, 0, -1, 7, 8, 1 << 62]
    payloads: Sequence[bytes | None] = [
        bytes([65 + row]) * size if valid is None or valid[row] else None for row, size in enumerate(lengths)
    ]
    data = b"".join(payload or b"" for payload in payloads)
    block = Block.encode(
        topics,
        index,
        PayloadColumns(
            data,
            ts_event=times,
            offsets=numpy.cumsum([0, *(len(payload or b"") for payload in payloads)]),
            valid=None if valid is None else numpy.array(valid),
            sequences=sequences,
        ),
    )
    head, state = numpy.frombuffer(block.header, numpy.uint8), PlainState()
    scratch = numpy.zeros(SCRATCH_WORDS, numpy.int64)
    chosen = numpy.array(range(6) if rows is None else rows, numpy.int32)
    place = f"inproc://plain-{id(block)}"
    with zmq.Context() as context, context.socket(zmq.PUB) as pub, context.socket(zmq.SUB) as sub:
        pub.bind(place)
        sub.connect(place)
        sub.subscribe(b"")
        sub.rcvtimeo = 60_000
        at = PlainAt(pub.underlying, state.address, scratch.ctypes.data)
        rows_at = 0 if rows is None else chosen.ctypes.data
        pub.get(zmq.EVENTS)  # processes the filter
        assert send_plain(at, head.ctypes.data, block.body.ctypes.data, rows_at, len(chosen)) == 0
        got = [sub.recv_multipart() for _ in chosen]
    assert got == [
        [topics[index[row]], stamp(times[row]), *([] if payloads[row] is None else [payloads[row]])] for row in chosen
    ]
    assert (state.messages, state.full) == (len(chosen), 0)


def test_a_client_that_does_not_read_misses_messages_and_others_do_not(caplog: pytest.LogCaptureFixture) -> None:
    feed, endpoint = chain(0)[0], free_endpoint()
    payload = bytes(1 << 20)
    with (
        Publisher(feed) as publisher,
        PlainRelay(feed, endpoint, hwm_messages=4).start(PATIENCE_S) as relay,
        client(endpoint, publisher, b"A", rcvhwm=1, rcvbuf=65_536),
        client(endpoint, publisher, b"A", rcvhwm=1_000) as reader,
    ):
        sent = 0
        while not relay.statistics().full or sent < 10:
            assert sent < 200, "no queue is full"
            publisher.publish(b"A.t", payload, sent)
            assert receive(reader, 1) == [[b"A.t", stamp(sent), payload]]
            sent += 1
    assert relay.statistics().full >= 1
    assert any("a client does not keep up" in text for text in caplog.messages)


def test_losses_above_are_counted() -> None:
    feed, endpoint = chain(0)[0], free_endpoint()
    with RawPublisher(feed) as publisher, PlainRelay(feed, endpoint).start(PATIENCE_S) as relay:
        publisher.send(publisher.encode([(b"A.t", b"1")]))
        publisher.encode([(b"A.t", b"2"), (b"A.t", b"3")])
        publisher.send(publisher.encode([(b"A.t", b"4")]))
        wait_until(lambda: relay.statistics().source.received.gaps == 2, PATIENCE_S)
        wait_until(lambda: relay.statistics().messages == 2, PATIENCE_S)


def test_received_messages_are_sent_before_it_closes_and_the_endpoint_is_free() -> None:
    feed, endpoint = chain(0)[0], free_endpoint()
    with Publisher(feed) as publisher:
        relay = PlainRelay(feed, endpoint).start(PATIENCE_S)
        with client(endpoint, publisher, b"A") as sub:
            for number in range(5_000):
                publisher.publish(b"A.t", b"%d" % number)
            publisher.flush()
            wait_until(lambda: relay.statistics().source.received.messages >= 5_000, PATIENCE_S)
            relay.close()
            relay.close()
            assert [int(payload) for _, _, payload in receive(sub, 5_000)] == list(range(5_000))
        with PlainRelay(feed, endpoint).start(PATIENCE_S), client(endpoint, publisher, b"B") as sub:
            publisher.publish(b"B.t", b"1", 0)
            assert receive(sub, 1) == [[b"B.t", stamp(0), b"1"]]
    with pytest.raises(RelayError, match="start was called when closed"):
        relay.start()


def test_a_start_that_fails_is_explained() -> None:
    for endpoint in ("site.toml", "inproc://x", "shm://x", "tcp://127.0.0.1"):
        with pytest.raises(ConfigError, match="endpoint"):
            PlainRelay(Feed.local("plain"), endpoint)
    endpoint = free_endpoint()
    relay = PlainRelay(chain(0)[0], endpoint)
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        other.bind(endpoint)
        with pytest.raises(EndpointError, match=f"plain relay of feed 'chain': endpoint {endpoint} is in use"):
            relay.start()
    assert relay.state == "closed"
    relay = PlainRelay(chain(0)[0], free_endpoint())
    with pytest.raises(NotConfirmedError):
        relay.start(0.1)
    assert relay.state == "closed"


def test_clients_of_an_encrypted_feed_need_an_allowed_key(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "exchange", "desk")
    ring.allow("exchange", "exchange", "desk")
    feed, endpoint = ring.feed(Feed.local("plain", slices=1), "exchange", "exchange"), free_endpoint()
    desk = load_pair(str(ring.path("desk", "key_secret")))
    keys = {"curve_publickey": desk.public, "curve_secretkey": desk.secret}
    server = {"curve_serverkey": ring.public["exchange"].encode()}
    with Publisher(feed) as publisher:
        with (
            PlainRelay(feed, endpoint),
            client(endpoint, publisher, b"A", **keys, **server) as sub,
            zmq.Context() as context,
            context.socket(zmq.SUB) as stranger,
        ):
            stranger.subscribe(b"")
            stranger.connect(endpoint)
            publisher.publish(b"A", b"one", 0)
            assert receive(sub, 1) == [[b"A", stamp(0), b"one"]]
            assert not stranger.poll(0)
        with PlainRelay(feed, endpoint, in_the_clear=True), client(endpoint, publisher, b"A") as sub:
            publisher.publish(b"A", b"two", 0)
            assert receive(sub, 1) == [[b"A", stamp(0), b"two"]]


def test_an_error_of_libzmq_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = chain(0)[0]
    relay = PlainRelay(feed, free_endpoint())
    with Publisher(feed) as publisher:
        relay.start(PATIENCE_S)
        monkeypatch.setattr(plain, "send_plain", lambda *_: zmq.EFAULT)
        publisher.publish(b"A.t", b"1")
        with pytest.raises(RelayError, match="libzmq rejected a message: Bad address"):
            relay.run()
    assert relay.state == "closed"
