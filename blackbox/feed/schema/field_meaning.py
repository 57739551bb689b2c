"""Keys of a field's `dtype.metadata`. `blackbox.feed.schema.schema` documents them."""

from __future__ import annotations

from typing import Final

DECIMALS: Final = "decimals"
UTC: Final = "utc"
SINCE_MIDNIGHT: Final = "since_midnight"
ABSENT: Final = "absent"
