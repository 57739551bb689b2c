"""What planner and tasks did, told in files: a Python data source has no other way to count."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any


def write_metrics(directory: str, what: str, **counts: Any) -> None:
    """Write `<what>-<unique>.json` to a directory, which is made if it is not there."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    name = f"{what}-{uuid.uuid4().hex}"
    draft = place / f".{name}"
    draft.write_text(json.dumps(counts))
    draft.rename(place / f"{name}.json")


def read_metrics(directory: str, what: str) -> dict[str, int]:
    """The sums of all numbers that were written as `what` (`plan` or `task`), and `files`, how many were."""
    total: dict[str, int] = {"files": 0}
    for path in Path(directory).glob(f"{what}-*.json"):
        total["files"] += 1
        for key, value in json.loads(path.read_text()).items():
            if isinstance(value, int) and key != "slice":
                total[key] = total.get(key, 0) + value
    return total
