"""The user's cache directory: what is made there appears whole or not at all, also when several processes make it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blackbox.errors import ConfigError


def user_cache() -> Path:
    """`blackbox` in `XDG_CACHE_HOME`, else in `~/.cache`; it need not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blackbox"


@contextmanager
def draft_in(cache: Path, prefix: str, failure: str) -> Iterator[Path]:
    """A directory in `cache` to make something in, which is then renamed out of it; what is left in it is removed.

    Raises ConfigError, which begins with `failure`, when the cache cannot be written.
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
