"""Relays send when they had a traced block."""

from __future__ import annotations

import time

import numpy
import zmq

from blackbox import Publisher
from tests import wire
from tests.relay.relays import chain, is_traced, relayed


def test_a_relay_sends_its_times_after_each_traced_block() -> None:
    feeds = chain(1, key_bytes=2, trace_every=4)
    with zmq.Context() as context, context.socket(zmq.SUB) as sub, relayed(feeds):
        for prefix in (b"\0H", b""):
            sub.subscribe(prefix)
        sub.rcvtimeo = 60_000
        sub.linger = 0
        sub.connect(feeds[-1].slices[0].endpoints[0])
        frames: list[list[bytes]] = []
        with Publisher(feeds[0], when_full="wait") as publisher:
            before = time.time_ns()
            while not any(key == b"AA" for key, *_ in frames):
                publisher.publish(b"AA", b"until it arrives")
                while sub.poll(10):
                    frames.append(sub.recv_multipart())
            for number in range(40):
                count = number % 7 + 1
                publisher.publish_many((b"AA", b"BB"), [number % 2] * count, numpy.zeros((count, 1), numpy.uint8))
        while frames[-1][0] != b"\0H" or not wire.unpack(frames[-1][1]).flags & wire.END:
            frames.append(sub.recv_multipart())
    after = time.time_ns()
    blocks = [(number, wire.unpack(header)) for number, (key, header, _) in enumerate(frames) if key[:1] != b"\0"]
    traced = [(number, each) for number, each in blocks if is_traced(each.sequence, each.count, 4)]
    assert traced
    assert sum(key == b"\0HT" for key, *_ in frames) == len(traced)
    for number, block in traced:
        key, header, body = frames[number + 1]
        fields = wire.unpack(header)
        (topic,) = wire.decode(key, header, body).topics
        assert (len(topic), topic[8:]) == (8 + 5, b"hop-1")
        assert before <= fields.ts_in <= fields.ts_out <= after
        times = {name: getattr(fields, name) for name in ("ts_in", "ts_out")}
        end = block.sequence + block.count
        told = wire.control({topic: (1, 0)}, key_rule=2, epoch=publisher.epoch, sequence=end, **times)
        assert (key, header, body) == (b"\0HT", *told)
