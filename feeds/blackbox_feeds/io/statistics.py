"""What an input held besides its messages: counted by the decoders, told after an iteration."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy
from numpy.typing import NDArray


@dataclass(frozen=True)
class InputStatistics:
    """Counts of one iteration over an input. All zero for a plain file of messages."""

    packets: int = 0
    """Packets in the capture."""
    datagrams: int = 0
    """UDP datagrams handed to the decoder."""
    not_udp: int = 0
    """Packets skipped: not UDP over IPv4 over Ethernet."""
    malformed: int = 0
    """Packets skipped: the lengths in their headers contradict each other."""
    other_port: int = 0
    """Datagrams skipped: sent to another UDP port than the one asked for."""
    fragments: int = 0
    """Packets skipped: fragments of an IP datagram."""
    cut: int = 0
    """Datagrams skipped: the capture kept only their first bytes."""
    foreign: int = 0
    """Datagrams skipped: of another protocol than this feed's."""
    sessions: int = 0
    """Times that another session of the feed began."""
    resets: int = 0
    """Times that the sequence started again inside one session."""
    gaps: int = 0
    """Times that sequence numbers were jumped over."""
    missing: int = 0
    """Messages that gaps jumped over and that never came."""
    late: int = 0
    """Messages that came after a gap had jumped over them; they are delivered where they came."""
    duplicates: int = 0
    """Messages skipped: their sequence numbers had been seen, e.g. on the other line."""
    unknown: int = 0
    """Messages skipped: of a type that is not in the specification."""
    extended: int = 0
    """Messages that were longer than specified; what they had more is left out."""

    def notes(self) -> tuple[str, ...]:
        """Return a line for each thing that cost messages, or may have."""
        told = (
            ("packets skipped because their headers contradict each other", self.malformed),
            ("packets skipped because they were fragments of an IP datagram", self.fragments),
            ("datagrams skipped because they were captured only in part", self.cut),
            ("datagrams skipped because they were of another protocol", self.foreign),
            ("sequence restarts inside one session", self.resets),
            ("sequence gaps", self.gaps),
            ("messages that never came", self.missing),
            ("messages that came late, after a gap", self.late),
            ("messages skipped because they had come before", self.duplicates),
            ("messages skipped because their type is unknown", self.unknown),
            ("messages cut to the specified length", self.extended),
        )
        return tuple(f"{words}: {count:,}" for words, count in told if count)


# Decoders count into one int64 array, in the order of the fields.
(
    PACKETS,
    DATAGRAMS,
    NOT_UDP,
    MALFORMED,
    OTHER_PORT,
    FRAGMENTS,
    CUT,
    FOREIGN,
    SESSIONS,
    RESETS,
    GAPS,
    MISSING,
    LATE,
    DUPLICATES,
    UNKNOWN,
    EXTENDED,
) = range(16)


def new_counts() -> NDArray[numpy.int64]:
    """Return the array that decoders count into."""
    return numpy.zeros(len(fields(InputStatistics)), numpy.int64)


def snapshot(counts: NDArray[numpy.int64]) -> InputStatistics:
    """Return what has been counted so far."""
    return InputStatistics(*counts.tolist())
