"""Counts of everything in an input except its messages, made by the decoders and reported after an iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox_feeds.io.losses import notes_of


@dataclass(frozen=True)
class InputStatistics:
    """Counts of one iteration over an input. All zero for a plain file of messages."""

    packets: int = 0
    """Packets in the capture."""
    datagrams: int = 0
    """UDP datagrams handed to the decoder."""
    not_udp: int = 0
    """Packets skipped: not UDP over IPv4."""
    other_link: int = 0
    """Packets skipped: of an interface with a link type that is not read."""
    malformed: int = 0
    """Packets skipped: the lengths in their headers contradict each other."""
    other_port: int = 0
    """Datagrams skipped: sent to another UDP port."""
    fragments: int = 0
    """Packets skipped: fragments of an IP datagram that is not complete."""
    reassembled: int = 0
    """IP datagrams put together from fragments."""
    cut: int = 0
    """Datagrams skipped: the capture kept only their first bytes."""
    foreign: int = 0
    """Datagrams skipped: of another protocol."""
    sessions: int = 0
    """Sessions of the feed."""
    earlier: int = 0
    """Messages of the first session that were sent before the first one of the input."""
    resets: int = 0
    """Times that the sequence started again inside one session."""
    gaps: int = 0
    """Number of jumps in the sequence numbers."""
    missing: int = 0
    """Messages missing in gaps."""
    late: int = 0
    """Messages that arrived after their gap; they are delivered where they occur."""
    duplicates: int = 0
    """Messages skipped: their sequence numbers were known, e.g. from the other line."""
    too_late: int = 0
    """Messages skipped: too late to know if they were duplicates."""
    unknown: int = 0
    """Messages skipped: of a type that is not in the specification."""
    extended: int = 0
    """Messages longer than specified, which were cut."""
    no_symbol: int = 0
    """Messages skipped: the symbol is not printable ASCII, or begins with `#`."""
    unknown_types: tuple[tuple[str, int], ...] = field(default=(), kw_only=True)
    """Each unknown type, and its number of messages; type "" for empty messages."""
    first_no_symbol: bytes = field(default=b"", kw_only=True)
    """The symbol of the first message that `no_symbol` counts."""

    def notes(self) -> tuple[str, ...]:
        """Return a line for each cause of possible loss."""
        types = ", ".join(f"{kind!r} {count:,}" for kind, count in self.unknown_types)
        # Messages that fill a gap of an input before this one count below 0.
        return notes_of(
            ("packets skipped because their link type is not read", self.other_link),
            ("packets skipped because their headers contradict each other", self.malformed),
            ("packets skipped because they were fragments of an incomplete IP datagram", self.fragments),
            ("datagrams skipped because they were captured only in part", self.cut),
            ("datagrams skipped because they were of another protocol", self.foreign),
            ("sequence restarts inside one session", self.resets),
            ("messages sent before the first one of the input", self.earlier),
            ("sequence gaps", self.gaps),
            ("messages that never came", self.missing),
            ("messages that came late, after a gap", self.late),
            ("messages skipped because they had come before", self.duplicates),
            ("messages skipped because they came too late to know if they had come before", self.too_late),
            (f"messages skipped because their type is unknown ({types})", self.unknown),
            ("messages cut to the specified length", self.extended),
            (f"messages skipped because their symbol cannot be one ({self.first_no_symbol!r} first)", self.no_symbol),
        )


# Decoders count into one int64 array, in the order of the fields.
(
    PACKETS,
    DATAGRAMS,
    NOT_UDP,
    OTHER_LINK,
    MALFORMED,
    OTHER_PORT,
    FRAGMENTS,
    REASSEMBLED,
    CUT,
    FOREIGN,
    SESSIONS,
    EARLIER,
    RESETS,
    GAPS,
    MISSING,
    LATE,
    DUPLICATES,
    TOO_LATE,
    UNKNOWN,
    EXTENDED,
    NO_SYMBOL,
) = range(21)

FIRST_NO_SYMBOL: Final = NO_SYMBOL + 1
"""The eight bytes of the first symbol that was rejected."""
UNKNOWN_TYPES: Final = FIRST_NO_SYMBOL + 1
"""From here on: the messages of each unknown type byte, then empty ones."""
NO_TYPE: Final = 256


def new_counts() -> NDArray[numpy.int64]:
    """Return the array for the decoders' counts."""
    return numpy.zeros(UNKNOWN_TYPES + NO_TYPE + 1, numpy.int64)


def snapshot(counts: NDArray[numpy.int64]) -> InputStatistics:
    """Return the counts so far."""
    of_type = counts[UNKNOWN_TYPES:]
    types = tuple((chr(kind) if kind < NO_TYPE else "", int(of_type[kind])) for kind in numpy.flatnonzero(of_type))
    symbol = counts[FIRST_NO_SYMBOL : FIRST_NO_SYMBOL + 1].astype("<i8").tobytes() if counts[NO_SYMBOL] else b""
    return InputStatistics(*counts[:FIRST_NO_SYMBOL].tolist(), unknown_types=types, first_no_symbol=symbol)


def skipped(counts: NDArray[numpy.int64]) -> InputStatistics:
    """Return only the counts of messages that the decoder skipped or cut."""
    now = snapshot(counts)
    return InputStatistics(
        unknown=now.unknown,
        extended=now.extended,
        no_symbol=now.no_symbol,
        unknown_types=now.unknown_types,
        first_no_symbol=now.first_no_symbol,
    )
