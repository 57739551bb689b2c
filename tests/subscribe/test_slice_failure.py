"""The error that ends a slice, as seen by another process."""

from __future__ import annotations

import pytest

from blackbox import CallbackError
from blackbox.subscribe.slice_failure import SliceFailure
from tests.support import in_child


def test_an_error_with_text_that_is_not_utf8_leaves_its_process() -> None:
    failure = SliceFailure()
    assert in_child(lambda: failure.keep(CallbackError("file-\udcff"))) == ""
    with pytest.raises(CallbackError, match=r"file-\\udcff"):
        raise failure.seen() or AssertionError
