"""Answer who asks for recorded blocks: a ROUTER socket, and one thread that reads for one request after the other."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import zmq

from blackbox.archive.newest import warm_up_images
from blackbox.archive.retention import note_consumer
from blackbox.archive.serve.images import Images
from blackbox.archive.serve.pieces import Pieces, StaleCursorError
from blackbox.archive.serve.protocol import (
    ENCODER,
    MOST_REQUEST_BYTES,
    REQUESTS,
    AskAbout,
    AskBlocks,
    AskEnds,
    AskImage,
    Noted,
    Refusal,
    TellConsumer,
)
from blackbox.block.position import SlicePosition
from blackbox.errors import ArchiveError, BlackBoxError, ConfigError, RightsError
from blackbox.feed.endpoint import check_archive
from blackbox.feed.feed import Feed
from blackbox.feed.rights import Prefixes
from blackbox.native.limits import Needs
from blackbox.native.priority import give_way, let_others_go_first
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.curve import key_of
from blackbox.transport.gate import Gate, open_gate
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.server_thread import ServerThread, bind

log = logging.getLogger("blackbox")

QUEUE_PIECES: Final = 2
"""Answers that may wait for one reader: this bounds what a reader that hangs can hold."""
QUEUE_REQUESTS: Final = 64
"""Requests of one reader that wait for the archive; more wait on the reader's side."""
_REQUEST_FRAMES: Final = 3
_LINGER_MS: Final = 500
_PATIENCE_S: Final = 10.0
_WAITS_S: Final = 1.0
"""A reader that was told to ask later does so within this time."""
_GOODBYE_S: Final = 0.5
"""How long a closing archive still answers readers that wait: they hear that nothing follows."""
_WAIT_TIMES: Final = 9
"""While the recorder has more to record, the archive waits this many times as long as it took for an answer."""
_MOST_WAIT_S: Final = 0.05
_LOOK_S: Final = 0.001
_NEEDS: Final = Needs(descriptors=64)


class ArchiveStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive has done so far."""

    answered: int
    """Requests that were answered."""
    refused: int
    """Requests that were answered with an error."""
    dropped: int
    """Requests that got no answer: they were malformed, or their reader took no more answers or was gone."""
    refused_peers: int
    """Connections that were refused for their key (`[security]`)."""


class ArchiveServer:
    """Answers for the recordings of one feed, in a thread of its own, from `with` to its end.

    Whoever can reach an endpoint may read all recordings; where the feed has `[security]`, whoever has an allowed key,
    and of those topics that it has a right to.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        endpoints: tuple[str, ...],
        is_recording: Callable[[], bool] = lambda: False,
        keeps_for_consumers: bool = False,
        feed: Feed | None = None,
    ) -> None:
        """Settings; nothing is opened before `open`.

        Args:
            directory: the feed's, which has a directory for each day.
            endpoints: where to answer.
            is_recording: whether a recorder beside it has something to record at this moment. While it has, the archive
                works a tenth of the time, so that readers cannot hold the recorder up.
            keeps_for_consumers: whether to note how far named consumers are: what they need is not deleted.
            feed: the one whose `[security]` says who may ask; None: everybody may.

        Raises ConfigError for a wrong endpoint.
        """
        self.directory = Path(directory)
        self.endpoints = endpoints
        self._feed = feed
        self._gate: Gate | None = None
        self._is_recording, self._keeps_for_consumers = is_recording, keeps_for_consumers
        if not endpoints:
            raise ConfigError("archives were none, expected at least one endpoint to answer at")
        for endpoint in endpoints:
            check_archive(endpoint)
        self._later_at = -_WAITS_S
        """When a reader was last told to ask later."""
        self._counts = {"answered": 0, "refused": 0, "dropped": 0}
        self._thread = ServerThread("blackbox-archive", f"archive {self.directory}", self._serve)

    def open(self) -> None:
        """Bind the endpoints and answer. Raises EndpointError when one cannot be bound, ConfigError for a wrong key."""
        warm_up_images()
        self._thread.start()

    def close(self) -> None:
        """Wait for the answer that is being given, unless the disk hangs; then end the thread and its sockets."""
        if not self._thread.end(_PATIENCE_S):
            log.error("archive %s is still answering: the disk does not answer", self.directory)

    def __enter__(self) -> Self:
        """As `open`."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> ArchiveStatistics:
        """A snapshot."""
        return ArchiveStatistics(**self._counts, refused_peers=self._gate.refused if self._gate is not None else 0)

    def _serve(self) -> None:
        give_way()  # so does the thread that sends for it, which is started from here
        with ExitStack() as stack:
            context = stack.enter_context(new_context("archive", _NEEDS))
            if self._feed is not None:
                self._gate = open_gate(context, self._feed, self.endpoints, f"archive {self.directory}")
            if self._gate is not None:
                stack.callback(self._gate.close)
            socket = stack.enter_context(context.socket(zmq.ROUTER))
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_REQUEST_BYTES)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else what a slow reader does not take vanishes uncounted
            socket.sndhwm, socket.rcvhwm = QUEUE_PIECES, QUEUE_REQUESTS
            socket.linger = _LINGER_MS
            keep_alive(socket, must_take=True)
            for endpoint in self.endpoints:
                allow_ipv6(socket, endpoint)
                if self._gate is not None:
                    self._gate.secure(socket, endpoint)
                bind(socket, endpoint, "archive endpoint")
            let_others_go_first()
            pieces = Pieces(self.directory)
            images = Images(pieces)
            for frames in self._thread.frames(socket):
                began = time.monotonic()
                self._answer(socket, pieces, images, frames)
                self._give_way(time.monotonic() - began)
            until = time.monotonic() + (_GOODBYE_S if time.monotonic() - self._later_at < _WAITS_S else 0)
            while (left_s := until - time.monotonic()) > 0 and socket.poll(round(1e3 * left_s)):
                self._answer(socket, pieces, images, socket.recv_multipart(copy=False))

    def _give_way(self, worked_s: float) -> None:
        """Leave the cores to a recorder that has something to record, for nine times as long as an answer took."""
        until = time.monotonic() + min(_WAIT_TIMES * worked_s, _MOST_WAIT_S)
        while self._is_recording() and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def _answer(self, socket: zmq.Socket[bytes], pieces: Pieces, images: Images, request: list[zmq.Frame]) -> None:
        """Answer one request: reader, number, request."""
        frames = [frame.bytes for frame in request]
        if len(frames) != _REQUEST_FRAMES:
            self._counts["dropped"] += 1
            return
        what, answer = "answered", []
        try:
            answer = self._answer_to(pieces, images, frames[2], self._rights_of(request[2]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refusal = Refusal(f"request was not understood: {error}")
        except (BlackBoxError, OSError, ValueError) as error:
            refusal = Refusal(str(error), isinstance(error, StaleCursorError))
        except Exception as error:  # one request must not end the answers to all others
            log.exception("archive %s could not answer", self.directory)
            refusal = Refusal(f"the archive failed: {error!r}")
        if not answer:
            why = refusal.why.replace(
                f"{self.directory.parent}{os.sep}", ""
            )  # where the files are is nobody's business
            why = why.encode(errors="backslashreplace").decode()  # a path need not be UTF-8
            what, answer = "refused", [ENCODER.encode(msgspec.structs.replace(refusal, why=why))]
        try:
            socket.send_multipart([*frames[:2], *answer], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            what = "dropped"
        self._counts[what] += 1

    def _rights_of(self, frame: zmq.Frame) -> Prefixes | None:
        """Return the prefixes that who sent a frame may ask for; None: all."""
        if self._gate is None:
            return None
        self._gate.look()
        key = key_of(frame)
        return self._gate.rights_of(key)[1] if key else None

    def _answer_to(
        self, pieces: Pieces, images: Images, text: bytes, rights: Prefixes | None
    ) -> list[bytes | memoryview]:
        request = REQUESTS.decode(text)
        if isinstance(request, AskBlocks | AskImage) and rights is not None:
            if isinstance(request, AskImage):
                asked = request.prefixes
            else:
                asked = [each.key for each in request.ranges]
                asked = asked or [request.prefix if request.key is None else request.key]
            for prefix in asked:
                may_narrow = request.may_narrow and any(right.startswith(prefix) for right in rights)
                if not (may_narrow or prefix.startswith(rights)):
                    raise RightsError(f"the key has no right to topics that begin with {prefix!r}")
        if isinstance(request, AskAbout):
            return [ENCODER.encode(pieces.about(request.day, request.back))]
        if isinstance(request, AskEnds):
            return [ENCODER.encode(pieces.ends(request, rights))]
        if isinstance(request, AskImage):
            image, blocks = images.answer(request, rights)
            return [ENCODER.encode(image), *(frame for block in blocks for frame in block.frames)]
        if isinstance(request, TellConsumer):
            if not self._keeps_for_consumers:
                raise ArchiveError("consumers were told to an archive that deletes nothing")
            positions: dict[int, SlicePosition] = {**request.slices, **request.keys}
            note_consumer(self.directory, self.directory.name, request.name, positions)
            return [ENCODER.encode(Noted())]
        found = pieces.read(request, rights)
        if found.piece.state == "later":
            self._later_at = time.monotonic()
        return [ENCODER.encode(found.piece), *(frame for block in found.blocks for frame in block.frames)]


def archive_of(
    directory: Path,
    feed: Feed,
    serve: bool | str,
    is_recording: Callable[[], bool] = lambda: False,
    keeps_for_consumers: bool = False,
) -> ArchiveServer:
    """Return the archive of a feed's directory, at the feed's first archive, or at the endpoint `serve`.

    Raises ConfigError when the feed has none, or the endpoint is malformed.
    """
    if not isinstance(serve, str) and not feed.archives:
        raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
    endpoints = (serve if isinstance(serve, str) else feed.archives[0],)
    return ArchiveServer(directory, endpoints, is_recording, keeps_for_consumers, feed)
