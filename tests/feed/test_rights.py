"""Files of rights: read whole or not at all, as a part of one would allow more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blackbox import ConfigError
from blackbox.feed.rights import RIGHTS_FILE, load_put_rights, load_rights


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'desk = ["A"]\n{"#" * (1 << 20)}\nintern = []\n', "cannot be read: it has .* bytes, expected at most"),
        (f"desk = {'[' * 5_000}{']' * 5_000}", "are not TOML"),
        (f"desk = {'9' * 5_000}", "are not TOML"),
    ],
)
def test_a_file_that_is_too_large_or_nested_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / RIGHTS_FILE).write_text(text)
    with pytest.raises(ConfigError, match=why):
        load_rights(str(tmp_path), 8)
    assert load_put_rights(str(tmp_path)) == {}


def test_a_pipe_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RIGHTS_FILE)
    with pytest.raises(ConfigError, match="cannot be read: it is a pipe, expected a regular file"):
        load_rights(str(tmp_path), 8)
