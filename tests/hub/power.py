"""A host that loses power: what its disk has then of a hub's directory, as far as the system promises that.

A journal has at least the bytes that were in it when the last successful sync began. It may have more bytes, a torn
end, or zeros instead of these.
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
"""For a process of a hub that is to lose power."""
_SIZES: Final = "synced"


def keep_disk() -> None:
    """Keep in the place of `make_disk`, from now on, what the disk of each hub has at least."""
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
    """Have a place beside the directory of a hub for what its disk has."""
    _disk_of(directory).mkdir()


def cut_power(directory: Path, chance: Random) -> None:
    """Leave of a hub, which was killed, what may be on its disk: each file has all, or more or less of what it must."""
    synced = _synced(directory)
    for path in directory.rglob("*.journal"):
        has = path.stat().st_size
        must = min(has, synced.get(path, 0))  # a torn end was cut off since
        left = chance.choice((must, has, chance.randint(must, has)))
        os.truncate(path, left)
        if chance.random() < 0.3:
            os.truncate(path, chance.randint(left, has))  # zeros
        path.with_suffix(".index").unlink(missing_ok=True)
    for path in directory.glob("*/boot"):
        path.write_text("an earlier start of the system")


def has_on_disk(directory: Path, data: bytes) -> bool:
    """Return True if the journals of a hub have a message on the disk, whatever happens."""
    return any(data in path.read_bytes()[:size] for path, size in _synced(directory).items() if path.exists())


def _synced(directory: Path) -> dict[Path, int]:
    """Return by file how many of its bytes are on the disk."""
    lines, sizes = _disk_of(directory) / _SIZES, dict[Path, int]()
    for line in lines.read_text().splitlines() if lines.exists() else ():
        size, name = line.split(" ", 1)
        sizes[Path(name)] = max(int(size), sizes.get(Path(name), 0))
    return sizes


def _disk_of(directory: Path) -> Path:
    return directory.parent / f"{directory.name}.disk"
