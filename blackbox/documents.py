"""Decode JSON and msgpack from others, with limits on bytes and depth, and one kind of error."""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

DecodeError = msgspec.DecodeError
MOST_DOCUMENT_BYTES: Final = 64 << 20
"""Default limit for the size of a document."""

Document = TypeVar("Document")


class Decoder(Generic[Document]):
    """Decodes documents of one type. Thread-safe.

    Depth is bounded by Python's recursion limit, which also applies to values that msgspec skips.
    """

    def __init__(self, form: Literal["json", "msgpack"], document: Any, most_bytes: int = MOST_DOCUMENT_BYTES) -> None:
        """`document`: the type, or a union of types. `most_bytes`: the largest document."""
        decoder: Any = msgspec.json.Decoder if form == "json" else msgspec.msgpack.Decoder
        self._decode: Any = decoder(document).decode
        self._most_bytes = most_bytes

    def decode(self, data: bytes | str | memoryview) -> Document:
        """Return the document.

        Raises DecodeError, also if it is too large, nested too deeply, or not UTF-8.
        """
        if len(data) > self._most_bytes:
            raise DecodeError(f"document had {len(data)} bytes, expected at most {self._most_bytes}")
        try:
            decoded: Document = self._decode(data)
        except RecursionError:
            raise DecodeError("document was nested too deeply, expected fewer levels of lists and objects") from None
        except UnicodeError as error:
            raise DecodeError(f"document was not UTF-8: {error}") from None
        return decoded
