"""The keeper of a feed's journals: a thread that creates, closes and syncs segments, and acknowledges messages."""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from blackbox.archive.record.journal_writer import JournalWriter
from blackbox.archive.record.settings import Fsync, JournalSettings
from blackbox.block.form.ack_format import NEVER_SYNCED, Acknowledgement
from blackbox.block.form.format import NONCE_BYTES
from blackbox.errors import JournalError
from blackbox.native.system.limits import start_thread
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_PATIENCE_S: Final = 10.0
"""Maximum wait for a running sync in `end`."""
_TICK_S: Final = 0.25
_LOOK_S: Final = 1.0
"""Interval between checks that the files still have their names."""


class Keeper:
    """Tends the journals of a feed, from `start` to `end`.

    After an error nothing is recorded any more, and `on_failure` is called repeatedly until the end. Attributes:
    `pipe`, which wakes the keeper; `error`, the first error.
    """

    def __init__(self, directory: Path, settings: JournalSettings, on_failure: Callable[[], object]) -> None:
        """`directory`: the feed's."""
        self.pipe = Pipe()
        self.error: JournalError | None = None
        self._directory, self._settings, self._on_failure = directory, settings, on_failure
        self._writers: Collection[JournalWriter] = ()
        self._acknowledgers: list[Acknowledger] = []
        self._is_ending = False
        self._synced = self._looked = 0.0
        self._thread = threading.Thread(target=self._run, name="blackbox-recorder", daemon=True)

    def start(self, writers: Collection[JournalWriter], acknowledge: Callable[[int, bytes], None] | None) -> None:
        """Start the thread. `acknowledge`: see `Journals`."""
        self._writers = writers
        if acknowledge is not None:
            self._acknowledgers = [Acknowledger(writer, self._settings.fsync, acknowledge) for writer in writers]
        start_thread(self._thread)

    def end(self) -> bool:
        """End the thread. Return False if it hangs because the disk does not answer."""
        self._is_ending = True
        self.pipe.poke()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
        return not self._thread.is_alive()

    def silent_s(self) -> float:
        """Return the seconds since it last looked at the files; 0.0 if it does not run. Callable from any thread."""
        return time.monotonic() - self._looked if self._thread.is_alive() and self._looked else 0.0

    def late_sync_s(self) -> float:
        """Return the seconds since a sync was due; 0.0 if none is. Callable from any thread."""
        if self._settings.fsync == "never" or not self.silent_s():
            return 0.0
        return max(0.0, time.monotonic() - self._synced - self._settings.fsync_interval_s)

    def fail(self, why: str) -> None:
        """Store and log the first error."""
        if self.error is None:
            self.error = JournalError(f"recording of feed {self._directory.name!r} ended: {why}")
            log.error("%s", self.error)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self.pipe.reader, select.POLLIN)
        self._synced = self._looked = time.monotonic()
        while not self._is_ending:
            if poller.poll(self._tick_s() * 1000):
                os.read(self.pipe.reader, 4096)
            try:
                if self.error is None:
                    self._tend()
            except JournalError as error:
                self.fail(str(error))
            except OSError as error:
                self.fail(in_words(error, self._directory))
            except Exception as error:  # without the keeper recording would stop at midnight
                log.exception("the keeper failed")
                self.fail(f"its keeper failed: {error}")
            if self.error is not None:
                for writer in self._writers:
                    writer.refuse()
                self._on_failure()

    def _tick_s(self) -> float:
        """Return the time to sleep: at most until a sync is due."""
        if self.error is not None or self._settings.fsync != "interval":
            return _TICK_S
        return min(_TICK_S, max(0.0, self._synced + self._settings.fsync_interval_s - time.monotonic()))

    def _tend(self) -> None:
        for acknowledger in self._acknowledgers:
            acknowledger.tell_recorded()
        for writer in self._writers:
            writer.tend()  # after `tell_recorded`, so that the sync below covers its messages
        now = time.monotonic()
        is_due = self._settings.fsync != "never" and now - self._synced >= self._settings.fsync_interval_s
        for writer in self._writers:
            writer.sync(what_is_written=is_due)
        if is_due:
            self._synced = now
            for acknowledger in self._acknowledgers:
                acknowledger.tell_synced()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            for writer in self._writers:
                writer.check_is_there()
        for writer in self._writers:
            if writer.error:
                raise JournalError(writer.error)


class Acknowledger:
    """Acknowledges messages to one slice's publisher once they are recorded, and once they are synced."""

    def __init__(self, writer: JournalWriter, fsync: Fsync, say: Callable[[int, bytes], None]) -> None:
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


def in_words(error: OSError, directory: Path) -> str:
    """Return an error's file, or else the directory, and the reason."""
    return f"{error.filename or directory}: {error.strerror or error}"
