"""libzmq called from compiled loops, one message a frame, as in C."""

from __future__ import annotations

import numpy
from numba import njit
from numpy.typing import NDArray

from bench.workload.messages import PAYLOAD_BYTES
from bench.workload.tally import digest
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes
from blackbox.transport.libzmq import init_messages, msg_data, msg_init_size, msg_recv, msg_send, msg_size

NAME_BYTES = 12  # "S0000.trade "
FRAME_BYTES = NAME_BYTES + 8 + PAYLOAD_BYTES


@njit(nogil=True, cache=True)
def send_frames(socket: int, scratch: NDArray[numpy.int64], frames: NDArray[numpy.uint8], messages: int) -> bool:
    """Send `messages` frames, repeating the pool; return False if the socket failed."""
    place = scratch.ctypes.data
    row = 0
    for _ in range(messages):
        if msg_init_size(place, FRAME_BYTES) != 0:
            return False
        copy_bytes(msg_data(place), frames.ctypes.data + row * FRAME_BYTES, FRAME_BYTES)
        if msg_send(place, socket, 0) < 0:
            return False
        row += 1
        if row == len(frames):
            row = 0
    return True


@njit(nogil=True, cache=True)
def receive_frames(socket: int, scratch: NDArray[numpy.int64], state: NDArray[numpy.int64], messages: int) -> bool:
    """Receive and tally `messages` frames. The topic id is parsed from its digits, faster than any lookup."""
    place = scratch.ctypes.data
    init_messages(place, 1)
    for _ in range(messages):
        if msg_recv(place, socket, 0) != FRAME_BYTES or msg_size(place) != FRAME_BYTES:
            return False
        frame = bytes_at(msg_data(place), FRAME_BYTES)
        topic = 0
        for digit in range(1, 5):
            topic = 10 * topic + frame[digit] - 48
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], frame[NAME_BYTES + 16])
        state[topic, 2] += frame[NAME_BYTES + 8]
    return True
