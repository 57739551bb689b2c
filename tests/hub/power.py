"""A host that loses power: what its disk has then of a hub's directory, as far as the system promises that.

Of a put log that is what a transaction has left that was synced, of a journal what was in it when a sync began that has
returned. More may be there, also a torn end, and zeros in place of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from blackbox.hub import put_log as put_log_module
from blackbox.hub.put_log import PutLog

KEEP: Final = """
from tests.hub.power import keep_disk
keep_disk()
"""
"""For a process of a hub that is to lose power."""
_SIZES: Final = "synced"
_LOG: Final = "log"


def keep_disk() -> None:
    """Keep in the place of `make_disk`, from now on, what the disk of each hub has at least."""
    transaction, begin, sync = PutLog.transaction, PutLog.__init__, os.fdatasync

    one_at_a_time = threading.Lock()

    @contextmanager
    def synced_transaction(self: PutLog, *, synced: bool = False) -> Iterator[None]:
        with one_at_a_time:
            with transaction(self, synced=synced):
                yield
            if synced:
                _keep_log(self._path)

    def begins(self: PutLog, path: Path, *settings: int) -> None:
        begin(self, path, *settings)
        _keep_log(path)

    def sync_file(fd: Any) -> None:
        path, size = Path(f"/proc/self/fd/{fd}").readlink(), os.fstat(fd).st_size
        sync(fd)
        if path.name.endswith("-wal"):
            with one_at_a_time:
                _keep_log(path.with_name(path.name.removesuffix("-wal")))
        beside = next((above for above in path.parents if _disk_of(above).is_dir()), None)
        if beside is not None:
            with (_disk_of(beside) / _SIZES).open("a") as sizes:
                sizes.write(f"{size} {path}\n")

    PutLog.transaction = synced_transaction  # type: ignore[method-assign, assignment]
    PutLog.__init__ = begins  # type: ignore[method-assign, assignment]
    os.fdatasync = sync_file
    put_log_module._CHECKPOINT_PAGES = 64  # type: ignore[misc]  # so that little is to be kept


def make_disk(directory: Path) -> None:
    """Have a place beside the directory of a hub for what its disk has."""
    _disk_of(directory).mkdir()


def cut_power(directory: Path, chance: Random) -> None:
    """Leave of a hub, which was killed, what may be on its disk: each file has all, or more or less of what it must."""
    disk = _disk_of(directory)
    ends = chance.choice((("puts", "-wal", ".a", ".b"), (".a", ".b"), ()))
    for name, data in msgspec.msgpack.decode((disk / _LOG).read_bytes()).items():
        if name.endswith(ends):
            (directory / name).write_bytes(data)
    sizes: dict[str, int] = {}
    for line in (disk / _SIZES).read_text().splitlines() if (disk / _SIZES).exists() else ():
        size, name = line.split(" ", 1)
        sizes[name] = max(int(size), sizes.get(name, 0))
    for path in directory.rglob("*.journal"):
        has = path.stat().st_size
        must = min(has, sizes.get(str(path), 0))  # a torn end was cut off since
        left = chance.choice((must, has, chance.randint(must, has)))
        os.truncate(path, left)
        if chance.random() < 0.3:
            os.truncate(path, chance.randint(left, has))  # zeros
        path.with_suffix(".index").unlink(missing_ok=True)
    for path in directory.glob("*/boot"):
        path.write_text("an earlier start of the system")


def has_on_disk(directory: Path, data: bytes) -> bool:
    """Whether the disk has something in the log of a hub, whatever happens."""
    return data in (_disk_of(directory) / _LOG).read_bytes()


def _disk_of(directory: Path) -> Path:
    return directory.parent / f"{directory.name}.disk"


def _keep_log(path: Path) -> None:
    disk = _disk_of(path.parent)
    if not disk.is_dir():
        return
    files = [each for end in ("", "-wal", ".a", ".b") if (each := path.with_name(f"{path.name}{end}")).exists()]
    draft = disk / f"{_LOG}.new"
    draft.write_bytes(msgspec.msgpack.encode({each.name: each.read_bytes() for each in files}))
    draft.replace(disk / _LOG)
