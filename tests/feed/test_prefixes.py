"""Several topic prefixes cover the same topics, each once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.feed.routing.prefixes import common_prefix, covering

TEXTS = st.text("AB.", max_size=4).map(str.encode)


@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_covering_prefixes_match_the_same_topics_once(prefixes: list[bytes], topic: bytes) -> None:
    found = covering(prefixes)
    matching = [each for each in found if topic.startswith(each)]
    assert len(matching) == int(any(topic.startswith(each) for each in prefixes))
    assert all(each.startswith(common_prefix(found)) for each in prefixes)
    length = len(common_prefix(found)) + 1
    assert len({each[:length] for each in found}) > 1 or common_prefix(found) in found


def test_one_prefix_or_none() -> None:
    assert covering(b"A") == (b"A",)
    assert covering([]) == covering(b"") == (b"",)
    assert covering("Ä") == covering(["Ä", "Ä.x"]) == ("Ä".encode(),)
    assert covering(["A", b"B"]) == (b"A", b"B")
    with pytest.raises(TypeError, match="prefix was 7"):
        covering([7])  # type: ignore[list-item]
