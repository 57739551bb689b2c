"""Serve recorded blocks: a ROUTER socket, and one thread that answers requests in turn."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

import msgspec
import zmq

from blackbox.archive.consumer_positions import SECRET_BYTES, ConsumerStore, Owner
from blackbox.archive.serve.images import Images
from blackbox.archive.serve.newest_of_slice import warm_up_images
from blackbox.archive.serve.pieces import Pieces, StaleCursorError
from blackbox.archive.serve.protocol import (
    ENCODER,
    MOST_REQUEST_BYTES,
    REQUESTS,
    AskAbout,
    AskBlocks,
    AskImage,
    AskPosition,
    Noted,
    Refusal,
    TellConsumer,
)
from blackbox.archive.serve.turns import Turn, Turns
from blackbox.block.form.layout import VERSION
from blackbox.documents import DecodeError
from blackbox.errors import BlackBoxError, ConfigError, PositionError, RightsError
from blackbox.feed.endpoint import check_service
from blackbox.feed.feed import Feed
from blackbox.feed.rights import Prefixes
from blackbox.native.system.limits import Needs
from blackbox.native.system.priority import give_way, let_others_go_first
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import key_of
from blackbox.transport.security.gate import Gate, open_gate
from blackbox.transport.server_thread import ServerThread, bind, receive

if TYPE_CHECKING:
    from blackbox.archive.serve.client import SliceImage

log = logging.getLogger("blackbox")

QUEUE_PIECES: Final = 2
"""Maximum number of queued answers per reader. It bounds the memory that a hung reader holds."""
QUEUE_REQUESTS: Final = 64
"""Maximum number of queued requests per reader. More wait at the reader."""
_REQUEST_FRAMES: Final = 3
_MOST_TAKEN: Final = 256
"""Maximum number of requests received between two answers."""
_LINGER_MS: Final = 500
_PATIENCE_S: Final = 10.0
_WAITS_S: Final = 1.0
"""Time within which a reader that must wait repeats its request."""
_GOODBYE_S: Final = 0.5
"""Time for which a closing archive still answers waiting readers, so that they learn that nothing follows."""
_WAIT_TIMES: Final = 9
"""While the recorder is recording, the archive pauses after each answer for this many times its duration."""
_MOST_WAIT_S: Final = 0.05
_LOOK_S: Final = 0.001
_NEEDS: Final = Needs(descriptors=64)


class ArchiveStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of an archive."""

    answered: int
    """Requests answered."""
    refused: int
    """Requests answered with an error."""
    dropped: int
    """Requests without an answer: malformed, or from a reader that was gone or did not read."""
    disconnected: int
    """Readers disconnected because they sent requests without reading the answers."""
    refused_peers: int
    """Connections rejected because of their key (`[security]`)."""


