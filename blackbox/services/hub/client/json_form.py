"""Requests to a driven client, and its answers: JSON objects, one per frame; payloads in base64."""

from __future__ import annotations

from base64 import b64decode
from typing import Annotated, Any, Final, Literal

import msgspec

from blackbox.block.position import NOWHERE, Number, Place
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, ConflictError
from blackbox.services.hub.protocol import MOST_BYTES

MOST_ASKED_BYTES: Final = 2 * MOST_BYTES
"""The largest request: its payload is in base64."""


class _Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do", tag=lambda name: name.lower()
):
    number: int = 0
    """Number that the answer repeats."""
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 10.0


class At(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a message. It may be a whole answer, as other fields are ignored."""

    slice: int
    epoch: Number
    sequence: Number


class Put(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Put a message; the answer has its place: `slice`, `epoch`, `sequence`."""

    topic: str | list[str]
    """Its topic, or the topics of one message."""
    payload: str | msgspec.UnsetType | None = msgspec.UNSET
    """Payload in base64; null removes the topic's value."""
    text: str | msgspec.UnsetType = msgspec.UNSET
    """Text instead of `payload`, which is stored in UTF-8."""
    id: str | None = None
    ts_event: int | None = None
    """Time of the event, ns since 1970. Null: now. 0: unknown."""
    if_at: At | Literal["nowhere"] | None = None
    """Required place of the topic's newest message; "nowhere": the topic must have no value."""
    ttl_s: float | None = None
    """Seconds after which the hub deletes the topic, unless it is put again before; null: it stays."""

    def value(self) -> bytes | None:
        """Return the payload. Raises ConfigError unless exactly one of the two is given, and `payload` is base64."""
        if (self.payload is msgspec.UNSET) is not (self.text is not msgspec.UNSET):
            raise ConfigError(f"put of {self.topic!r} needs exactly one of payload and text")
        if self.text is not msgspec.UNSET:
            return self.text.encode()
        if self.payload is msgspec.UNSET or self.payload is None:
            return None
        try:
            return b64decode(self.payload, validate=True)
        except ValueError as error:
            raise ConfigError(f"payload was {self.payload[:40]!r}, expected base64: {error}") from None

    def expected(self) -> Place | None:
        """Return the required place of the topic's newest message; None: any place."""
        if self.if_at is None or self.if_at == "nowhere":
            return None if self.if_at is None else NOWHERE
        return Place(self.if_at.slice, self.if_at.epoch, self.if_at.sequence)


class _Subscribed(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about the durable subscription of a prefix, or those of some symbols."""

    prefix: str | None = None
    symbols: list[str] | None = None


class Subscribe(_Subscribed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep all messages from now on for `get`."""


class Unsubscribe(_Subscribed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End subscriptions."""


class Get(_Subscribed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Get the next message of any of these subscriptions."""


class Commit(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit all messages that were returned."""


class _Numbered(msgspec.Struct):
    number: int = 0


Asked = Put | Subscribe | Unsubscribe | Get | Commit
ASKED: Final = Decoder[Asked]("json", Asked, MOST_ASKED_BYTES)
_NUMBERED: Final = Decoder[_Numbered]("json", _Numbered, MOST_ASKED_BYTES)


def number_of(text: str | bytes) -> int:
    """Return the number of a request, even of an invalid one; 0 if it has none."""
    try:
        return _NUMBERED.decode(text).number
    except DecodeError:
        return 0


def place_as_json(place: Place) -> dict[str, Any]:
    """Return a place as a JSON object."""
    return {"slice": place.slice_id, "epoch": place.epoch, "sequence": place.sequence}


def error_as_json(error: BaseException) -> dict[str, Any]:
    """Return an error as a JSON object. A ConflictError has `found`, the place of the topic's newest message."""
    told: dict[str, Any] = {"error": type(error).__name__, "why": str(error)}
    if isinstance(error, ConflictError):
        told |= {"found": "nowhere" if error.found == NOWHERE else place_as_json(error.found)}
    return told
