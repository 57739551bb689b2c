"""The trades of all replay contests: Databento's records of 48 bytes, of 5,000 instruments, in each format.

ours            a recording of these records        topic S0017.trades
databento       a DBN file of these records         instrument_id 17
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy
from blackbox_feeds.dbn import SCHEMA
from numba import njit

from bench.measure.contest import expect
from bench.workload.messages import POOL_MESSAGES, TOPICS, make_pool
from bench.workload.recorded import record
from bench.workload.tally import digest
from blackbox import Feed, Publisher, Recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

_START_NS: Final = 1_767_225_600_000_000_000
_STEP_NS: Final = 1_000
TRADE: Final = SCHEMA.dtype("trades")
TOPIC_NAMES: Final = tuple(b"S%04d.trades" % number for number in range(TOPICS))


@cache
def trades(messages: int) -> NDArray[Any]:
    """Return the records, a microsecond apart; instruments and sizes are the pool's topics and first bytes."""
    pool = make_pool()
    rows = numpy.arange(messages) % POOL_MESSAGES
    records = numpy.zeros(messages, TRADE)
    records["length"] = TRADE.itemsize // 4
    records["publisher_id"] = 1
    records["instrument_id"] = pool.topic_index[rows]
    records["ts_event"] = records["ts_recv"] = _START_NS + _STEP_NS * numpy.arange(messages)
    records["price"] = 100_000_000_000
    records["size"] = pool.payloads[rows, 0]
    records["action"], records["side"] = b"T", b"B"
    return records


def record_trades(messages: int, slices: int = 1) -> Recording:
    """Record the trades with a publisher and a recorder."""
    feed = Feed.local(f"trades-{messages}-{slices}", slices=slices, schema="dbn")
    records = trades(messages)
    index = records["instrument_id"].astype(numpy.int32)
    payloads = records.view(numpy.uint8).reshape(messages, TRADE.itemsize)

    def publish(publisher: Publisher) -> None:
        for start in range(0, messages, POOL_MESSAGES):
            part = slice(start, start + POOL_MESSAGES)
            times = records["ts_event"][part].astype(numpy.int64)
            publisher.publish_many(TOPIC_NAMES, index[part], payloads[part], times)

    return Recording.open(record(feed, messages, publish))


def dbn_file(messages: int, dbn: Any) -> bytes:
    """Return the trades as a DBN file with the metadata that `databento_dbn` requires."""
    head = dbn.Metadata(
        dataset="XNAS.ITCH",
        start=_START_NS,
        end=None,
        limit=None,
        stype_in=dbn.SType.RAW_SYMBOL,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=dbn.Schema.TRADES,
        symbols=["A"],
        partial=[],
        not_found=[],
        mappings=[],
    )
    return bytes(head.encode()) + trades(messages).tobytes()


def expect_trades(state: NDArray[Any], messages: int) -> None:
    """Raise Lost unless int64[instruments, 3] has each instrument's count, digest and sum of sizes, in any order."""
    expect("count, digest, sum a row", numpy.array_equal(_sorted(state), _sorted(_expected(messages))), True)


@cache
def _expected(messages: int) -> NDArray[Any]:
    records = trades(messages)
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    tally_trades(records["instrument_id"], records["size"], state)
    return state


def _sorted(state: NDArray[Any]) -> NDArray[Any]:
    used = state[state[:, 0] > 0]
    out: NDArray[Any] = used[numpy.lexsort(used.T)]
    return out


@njit(nogil=True, cache=True)
def tally_trades(instruments: NDArray[Any], sizes: NDArray[Any], state: NDArray[numpy.int64]) -> None:
    """Update count, digest and sum of sizes per instrument from columns."""
    for row in range(len(sizes)):
        instrument = instruments[row]
        state[instrument, 0] += 1
        state[instrument, 1] = digest(state[instrument, 1], sizes[row])
        state[instrument, 2] += sizes[row]
