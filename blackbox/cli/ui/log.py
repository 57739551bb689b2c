"""Lines on stderr: the log and a command's own lines, as text or as JSON, one object per line."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

_NAME: Final = "blackbox"
_ABOUT: Final = re.compile(
    r"(?:[a-z ]+'[^']*' of )?(?:[a-z]+ of )?(?:feed '(?P<feed>[^']+)'[ :,]*)?(?:slice (?P<slice>\d+)\b)?"
    r"(?: epoch (?P<epoch>\d+)\b)?"
)
"""Start of a message about a feed, a slice and an epoch."""


class Level(StrEnum):
    """Lowest level of log records to show."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """Format of lines on stderr."""

    TEXT = "text"
    JSON = "json"


class _Form(logging.Formatter):
    """Formats `warning: text`, as the command line's errors; or JSON."""

    as_json = False

    def format(self, record: logging.LogRecord) -> str:
        if not self.as_json:
            return f"{record.levelname.lower()}: {record.getMessage()}"
        failure = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else None
        return json_line(record.levelname.lower(), record.getMessage(), record.name, record.created, failure)


_FORM: Final = _Form()


def begin_log() -> None:
    """Send this package's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORM)
    log = logging.getLogger(_NAME)
    log.addHandler(handler)
    log.propagate = False


def set_log(level: Level | None, form: Format | None) -> None:
    """Set the level and the format for the log and the command's own lines; None: unchanged."""
    if level is not None:
        logging.getLogger(_NAME).setLevel(level.upper())
    if form is not None:
        _FORM.as_json = form is Format.JSON


def is_json() -> bool:
    """Return True if lines on stderr are JSON."""
    return _FORM.as_json


def is_shown(level: Level) -> bool:
    """Return True if log records of a level are shown."""
    return logging.getLogger(_NAME).isEnabledFor(logging.getLevelNamesMapping()[level.upper()])


def json_line(level: str, message: str, logger: str, seconds: float, failure: str | None = None) -> str:
    """Return a line of the log as a JSON object; `seconds` since 1970.

    It has the feed, slice and epoch with which the message begins.
    """
    begin = _ABOUT.match(message)
    about = {} if begin is None else {name: text for name, text in begin.groupdict().items() if text is not None}
    shown = {
        "time": datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": level,
        "logger": logger,
        "message": message,
    }
    return json_text(shown | _numbered(about) | ({"traceback": failure} if failure else {}))


def json_text(value: Any) -> str:
    """Return a value as JSON on one line; paths and similar types as text."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:  # a path that is not UTF-8: its bytes are escaped
        return json.dumps(msgspec.to_builtins(value, enc_hook=str), separators=(",", ":"))


def _numbered(about: dict[str, str]) -> dict[str, str | int]:
    """Return the fields with slice and epoch as numbers."""
    return {name: text if name == "feed" else int(text) for name, text in about.items()}
