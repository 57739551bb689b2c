"""A recorded session for tests of books."""

from __future__ import annotations

import pytest

from blackbox import Recording
from tests.book.sessions import made_up
from tests.recorded import recorded


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("books"), made_up, key_bytes=1)
