"""One client's streams, and the answers to its requests. Without I/O.

    {"method":"SUBSCRIBE","params":["btcusdt@trade"],"id":1}   ->   {"result":null,"id":1}

Binance's documents give the requests, the answers and the codes of errors.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from blackbox.documents import DecodeError, Decoder

_ANY: Final = Decoder[Any]("json", Any)
MOST_STREAMS: Final = 1_024
_MOST_NAME_CHARACTERS: Final = 256
_PATH: Final = re.compile(r"(?:/[a-z]+)?/(ws|stream)(?:/(.*))?")
_MOST_ID_CHARACTERS: Final = 36
_METHODS: Final = ("SUBSCRIBE", "UNSUBSCRIBE", "LIST_SUBSCRIPTIONS", "SET_PROPERTY", "GET_PROPERTY")


class _FaultError(Exception):
    """An invalid request, with a code and a text for the client."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """The subscriptions of one connection."""

    def __init__(self, streams: list[str], *, is_combined: bool) -> None:
        self.streams = dict.fromkeys(streams)
        """Names of the streams, in the order of subscribing."""
        self.is_combined = is_combined
        """True if each frame is wrapped with the name of its stream."""

    @classmethod
    def of_path(cls, target: str) -> Session | None:
        """Return the session of a request's path and query; None if it is not for a stream, or for too many."""
        parts = urlsplit(target)
        found = _PATH.fullmatch(parts.path)
        if found is None:
            return None
        is_combined = found[1] == "stream"
        names = parse_qs(parts.query).get("streams", [""])[0] if is_combined else unquote(found[2] or "")
        streams = [name for name in names.split("/") if name]
        return cls(streams, is_combined=is_combined) if len(streams) <= MOST_STREAMS else None

    def answer(self, text: bytes) -> bytes:
        """Process a request, and return the answer."""
        request: Any = None
        try:
            request = _decoded(text)
            return msgspec.json.encode({"result": self._result(request), "id": request["id"]})
        except _FaultError as fault:
            error: dict[str, Any] = {"error": {"code": fault.code, "msg": str(fault)}}
            if isinstance(request, dict) and _is_id(request.get("id")):
                error["id"] = request.get("id")
            return msgspec.json.encode(error)

    def _result(self, request: dict[str, Any]) -> Any:
        method = request.get("method")
        if method is None:
            raise _FaultError(2, "Invalid request: missing field `method`")
        if method not in _METHODS:
            expected = ", ".join(f"`{each}`" for each in _METHODS)
            raise _FaultError(2, f"Invalid request: unknown variant `{method}`, expected one of {expected}")
        if "id" not in request or not _is_id(request["id"]):
            raise _FaultError(2, "Invalid request: request ID must be an unsigned integer")
        if method == "LIST_SUBSCRIPTIONS":
            return list(self.streams)
        params = request.get("params")
        if not isinstance(params, list) or not params:
            raise _FaultError(2, "Invalid request: missing field `params`")
        if method in {"SET_PROPERTY", "GET_PROPERTY"}:
            return self._property(method, params)
        if not all(isinstance(name, str) and len(name) <= _MOST_NAME_CHARACTERS for name in params):
            raise _FaultError(2, f"Invalid request: streams must be strings of up to {_MOST_NAME_CHARACTERS} letters")
        if method == "UNSUBSCRIBE":
            for name in params:
                self.streams.pop(name, None)
            return None
        if len(self.streams | dict.fromkeys(params)) > MOST_STREAMS:
            raise _FaultError(2, f"Invalid request: more than {MOST_STREAMS} streams")
        self.streams |= dict.fromkeys(params)
        return None

    def _property(self, method: str, params: list[Any]) -> Any:
        if not isinstance(params[0], str):
            raise _FaultError(2, "Invalid request: property name must be a string")
        if params[0] != "combined":
            raise _FaultError(0, "Unknown property")
        if method == "GET_PROPERTY":
            return self.is_combined
        if len(params) != 2 or not isinstance(params[1], bool):
            raise _FaultError(1, "Invalid value type: expected Boolean")
        self.is_combined = params[1]
        return None


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        request = _ANY.decode(text)
    except DecodeError as error:
        raise _FaultError(3, f"Invalid JSON: {error}") from None
    if not isinstance(request, dict):
        raise _FaultError(2, "Invalid request: expected an object")
    return request


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return value.isalnum() and len(value) <= _MOST_ID_CHARACTERS
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63)