class ArchiveServer:
    """Serves the recordings of one feed, in its own thread, as a context manager.

    Any client that can connect may read all recordings; with `[security]`, only clients with an allowed key, and only
    the topics of its rights.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        endpoints: tuple[str, ...],
        is_recording: Callable[[], bool] = lambda: False,
        keeps_for_consumers: bool = False,
        feed: Feed | None = None,
        beginnings: Mapping[int, SliceImage] = MappingProxyType({}),
    ) -> None:
        """Settings; nothing is opened before `open`.

        Args:
            directory: the feed's directory, which has one for each day.
            endpoints: endpoints to bind.
            is_recording: returns True while a recorder in this process is appending. The archive then works a tenth of
                the time, so that readers do not delay the recorder.
            keeps_for_consumers: True to store positions of named consumers, whose days are not deleted.
            feed: its `[security]` decides who may read; None: everyone.
            beginnings: by slice, the newest messages before the recordings; images then hold these too.

        Raises ConfigError for an invalid endpoint.
        """
        self.directory = Path(directory)
        self.endpoints = endpoints
        self._feed, self._beginnings = feed, beginnings
        self._gate: Gate | None = None
        self._is_recording, self._keeps_for_consumers = is_recording, keeps_for_consumers
        if not endpoints:
            raise ConfigError("no archive endpoint was given, expected at least one")
        for endpoint in endpoints:
            check_service(endpoint)
        self._later_at = -_WAITS_S
        """Time at which a reader was last asked to wait."""
        self._counts = {"answered": 0, "refused": 0, "dropped": 0}
        self._turns = Turns(f"archive {self.directory}")
        self._thread = ServerThread("blackbox-archive", f"archive {self.directory}", self._serve)

    def open(self) -> None:
        """Bind the endpoints and start the thread. Raises EndpointError or, for an invalid key, ConfigError."""
        warm_up_images()
        self._thread.start()

    def close(self) -> None:
        """Wait for the current answer, unless the disk hangs, then end the thread and close its sockets."""
        if not self._thread.end(_PATIENCE_S):
            log.error("archive %s is still answering: the disk does not answer", self.directory)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> ArchiveStatistics:
        """A snapshot."""
        refused = self._gate.refused if self._gate is not None else 0
        counts = {**self._counts, "dropped": self._counts["dropped"] + self._turns.dropped}
        return ArchiveStatistics(**counts, disconnected=self._turns.disconnected, refused_peers=refused)

    def _serve(self) -> None:
        give_way()  # also for libzmq's I/O thread, which starts here
        with ExitStack() as stack:
            context = stack.enter_context(new_context("archive", _NEEDS))
            bound = self.endpoints if self._feed is None else [self._feed.bound(each) for each in self.endpoints]
            if self._feed is not None:
                self._gate = open_gate(context, self._feed, bound, f"archive {self.directory}")
            if self._gate is not None:
                stack.callback(self._gate.close)
            socket = stack.enter_context(context.socket(zmq.ROUTER))
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_REQUEST_BYTES)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # otherwise drops are not counted
            socket.sndhwm, socket.rcvhwm = QUEUE_PIECES, QUEUE_REQUESTS
            socket.linger = _LINGER_MS
            keep_alive(socket, must_take=True)
            for endpoint in bound:
                allow_ipv6(socket, endpoint)
                if self._gate is not None:
                    self._gate.secure(socket, endpoint)
                bind(socket, endpoint, "archive endpoint")
            let_others_go_first()
            reader = _Reader(self.directory, self._beginnings)
            for frames in self._thread.frames(socket, self._turns.wait_s):
                self._take_all(socket, frames)
                self._answer_next(socket, reader)
            until = time.monotonic() + (_GOODBYE_S if time.monotonic() - self._later_at < _WAITS_S else 0)
            while (left_s := until - time.monotonic()) > 0:
                wait_s = self._turns.wait_s()
                socket.poll(round(1e3 * (left_s if wait_s is None else min(left_s, wait_s))))
                self._take_all(socket, [])
                self._answer_next(socket, reader)

    def _take_all(self, socket: zmq.Socket[bytes], frames: list[zmq.Frame]) -> None:
        """Receive the waiting requests, after a first one if given."""
        self._turns.sweep()
        for _ in range(_MOST_TAKEN):
            if not frames:
                if not int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
                    break
                with suppress(zmq.Again):
                    frames = receive(socket, zmq.NOBLOCK)
            if len(frames) == _REQUEST_FRAMES:
                self._turns.take(frames)
            elif frames:
                self._counts["dropped"] += 1
            frames = []

    def _answer_next(self, socket: zmq.Socket[bytes], reader: _Reader) -> None:
        """Answer the next request, if there is one."""
        turn = self._turns.next()
        if turn is not None:
            began = time.monotonic()
            turn.reader.note_sent(self._answer(socket, reader, turn))
            self._give_way(time.monotonic() - began)

    def _give_way(self, worked_s: float) -> None:
        """Pause while the recorder is recording, for nine times the duration of the last answer."""
        until = time.monotonic() + min(_WAIT_TIMES * worked_s, _MOST_WAIT_S)
        while self._is_recording() and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def _answer(self, socket: zmq.Socket[bytes], reader: _Reader, turn: Turn) -> int:
        """Answer one request. Return the size of the answer; 0 if it was dropped."""
        what, answer = "answered", []
        try:
            answer = self._answer_to(reader, turn)
        except DecodeError as error:
            refusal = Refusal(f"request was not understood by an archive of version {VERSION}: {error}")
        except (BlackBoxError, OSError, ValueError) as error:
            refusal = Refusal(str(error), isinstance(error, StaleCursorError))
        except Exception as error:  # other requests must still be answered
            log.exception("archive %s could not answer", self.directory)
            refusal = Refusal(f"the archive failed: {error!r}")
        if not answer:
            why = refusal.why.replace(f"{self.directory.parent}{os.sep}", "")  # without the location of the files
            why = why.encode(errors="backslashreplace").decode()  # a path need not be UTF-8
            what, answer = "refused", [ENCODER.encode(msgspec.structs.replace(refusal, why=why))]
        try:
            socket.send_multipart([turn.frames[0].bytes, turn.frames[1].bytes, *answer], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            what, answer = "dropped", []
        self._counts[what] += 1
        return sum(map(len, answer))

    def _rights_of(self, frame: zmq.Frame) -> tuple[str | None, Prefixes | None]:
        """Return the name of the sender's key, None without one, and the prefixes that it may read, None for all."""
        key = key_of(frame) if self._gate is not None else ""
        if self._gate is None or not key:
            return None, None
        self._gate.look()
        name, rights = self._gate.rights_of(key)
        return name, None if rights is None or b"" in rights else rights

    def _answer_to(self, reader: _Reader, turn: Turn) -> list[bytes | memoryview]:
        frame = turn.frames[2]
        request, (name, rights) = REQUESTS.decode(frame.bytes), self._rights_of(frame)
        if rights == ():
            raise RightsError("the key has no right to any topic")
        if isinstance(request, AskBlocks | AskImage) and rights is not None:
            _check_rights(request, rights)
        if isinstance(request, AskAbout):
            return [ENCODER.encode(reader.pieces.about(request.day))]
        if isinstance(request, AskImage):
            image, blocks = reader.images.answer(request, rights, turn.most_bytes, turn.received_at)
            return [ENCODER.encode(image), *(frame for block in blocks for frame in block.frames)]
        if isinstance(request, AskPosition):
            return [ENCODER.encode(reader.pieces.position_at(request.slice_id, request.start_ns))]
        if isinstance(request, TellConsumer):
            self._note_consumer(reader, request, name, frame)
            return [ENCODER.encode(Noted())]
        found = reader.pieces.read(request, rights, turn.most_bytes)
        if found.piece.state == "later":
            self._later_at = time.monotonic()
        return [ENCODER.encode(found.piece), *(frame for block in found.blocks for frame in block.frames)]

    def _note_consumer(self, reader: _Reader, request: TellConsumer, key: str | None, frame: zmq.Frame) -> None:
        """Store or delete the positions of a consumer of a key, or else of a secret.

        Raises PositionError.
        """
        if request.slices and not self._keeps_for_consumers:
            return  # it deletes nothing
        if key is not None:
            owner = Owner.of_key(key)
        elif len(request.secret) == SECRET_BYTES:
            owner = Owner.of_secret(request.secret, _host_of(frame))
        else:
            raise PositionError(
                f"consumer {request.name!r} was sent without a key and with a secret of {len(request.secret)} bytes, "
                f"expected {SECRET_BYTES}, so that no other process can move it"
            )
        if not request.slices:
            reader.consumers.end(owner, request.name)
            return
        reader.pieces.check_positions(request.slices)
        reader.consumers.note(owner, request.name, request.slices, request.prefixes)


