"""Alerts: what a process reports to the operator console, as one JSON document in one frame."""

from __future__ import annotations

import errno
import os
import socket
from typing import Annotated, Final, Literal

import msgspec

from blackbox.documents import Decoder
from blackbox.errors import CallbackError, GapError

MOST_ALERT_BYTES: Final = 65_536
_MOST_TEXT: Final = 4_096
_FULL_DISK: Final = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))

Severity = Literal["warning", "error"]
_Text = Annotated[str, msgspec.Meta(max_length=_MOST_TEXT)]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert of one process."""

    kind: _Text
    """What is wrong, as one word: `slow_callback`, `late_blocks`, `late_publisher`, `full_disk`, `disk_error`,
    `gap`, `failed_callback`, `failed`."""
    severity: Severity
    """"error": it has ended, or loses messages."""
    feed: _Text
    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = msgspec.field(name="slice", default=None)
    """None: not about one slice."""
    host: _Text
    pid: Annotated[int, msgspec.Meta(ge=0)]
    role: _Text
    """subscriber or recorder."""
    text: _Text
    """One sentence with the value and its limit."""
    since_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    """When it began, ns since 1970."""

    def encode(self) -> bytes:
        """Return the frame for the console."""
        cut = msgspec.structs.replace(self, text=self.text[:_MOST_TEXT])
        return msgspec.json.encode(cut)


ALERTS: Final = Decoder[Alert]("json", Alert, MOST_ALERT_BYTES)
"""Decodes frames from processes, which are untrusted. Raises DecodeError."""


def this_host() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def kind_of(error: Exception) -> str:
    """Return the kind of an error that ends a subscriber."""
    if isinstance(error, GapError):
        return "gap"
    return "failed_callback" if isinstance(error, CallbackError) else "failed"


def kind_of_disk_error(text: str) -> str:
    """Return `full_disk` or `disk_error` for the error that ended a recording."""
    return "full_disk" if any(reason in text for reason in _FULL_DISK) else "disk_error"
