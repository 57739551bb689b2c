"""Tell a publisher how far its messages are recorded and synced. It is never told before it is so."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Literal

from blackbox.archive.journal_writer import JournalWriter
from blackbox.block.acknowledgement import NEVER_SYNCED, Acknowledgement
from blackbox.block.format import NONCE_BYTES


class Acknowledger:
    """What one slice's publisher is told. Used by the maintenance thread, around each sync."""

    def __init__(
        self, writer: JournalWriter, fsync: Literal["never", "interval", "block"], say: Callable[[int, bytes], None]
    ) -> None:
        """`say` gets the slice and what its publisher is told."""
        self._writer, self._fsync, self._say = writer, fsync, say
        name = f"{os.getpid()}@{socket.gethostname()}"
        self._now = Acknowledgement(secrets.token_bytes(NONCE_BYTES), 0, 0, 0, NEVER_SYNCED, 0, name)
        self._told = self._now

    def tell_recorded(self) -> None:
        """Tell how far the journal is with the system."""
        position = self._writer.position()
        synced = self._now.synced if position.epoch == self._now.epoch else position.begin
        if self._fsync == "block":
            synced = position.recorded
        elif self._fsync == "never":
            synced = NEVER_SYNCED
        self._tell(self._now._replace(**position._asdict(), synced=synced))

    def tell_synced(self) -> None:
        """Tell that a sync which began after `tell_recorded` is done: what that told is on the disk."""
        self._tell(self._now._replace(synced=self._now.recorded))

    def _tell(self, now: Acknowledgement) -> None:
        self._now = now
        if now.epoch and now != self._told:
            self._told = now
            self._say(self._writer.slice_id, now.encode())
