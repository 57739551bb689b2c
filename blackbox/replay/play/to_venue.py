"""Replay to a server of the venue's own protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import numpy

from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, JournalError
from blackbox.native.compile.jit import warm_up
from blackbox.native.tables.name_table import FULL, Numbering
from blackbox.replay.play.to_wire import Columns, check_files, gather
from blackbox.replay.play.venue_server import VenueMessages, VenueServer
from blackbox.replay.tables.block_table import BEGINNING, BlockTable
from blackbox.replay.tables.measure_blocks import NO_BLOCKS

_MEAN_TOPIC_BYTES: Final = 32


class VenuePlayer:
    """Plays to a venue server, each message once, in the venue's order.

    Attributes: `without_payload`, messages that were left out because they have none.
    """

    in_sequence = True
    reads_ahead = True
    checks_blocks = False

    def __init__(self, server: VenueServer, recordings: Sequence[Recording]) -> None:
        self._server = server
        self.without_payload = 0
        self._numbering = Numbering(
            sum(each.feed.max_topics * len(each.feed.slices) for each in recordings), _MEAN_TOPIC_BYTES
        )
        self._topics: tuple[bytes, ...] = ()
        warm_up(gather, NO_BLOCKS, self._numbering.at, Columns(0, 0, 0, 0, 0))

    def play(self, table: BlockTable, start: int, stop: int) -> None:
        """Send the messages of blocks `[start, stop)` of a table. Raises JournalError if a file has shrunk."""
        rows = table.rows[start:stop]
        blocks = table._replace(rows=rows[rows["count"] > 0])
        many = int(blocks.rows["count"].sum())
        if not many:
            return
        ts_event, starts = numpy.empty(many, numpy.int64), numpy.empty(many, numpy.int64)
        topics, lengths = numpy.empty(many, numpy.int32), numpy.empty(many, numpy.int32)
        same = numpy.zeros(many, numpy.uint8)
        columns = Columns(*(each.ctypes.data for each in (ts_event, topics, starts, lengths, same)))
        if gather(blocks.at(0, len(blocks.rows)), self._numbering.at, columns) == FULL:
            raise JournalError(
                f"the recording has more topics than its feed allows, {self._numbering.at.capacity}: raise max_topics"
            )
        check_files(blocks)  # otherwise lengths may be wrong
        if len(self._topics) != len(self._numbering):
            self._topics = tuple(self._numbering.names())
        has_payload = lengths >= 0
        is_sent = has_payload & (same == 0)  # a message with several topics has a row for each
        self.without_payload += many - int(has_payload.sum())
        messages = VenueMessages(ts_event, starts, lengths, topics, self._topics)
        if not is_sent.all():
            messages = VenueMessages(
                ts_event[is_sent], starts[is_sent], lengths[is_sent], topics[is_sent], self._topics
            )
        if len(messages.ts_event):
            self._server.send(messages)

    def begin(
        self, skipped: frozenset[tuple[int, int]], before: Iterable[BlockTable] | None = None, start_ns: int = BEGINNING
    ) -> None:
        """Do nothing: a venue has no books to build."""

    def jump(self, *, is_back: bool) -> None:
        """Tell the server that the next messages do not follow the last ones."""
        self._server.jump(is_back=is_back)

    def finish(self, stop_ns: int) -> None:
        """Do nothing: the server announces the end."""


def order_for_venue(recordings: Sequence[Recording]) -> Literal["event", "sent"] | None:
    """Return the `order` of a replay that plays messages in the order in which the venue sent them.

    Messages of one slice without keys were recorded in that order, even if their times are not ascending.

    Raises ConfigError for recordings of several days, which are several sessions of the venue.
    """
    dates = sorted({recording.date for recording in recordings})
    if len(dates) > 1:
        raise ConfigError(
            f"recordings of the days {dates[0]} to {dates[-1]} were to be served, expected one: a venue has a session "
            "each day"
        )
    feed = recordings[0].feed
    return "sent" if len(recordings) == 1 and len(feed.slices) == 1 and not feed.key_rule else None
