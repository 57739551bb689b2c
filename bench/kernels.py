"""The slice thread's match and grouping by themselves: a block in memory, no sockets."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy
from numba import njit

from bench.workload import make_pool
from blackbox import Block
from blackbox.callbacks import Callback
from blackbox.check import read_header
from blackbox.conflate import Conflation
from blackbox.counters import Count
from blackbox.envelope import envelope_bytes
from blackbox.guards import Sequences
from blackbox.handover import group_by_set, match_topics
from blackbox.sink import NO_SINK
from blackbox.slice_memory import SliceAt, TableAt
from blackbox.tables import Table
from blackbox.topics import Numbering, Trie

_BLOCK_MESSAGES = 2_000
_REPEATS = 2_000


@njit(nogil=True)
def _repeat(at: SliceAt, table: TableAt, trie: Trie, head: int, body: int, envelope: int, times: int) -> int:
    header = read_header(head)
    matched = 0
    for _ in range(times):
        match_topics(at, table, trie, header, body, envelope)
        matched += group_by_set(table, header, body, envelope, numpy.int64(0))
    return matched


@cache
def _subject() -> tuple[Any, ...]:
    pool = make_pool()
    block = Block.encode(pool.topics, pool.topic_index[:_BLOCK_MESSAGES], pool.payloads[:_BLOCK_MESSAGES])
    callbacks = [Callback("batch", b"S%d" % i, print, i % 2) for i in range(5)]
    table = Table(1, callbacks, frozenset([b""]), 2, 0)
    topics = Numbering(10_000, 16)
    sets = numpy.zeros(10_000, numpy.int32)
    counters = numpy.zeros(Count.SIZE, numpy.int64)
    sequences = Sequences(1, 1, 0, 1, counters)
    conflation = Conflation(1)
    at = SliceAt(
        *(0, 0, 0, 0, 0, 0, counters.ctypes.data, 0, 2),
        topics.at,
        sets.ctypes.data,
        sequences.at,
        *(0, 0, 0, 0),
        conflation.at,
        *(0, 0),
        NO_SINK,
    )
    head = numpy.frombuffer(bytearray(block.header), numpy.uint8)
    envelope = numpy.zeros(envelope_bytes(block.topic_count, block.count), numpy.uint8)
    alive = (topics, sets, counters, sequences, conflation)
    return block, table, at, head, envelope, alive


def dispatch_rate() -> float:
    """M messages/s matched and grouped."""
    block, table, at, head, envelope, _alive = _subject()
    places = (head.ctypes.data, block.body.ctypes.data, envelope.ctypes.data)
    assert _repeat(at, table.at, table.topics, *places, 1) == _BLOCK_MESSAGES
    started = time.perf_counter()
    matched = _repeat(at, table.at, table.topics, *places, _REPEATS)
    seconds = time.perf_counter() - started
    assert matched == _BLOCK_MESSAGES * _REPEATS
    return float(matched / seconds / 1e6)
