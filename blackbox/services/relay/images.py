"""The newest message of each topic at a relay, so that late subscribers below it need nothing from the source."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from blackbox.archive.files.day import Lock, as_journal_error
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.serve.client import ArchiveClient, SliceImage
from blackbox.archive.serve.server import ArchiveServer, ArchiveStatistics
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, BlackBoxError, ConfigError, JournalError, RelayError
from blackbox.feed.feed import Feed, with_archive
from blackbox.native.system.limits import start_thread
from blackbox.repeated_log import RepeatedLog

log = logging.getLogger("blackbox")

_DIRECTORY: Final = "relay-images"
_KEPT: Final = Retention(most_days=2)
"""The archive must have read a day before it is deleted, and reads at least once in `_READ_EVERY_S`."""
_READ_EVERY_S: Final = 60.0
_ANSWER_S: Final = 5.0
"""Wait for an image; an archive that reads many days goes on reading while it is asked again."""
_AGAIN_S: Final = 1.0
_NO_TOPIC: Final = b"\xff" * 32
"""A prefix without topics: an image of it makes the archive read on."""


class RelayImages:
    """An archive at the first of `archives` below a relay. Its thread is `blackbox-relay-images`.

    It records what passes from its start on, beginning with an image from the archives above. What an earlier run
    recorded is deleted. Attributes: `ready`, set once it answers.
    """

    def __init__(self, upstream: Feed, downstream: Feed, directory: str | os.PathLike[str]) -> None:
        """Raises ConfigError if the feed below has no archive, or that of the feed above."""
        if not downstream.archives or downstream.archives[0] in upstream.archives:
            raise ConfigError(
                f"archives of feed {downstream.name!r} below the relay were {list(downstream.archives)}, expected "
                "first an endpoint for the relay's own images"
            )
        self.ready = threading.Event()
        self.error: BlackBoxError | None = None
        """Why it has ended."""
        self._upstream, self._downstream = upstream, downstream
        self._directory = Path(directory) / _DIRECTORY
        self._over = threading.Event()
        self._archive: ArchiveServer | None = None
        self._thread = threading.Thread(target=self._run, name="blackbox-relay-images", daemon=True)

    def start(self) -> None:
        """Start to record, once the source sends. Raises JournalError if the directory cannot be used."""
        try:
            self._open()
        except OSError as error:
            raise as_journal_error(error, f"{self._directory} cannot hold the images of a relay") from error

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self._directory)
        try:
            for left in self._directory.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
            self._recorder = Recorder(self._downstream, self._directory, fsync="never", retention=_KEPT)
            start_thread(self._thread)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """End, and delete what was recorded."""
        if self._over.is_set() or self._thread.ident is None:
            return
        self._over.set()
        with suppress(BlackBoxError):  # the thread reports it
            self._recorder.stop()
        self._thread.join()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._lock.close()

    def statistics(self) -> ArchiveStatistics | None:
        """Counters of the archive; None before it answers."""
        return None if self._archive is None else self._archive.statistics()

    def _run(self) -> None:
        feed = self._downstream
        endpoint = feed.archives[0]
        try:
            with ExitStack() as stack:
                stack.enter_context(self._recorder)
                beginnings = self._images_above()
                if self._over.is_set():
                    return
                directory = self._directory / feed.name
                self._archive = archive = ArchiveServer(directory, (endpoint,), feed=feed, beginnings=beginnings)
                stack.enter_context(archive)
                own = stack.enter_context(ArchiveClient(with_archive(feed, endpoint)).kept())
                self.ready.set()
                repeated = RepeatedLog(log)
                while not self._over.wait(_READ_EVERY_S):
                    if why := self._recorder._journals.failure():
                        raise JournalError(why)  # its images would be old ones
                    for slice_id in range(len(feed.slices)):
                        try:
                            own.image(slice_id, (_NO_TOPIC,), timeout=_ANSWER_S)
                        except ArchiveError as error:  # it is busy: its readers make it read on
                            repeated.warning("", "relay of feed %r: its archive answers late: %s", feed.name, error)
        except BlackBoxError as error:
            if not self._over.is_set():
                self.error = error
                log.error("relay of feed %r: no images any more: %s", feed.name, error)
        except Exception as error:  # any error that ends this thread must be reported
            log.exception("relay of feed %r: no images any more", feed.name)
            if not self._over.is_set():
                self.error = RelayError(f"relay of feed {feed.name!r}: no images any more: {error}")
                self.error.__cause__ = error

    def _images_above(self) -> dict[int, SliceImage]:
        """Return images by slice, at least as new as what is recorded; none without archives above."""
        if not self._upstream.archives:
            return {}
        first, found = self._recorder._first_positions(), dict[int, SliceImage]()
        with ArchiveClient(self._upstream).kept() as above:
            for slice_id in range(len(self._upstream.slices)):
                image = self._image_above(above, slice_id, first.get(slice_id, Position(0, 0)))
                if image is not None:
                    found[slice_id] = image
        return found

    def _image_above(self, above: ArchiveClient, slice_id: int, first: Position) -> SliceImage | None:
        """Return an image that reaches the first recorded message; None if the relay ends."""
        was = Position(-1, 0)
        is_reported = False
        while not self._over.is_set():
            try:
                image = above.image(slice_id, timeout=_ANSWER_S)
            except ArchiveError as error:
                if not is_reported:
                    log.warning("relay of feed %r waits for an image: %s", above.feed.name, error)
                is_reported = True
            else:
                # Before the first message of an epoch, the archive has none of it, and nothing more of earlier ones.
                if image.position >= first or (first.sequence == 0 and image.position == was):
                    return image
                was = image.position
            self._over.wait(_AGAIN_S)
        return None
