"""Messages that were sent are read again by sequence, compared with a plain list."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy
import pytest
from blackbox_feeds.serving.datagrams import cut
from blackbox_feeds.serving.sent_stream import NO_TYPE, Framing, SentStream

from blackbox.errors import ConfigError
from blackbox.replay.play.venue_server import VenueMessages

FRAMINGS = [Framing(is_big_endian=False), Framing(is_big_endian=True, type=ord("S"))]


def messages_of(payloads: list[bytes]) -> VenueMessages:
    data = numpy.frombuffer(b"".join(payloads) + b"\0", numpy.uint8)
    lengths = numpy.array([len(payload) for payload in payloads], numpy.int32)
    addresses = data.ctypes.data + numpy.cumsum(lengths, dtype=numpy.int64) - lengths
    return VenueMessages(numpy.asarray(data), addresses, lengths, lengths, ())  # type: ignore[arg-type]


def framed(payload: bytes, framing: Framing) -> bytes:
    kind = b"" if framing.type == NO_TYPE else bytes([framing.type])
    return struct.pack(">H" if framing.is_big_endian else "<H", len(kind + payload)) + kind + payload


@pytest.mark.parametrize("framing", FRAMINGS)
def test_any_range_is_read_as_it_was_sent(tmp_path: Path, framing: Framing) -> None:
    """Batches of any size, some messages empty or long; the store holds about a MiB, so the oldest are dropped."""
    choice = random.Random(framing.type)
    stream = SentStream(framing, str(tmp_path), keep_mib=1)
    frames = [b""]
    for _ in range(150):
        payloads = [choice.randbytes(choice.choice((0, 1, 30, 500, 60_000 * (choice.random() < 0.01)))) for _ in
                    range(choice.randint(0, 400))]  # fmt: skip
        sent = stream.append(messages_of(payloads))
        assert sent.first == len(frames)
        assert sent.position == sum(map(len, frames))
        frames += [framed(payload, framing) for payload in payloads]
        assert stream.next == len(frames)
    starts = numpy.cumsum([len(frame) for frame in frames]).tolist()
    assert 1 < stream.first < stream.next
    for first in (0, 1, stream.first - 1, stream.next):
        assert stream.read(first, 1, 1_000) is None
    for _ in range(500):
        first = choice.randint(stream.first, stream.next - 1)
        count, most = choice.choice((1, 2, 63, 64, 65, 1_000, 65_535)), choice.choice((1, 1_400, 45_000))
        found = stream.read(first, count, most)
        assert found is not None
        many = len(found.offsets) - 1
        sizes = numpy.cumsum([len(frame) for frame in frames[first : first + count]])
        assert 1 <= many <= max(1, int(numpy.searchsorted(sizes, most, side="right")))
        assert found.data.tobytes() == b"".join(frames[first : first + many])
        assert (found.first, found.position) == (first, starts[first - 1])
        assert stream.position_of(first) == starts[first - 1]
        place = stream.file_at(starts[first - 1])
        assert place is not None
        fd, at, size = place
        assert os.pread(fd, min(size, len(frames[first])), at) == frames[first]
    assert stream.position_of(stream.next) == stream.position == starts[-1]
    assert stream.file_at(starts[-1]) == (-1, 0, 0)
    assert stream.file_at(0) is None
    stream.close()


def test_a_message_that_does_not_fit_into_its_length_is_an_error() -> None:
    stream = SentStream(FRAMINGS[1], None, keep_mib=1)
    with pytest.raises(ConfigError, match="a message had 65535 bytes, expected at most 65534"):
        stream.append(messages_of([b"x" * 65_535]))
    stream.close()


def test_packets_are_as_full_as_they_can_be() -> None:
    choice = random.Random(1)
    for _ in range(200):
        sizes = [choice.choice((2, 20, 40, 300)) for _ in range(choice.randint(0, 100))]
        room, most = choice.choice((1, 50, 320, 1_000)), choice.choice((1, 3, 1_000))
        cuts, used = [0], 0
        for number, size in enumerate(sizes):
            if number and (used + size > room or number - cuts[-1] == most):
                cuts.append(number)
                used = 0
            used += size
        expected = [*cuts, len(sizes)] if sizes else [0]
        assert cut(numpy.cumsum([0, *sizes]), room, most).tolist() == expected
