"""Compiled loops without a framework around them: the limits that ours is measured against."""

from __future__ import annotations

import numpy
from numba import njit
from numpy.typing import NDArray

from bench.workload import digest
from blackbox.atoms import int32s_at, int64s_at
from blackbox.layout import OFFSET_COUNT
from blackbox.zmqlib import init_messages, msg_data, msg_recv, msg_size


@njit(nogil=True, cache=True)
def receive_blocks(socket: int, scratch: NDArray[numpy.int64], messages: int) -> int:
    """Receive blocks until they held `messages` messages, and do nothing with them; returns bytes of bodies."""
    place = scratch.ctypes.data
    init_messages(place, 3)
    received = 0
    size = 0
    while received < messages:
        for part in range(3):
            if msg_recv(place + 64 * part, socket, 0) < 0:
                return -1
        if msg_size(place + 64) == 64:
            flags = int64s_at(msg_data(place + 64), 1)[0] >> 40 & 0xFF
            if flags & 4 == 0:
                received += int32s_at(msg_data(place + 64) + OFFSET_COUNT, 1)[0]
                size += msg_size(place + 128)
    return size


@njit(nogil=True, cache=True)
def receive_frames(socket: int, scratch: NDArray[numpy.int64], messages: int) -> int:
    """Receive so many messages of one frame, and do nothing with them; returns their bytes."""
    place = scratch.ctypes.data
    init_messages(place, 1)
    size = 0
    for _ in range(messages):
        if msg_recv(place, socket, 0) < 0:
            return -1
        size += msg_size(place)
    return size


@njit(nogil=True, cache=True)
def tally(
    numbers: NDArray[numpy.int32],
    topic_index: NDArray[numpy.int32],
    rows: NDArray[numpy.int32],
    payloads: NDArray[numpy.uint8],
    stride: int,
    state: NDArray[numpy.int64],
) -> None:
    """The work of a batch callback: count, digest and sum per topic."""
    for row in rows:
        topic = numbers[topic_index[row]]
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], payloads[row * stride + 8])
        state[topic, 2] += payloads[row * stride]