class _Reader:
    """Files of an archive, used by its thread."""

    def __init__(self, directory: Path, beginnings: Mapping[int, SliceImage]) -> None:
        self.pieces = Pieces(directory)
        self.images = Images(self.pieces, beginnings)
        self.consumers = ConsumerStore(directory)


def _check_rights(request: AskBlocks | AskImage, rights: Prefixes) -> None:
    """Raise RightsError unless all requested topics may be read, or some of them if the request may be narrowed."""
    refused = [prefix for prefix in request.prefixes if not prefix.startswith(rights)]
    wider = [prefix for prefix in refused if any(right.startswith(prefix) for right in rights)]
    is_narrowed = request.may_narrow and (wider or len(refused) < len(request.prefixes))
    if refused and not is_narrowed:
        raise RightsError(f"the key has no right to topics that begin with {refused[0]!r}")


def _host_of(frame: zmq.Frame) -> str:
    """Return the address of a frame's sender; empty on ipc."""
    with suppress(zmq.ZMQError):
        return str(frame.get("Peer-Address"))
    return ""


def archive_of(
    directory: Path,
    feed: Feed,
    serve: bool | str,
    is_recording: Callable[[], bool] = lambda: False,
    keeps_for_consumers: bool = False,
) -> ArchiveServer:
    """Return the archive server of a feed's directory, at the feed's first archive or at the endpoint `serve`.

    Raises ConfigError if the feed has none, or the endpoint is malformed.
    """
    if not isinstance(serve, str) and not feed.archives:
        raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
    endpoints = (serve if isinstance(serve, str) else feed.archives[0],)
    return ArchiveServer(directory, endpoints, is_recording, keeps_for_consumers, feed)
