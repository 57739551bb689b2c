"""Settings of journals that recorders and outboxes share."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypedDict

import msgspec

from blackbox.archive.files.codec import CODECS, Compression
from blackbox.archive.files.format import SEGMENT_BYTES
from blackbox.archive.maintain.retention import EVERYTHING, Retention
from blackbox.arguments import check_integers, duration_ns

Fsync = Literal["never", "interval", "block"]


class JournalKeywords(TypedDict, total=False):
    """Settings of a recorder's or an outbox's journals. Durations are seconds or `timedelta`."""

    fsync: Fsync
    """Durability of blocks; "interval" by default. A killed recorder loses only data that it has not yet passed to the
    system: less than 1 MiB per slice, nothing once the line was idle. An outbox passes each block to the system before
    the block is sent. After a power loss, "interval" loses at most the last `fsync_interval`; "block" loses nothing,
    but waits for the disk at every block; "never" leaves syncing to the system, which takes about 30 s."""
    fsync_interval: float | timedelta
    """Time between two syncs with "interval"; 1 s by default."""
    segment_bytes: int
    """Size at which the next segment is begun, 1 MiB to 1 TiB; 256 MiB by default."""
    compression: Compression
    """Compression of bodies. Replays use uncompressed bodies ("none", the default) without a copy. "lz4" and "zstd"
    make smaller files and take the GIL once per block. `blackbox compact` compresses later, in larger blocks."""
    serve: bool | str
    """True to serve recorded blocks at the feed's first archive endpoint, or an endpoint to serve at, in a separate
    thread. Any client that can connect may read all recordings of the feed there."""
    retention: Retention
    """Limits for the recordings that are kept. Once a minute whole days beyond them are deleted, never the newest."""


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked `JournalKeywords`. Raises ValueError for an invalid setting, ConfigError for one without effect."""

    fsync: Fsync = "interval"
    fsync_interval: float | timedelta = 1.0
    segment_bytes: int = SEGMENT_BYTES
    compression: Compression = "none"
    serve: bool | str = False
    retention: Retention = EVERYTHING

    def __post_init__(self) -> None:
        check_integers(("segment_bytes", self.segment_bytes, 1 << 20, 1 << 40))
        _ = self.fsync_interval_s
        if self.fsync not in ("never", "interval", "block"):
            raise ValueError(f"fsync was {self.fsync!r}, expected never, interval or block")
        if self.compression not in CODECS:
            raise ValueError(f"compression was {self.compression!r}, expected none, lz4 or zstd")
        self.retention.check()

    @property
    def fsync_interval_s(self) -> float:
        """`fsync_interval` in seconds."""
        return duration_ns("fsync_interval", self.fsync_interval, 0.001, 3_600) / 1e9
