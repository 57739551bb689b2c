"""A driven client in a separate process, and the program that drives it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import zmq

CLIENT: Final = """
import asyncio
from blackbox.services.hub.client.driven_client import DrivenClient
def work(directory, endpoint, keep=""):
    async def serve():
        async with AsyncHubClient(feed, "desk", directory, keep=keep == "keep") as client:
            def count():
                notes[0] += 1
            await DrivenClient(client, endpoint).serve(count)
    asyncio.run(serve())
"""


class Driver:
    """Drives a client like a program in any language: JSON over a DEALER socket, sent again if no answer arrives."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(endpoint)
        self._number = 0

    def send(self, **asked: Any) -> None:
        self._socket.send(msgspec.json.encode(asked))

    def answer(self, patience_s: float = 60.0) -> dict[str, Any] | None:
        if not self._socket.poll(round(1e3 * patience_s)):
            return None
        found: dict[str, Any] = msgspec.json.decode(self._socket.recv())
        return found

    def ask(self, patience_s: float = 60.0, **asked: Any) -> dict[str, Any] | None:
        """Return the answer to this request; None: no answer arrived in time."""
        self._number += 1
        self.send(number=self._number, **asked)
        while (answer := self.answer(patience_s)) is not None:
            if answer.pop("number") == self._number:
                return answer
        return None

    def close(self) -> None:
        self._socket.close()
