"""Cache of compiled kernels, keyed by the content of every source file that they depend on.

numba's own locators check only a kernel's own file. But constants and records of other files are compiled into it, so
after a change there its cached kernel would be stale. Here the kernels of a module lie in a directory named after a
digest of its source and of everything that it imports from these packages, directly or indirectly. Clones and
environments with the same sources share it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Final, Self

from numba.core import config

from blackbox.user_cache import user_cache

_PACKAGES: Final = ("blackbox", "blackbox_feeds")
_IMPORT: Final = re.compile(
    rf"^[ \t]*(?:from|import)[ \t]+((?:{'|'.join(_PACKAGES)})\b[\w.]*)(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n]*))?",
    re.MULTILINE,
)
_NUMBAS_OWN: Final = (
    "UserProvidedCacheLocator",
    "InTreeCacheLocator",
    "UserWideCacheLocator",
    "IPythonCacheLocator",
    "ZipCacheLocator",
)
_KEPT: Final = 8
"""Versions of a module to keep kernels of: the newest."""

_PATIENCE_S: Final = 180.0
"""Longest wait for another process to compile a kernel; after that this process compiles it too."""
_LOOK_S: Final = 0.01


def use_kernel_cache() -> None:
    """Make numba use `KernelCacheLocator` before its own locators from now on."""
    if not config.CACHE_LOCATOR_CLASSES:
        ours = f"{KernelCacheLocator.__module__}.{KernelCacheLocator.__name__}"
        config.CACHE_LOCATOR_CLASSES = ",".join((ours, *_NUMBAS_OWN))


def cache_root() -> Path:
    """Return the directory of all kernels: in `NUMBA_CACHE_DIR` if set, else in the user's cache."""
    return (Path(config.CACHE_DIR) if config.CACHE_DIR else user_cache()) / "kernels"


@contextmanager
def held_by_one_process(lock: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let no other process load or compile a kernel meanwhile, if its lock file can be locked.

    Calls `on_wait` if it has to wait.
    """
    try:
        file = lock.open("ab")
    except OSError:
        yield  # every process compiles it
        return
    with file:
        deadline = time.monotonic() + _PATIENCE_S
        is_locked = _is_locked(file.fileno())
        if is_locked:
            on_wait()
        while is_locked and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            is_locked = _is_locked(file.fileno())
        yield


def _is_locked(file: int) -> bool:
    """Lock a file, if its file system supports locks; return True if another process has it locked."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # lockf: a forked child does not inherit the lock
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    return False


class KernelCacheLocator:
    """Location of the kernels of one function: numba's cache locator interface."""

    def __init__(self, module: str, line: int) -> None:
        self._module, self._line = module, line
        self._digest = digest_of(module)
        self._directory = cache_root() / f"{module}-{self._digest}"

    @classmethod
    def from_function(cls, function: FunctionType, file: str) -> Self | None:
        """Return the locator of a function; None if it is not of these packages.

        Also if the directory is not writable: numba's own locators might find stale kernels.
        """
        module = _modules().get(str(Path(file).resolve()))
        if module is None:
            return None
        locator = cls(module, function.__code__.co_firstlineno)
        with suppress(OSError):  # existing kernels can be read
            locator.ensure_cache_path()
        return locator

    def ensure_cache_path(self) -> None:
        """Make the directory, and remove the oldest ones of this module. Raises OSError if it cannot be made."""
        if not self._directory.is_dir():
            self._directory.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # another process may remove them too
                others = self._directory.parent.glob(f"{self._module}-*")
                for old in sorted(others, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
                    shutil.rmtree(old, ignore_errors=True)

    def get_cache_path(self) -> str:
        """Return the directory of the module's kernels."""
        return str(self._directory)

    def get_source_stamp(self) -> str:
        """Return a digest of the sources."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Return a text that distinguishes functions of the same name in one file."""
        return str(self._line)


@cache
def _files() -> dict[str, str]:
    """Return the file of each module of these packages, by full name."""
    found = dict[str, str]()
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            root = str(Path(spec.origin).resolve().parent)
            begin = len(root) - len(package)
            for folder, _, names in os.walk(root):  # three times as fast as `rglob`
                files = [f"{folder}{os.sep}{name}" for name in names if name.endswith(".py")]
                found.update((file[begin:-3].replace(os.sep, "."), file) for file in files)
    return found


@cache
def _modules() -> dict[str, str]:
    return {file: module for module, file in _files().items()}


@cache
def _source_of(module: str) -> bytes:
    return Path(_files()[module]).read_bytes()


@cache
def _digest_of_source(module: str) -> bytes:
    return blake2b(module.encode() + b"\0" + _source_of(module), digest_size=16).digest()


@cache
def _imports_of(module: str) -> frozenset[str]:
    """Return the modules of these packages that a module imports anywhere."""

    def named() -> Iterator[str]:
        for imported, names in _IMPORT.findall(_source_of(module).decode()):
            yield imported
            yield from (f"{imported}.{name}" for name in re.findall(r"\w+", names))

    return frozenset(name for name in named() if name in _files())


@cache
def digest_of(module: str) -> str:
    """Return 16 hex digits: a digest of the sources of a module and of all that it imports from these packages."""
    found, left = {module}, [module]
    while left:
        new = _imports_of(left.pop()) - found
        found |= new
        left += new
    digest = blake2b(digest_size=8)
    for name in sorted(found):
        digest.update(_digest_of_source(name))
    return digest.hexdigest()
