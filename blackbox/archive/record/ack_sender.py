"""Acknowledge messages to their publisher once they are recorded, and once they are synced."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Literal

from blackbox.archive.record.journal_writer import JournalWriter
from blackbox.block.form.ack_format import NEVER_SYNCED, Acknowledgement
from blackbox.block.form.format import NONCE_BYTES


class Acknowledger:
    """Sends acknowledgements to one slice's publisher. Used by the maintenance thread, around each sync."""

    def __init__(
        self, writer: JournalWriter, fsync: Literal["never", "interval", "block"], say: Callable[[int, bytes], None]
    ) -> None:
        """`say` is called with the slice and the encoded acknowledgement."""
        self._writer, self._fsync, self._say = writer, fsync, say
        name = f"{os.getpid()}@{socket.gethostname()}"
        self._now = Acknowledgement(secrets.token_bytes(NONCE_BYTES), 0, 0, 0, NEVER_SYNCED, 0, name)
        self._told = self._now

    def tell_recorded(self) -> None:
        """Acknowledge the messages that have been written to the file."""
        position = self._writer.position()
        synced = self._now.synced if position.epoch == self._now.epoch else position.begin
        if self._fsync == "block":
            synced = position.recorded
        elif self._fsync == "never":
            synced = NEVER_SYNCED
        self._tell(self._now._replace(**position._asdict(), synced=synced))

    def tell_synced(self) -> None:
        """Acknowledge the same messages as synced. Call it after a sync that began after `tell_recorded`."""
        self._tell(self._now._replace(synced=self._now.recorded))

    def _tell(self, now: Acknowledgement) -> None:
        self._now = now
        if now.epoch and now != self._told:
            self._told = now
            self._say(self._writer.slice_id, now.encode())
