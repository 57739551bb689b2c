"""Keys of a field's `dtype.metadata`, which `blackbox.feed.schema.schema` documents, and the same in Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy

if TYPE_CHECKING:
    import pyarrow

DECIMALS: Final = "decimals"
UTC: Final = "utc"
SINCE_MIDNIGHT: Final = "since_midnight"
ABSENT: Final = "absent"


def arrow_field(name: str, dtype: numpy.dtype[Any]) -> pyarrow.Field:
    """Return a field in Arrow, in native byte order; `Schema.arrow` describes its type."""
    import pyarrow

    metadata = dict(dtype.metadata or {})
    if UTC in metadata:
        kind = pyarrow.timestamp(metadata.pop(UTC), tz="UTC")
    elif SINCE_MIDNIGHT in metadata:
        kind = pyarrow.int64()
        metadata["unit"] = "ns"
    elif dtype.kind == "S":
        kind = pyarrow.string()
    elif dtype.kind in "iufb":
        kind = pyarrow.from_numpy_dtype(dtype.newbyteorder("="))
    else:
        kind = pyarrow.binary(dtype.itemsize)
    nullable = ABSENT in metadata or (dtype.kind == "u" and dtype.itemsize == 8 and kind != pyarrow.uint64())
    told = {key: str(value) for key, value in metadata.items()}
    return pyarrow.field(name, kind, nullable=nullable, metadata=told)
