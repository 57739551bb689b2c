"""Read a live source in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from blackbox.feed.live_source import LiveSource
from blackbox.testing import wait_until
from tests.feeds.build import Message, messages_in
from tests.patience import PATIENCE_S


class Reader(threading.Thread):
    """Runs a source until the end of the `with` block, and collects its messages and gaps."""

    def __init__(self, source: LiveSource) -> None:
        super().__init__(daemon=True)
        self.source = source
        self.messages: list[Message] = []
        self.gaps: list[tuple[int, int]] = []
        """Places among the messages, and numbers of missing ones."""
        self.found: list[bytes | int] = []
        """Payloads, and numbers of missing messages at their positions."""
        self.error: Exception | None = None

    @property
    def topics(self) -> list[bytes]:
        return [topic for topic, *_ in self.messages]

    def run(self) -> None:
        try:
            for chunk in self.source.chunks():
                for missing, run in chunk.runs():
                    if missing:
                        self.gaps.append((len(self.messages), missing))
                        self.found.append(missing)
                    messages = list(messages_in(run))
                    self.messages += messages
                    self.found += [payload for *_, payload in messages]
        except Exception as error:  # noqa: BLE001 - for the test
            self.error = error

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is true; fail if the source does."""
        wait_until(lambda: self.error is not None or condition(), PATIENCE_S)
        assert self.error is None, self.error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.source.stop()
        self.join(PATIENCE_S)
        assert not self.is_alive()
