"""Block a subscriber's callback until a test releases it."""

from __future__ import annotations

import threading

from blackbox import Batch, Message


class Gate:
    """Callbacks for messages and batches that wait until the gate is open and count messages."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.messages = 0

    def wait(self) -> None:
        """Note that a callback has started and wait until the gate is open, at most 60 s."""
        self.entered.set()
        self.open.wait(200)

    def message(self, message: Message) -> None:
        self.wait()
        self.messages += 1

    def batch(self, batch: Batch) -> None:
        self.wait()
        self.messages += len(batch)
