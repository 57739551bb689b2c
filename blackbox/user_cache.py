"""The user's cache directory. Files appear there atomically, even if several processes create them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blackbox.errors import ConfigError


def user_cache() -> Path:
    """Return `blackbox` in `XDG_CACHE_HOME`, else in `~/.cache`, or `/.cache` without a home. It need not exist."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "blackbox"
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry in passwd
        home = Path("/")
    return home / ".cache" / "blackbox"


@contextmanager
def draft_in(cache: Path, prefix: str, failure: str) -> Iterator[Path]:
    """Provide a temporary directory in `cache`, from which the caller moves the result out. The rest is removed.

    Raises ConfigError that begins with `failure` if the cache is not writable.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=prefix, dir=cache))
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{failure} in {cache}: {error.strerror}; set XDG_CACHE_HOME to a directory that can be written"
        ) from error
