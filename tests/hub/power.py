"""A host that loses power: the parts of a hub's directory that its disk then has, as far as the system guarantees.

A journal has at least the bytes that it had when the last successful sync began. It may have more bytes, a torn
end, or zeros after them.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any, Final

KEEP: Final = """
from tests.hub.power import keep_disk
keep_disk()
"""
"""Code for the process of a hub that will lose power."""
_SIZES: Final = "synced"


def keep_disk() -> None:
    """From now on, note in the directory of `make_disk` the bytes that each hub has at least on disk."""
    sync = os.fdatasync

    def sync_file(fd: Any) -> None:
        path, size = Path(f"/proc/self/fd/{fd}").readlink(), os.fstat(fd).st_size
        sync(fd)
        beside = next((above for above in path.parents if _disk_of(above).is_dir()), None)
        if beside is not None:
            with (_disk_of(beside) / _SIZES).open("a") as sizes:
                sizes.write(f"{size} {path}\n")

    os.fdatasync = sync_file


def make_disk(directory: Path) -> None:
    """Create a directory next to that of a hub for notes of the bytes on its disk."""
    _disk_of(directory).mkdir()


def cut_power(directory: Path, chance: Random) -> None:
    """Cut the files of a killed hub to what may be on its disk: the synced bytes, all, or a size in between."""
    synced = _synced(directory)
    for path in directory.rglob("*.journal"):
        has = path.stat().st_size
        must = min(has, synced.get(path, 0))  # smaller if a torn end has been cut off since
        left = chance.choice((must, has, chance.randint(must, has)))
        os.truncate(path, left)
        if chance.random() < 0.3:
            os.truncate(path, chance.randint(left, has))  # zeros
        path.with_suffix(".index").unlink(missing_ok=True)
    for path in directory.glob("*/boot"):
        path.write_text("an earlier start of the system")


def has_on_disk(directory: Path, data: bytes) -> bool:
    """Return True if a message is in the journals of a hub and certainly on its disk."""
    return any(data in path.read_bytes()[:size] for path, size in _synced(directory).items() if path.exists())


def _synced(directory: Path) -> dict[Path, int]:
    """Return the synced size of each file, in bytes."""
    lines, sizes = _disk_of(directory) / _SIZES, dict[Path, int]()
    for line in lines.read_text().splitlines() if lines.exists() else ():
        size, name = line.split(" ", 1)
        sizes[Path(name)] = max(int(size), sizes.get(Path(name), 0))
    return sizes


def _disk_of(directory: Path) -> Path:
    return directory.parent / f"{directory.name}.disk"
