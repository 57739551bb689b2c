"""Decode JSON and msgpack that others wrote: bounded in bytes and depth, and with one kind of error."""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

DecodeError = msgspec.DecodeError
MOST_DOCUMENT_BYTES: Final = 64 << 20
"""The largest document, unless its decoder has a smaller bound."""

Document = TypeVar("Document")


class Decoder(Generic[Document]):
    """Decodes documents of one type. Any thread may use it.

    Depth is bounded by Python's recursion limit, which also bounds what msgspec passes by.
    """

    def __init__(self, form: Literal["json", "msgpack"], document: Any, most_bytes: int = MOST_DOCUMENT_BYTES) -> None:
        """`document`: the type, or a union of types. `most_bytes`: the largest document."""
        decoder: Any = msgspec.json.Decoder if form == "json" else msgspec.msgpack.Decoder
        self._decode: Any = decoder(document).decode
        self._most_bytes = most_bytes

    def decode(self, data: bytes | str | memoryview) -> Document:
        """Return the document.

        Raises DecodeError, also for one that has too many bytes, is nested too deeply, or is no UTF-8.
        """
        if len(data) > self._most_bytes:
            raise DecodeError(f"document had {len(data)} bytes, expected at most {self._most_bytes}")
        try:
            decoded: Document = self._decode(data)
        except RecursionError:
            raise DecodeError(
                "document was nested too deeply, expected fewer lists and objects in each other"
            ) from None
        except UnicodeError as error:
            raise DecodeError(f"document was no UTF-8: {error}") from None
        return decoded
