"""Compressed bodies decompress, and errors name a missing or unknown codec."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Recording
from blackbox.archive import codec as codecs
from blackbox.errors import JournalError
from tests.journals import Day, Put, Row, feed_of


@pytest.mark.parametrize(("codec", "module"), [(1, "lz4.block"), (2, "zstandard")])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_missing_codec_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int, module: str, indexed: bool
) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A", b"x"),), codec=codec), index=indexed)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JournalError, match=r"pip install 'blackbox-md\[compression\]'"):
        list(Recording.open(tmp_path).batches())


@pytest.mark.parametrize("name", list(codecs.CODECS))
@given(data=st.binary(max_size=300))
def test_compressed_data_decompresses(name: str, data: bytes) -> None:
    packed = codecs.compress(name, data)
    body = codecs.decompress(codecs.CODECS[name], packed, len(data))
    assert body.tobytes() == data
    assert body.ctypes.data % 8 == 0
    with pytest.raises(JournalError, match="expected|unpack"):
        codecs.decompress(codecs.CODECS[name], packed, len(data) + 1)


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(JournalError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        codecs.compress("gzip", b"")
    with pytest.raises(JournalError, match="the codec of a body was 3"):
        codecs.decompress(3, b"", 0)
