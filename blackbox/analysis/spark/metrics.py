"""Counters of planner and tasks, in files, because a Python data source cannot report them otherwise."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any, Final

from blackbox.documents import Decoder

_COUNTS: Final = Decoder[dict[str, Any]]("json", dict[str, Any])


def write_metrics(directory: str, what: str, **counts: Any) -> None:
    """Write `<what>-<unique>.json` to a directory, which is created if it is missing."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    name = f"{what}-{uuid.uuid4().hex}"
    draft = place / f".{name}"
    draft.write_text(json.dumps(counts))
    draft.rename(place / f"{name}.json")


def read_metrics(directory: str, what: str) -> dict[str, int]:
    """Return the sums over all files of `what` (`plan` or `task`), and their number as `files`."""
    total: dict[str, int] = {"files": 0}
    for path in Path(directory).glob(f"{what}-*.json"):
        total["files"] += 1
        for key, value in _COUNTS.decode(path.read_bytes()).items():
            if isinstance(value, int) and key != "slice":
                total[key] = total.get(key, 0) + value
    return total
