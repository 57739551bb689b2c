"""Feeds with several slices, for tests that publish nothing."""

from blackbox.feed.feed import Feed
from blackbox.feed.slice import Slice


def feed_of_prefixes(*prefixes: tuple[str, ...]) -> Feed:
    return Feed(
        name="test",
        slices=tuple(
            Slice(endpoints=(f"tcp://127.0.0.1:{17_001 + slice_id}",), prefixes=held)
            for slice_id, held in enumerate(prefixes)
        ),
    )


def feed_of_shares(*shares: tuple[int, int]) -> Feed:
    return Feed(
        name="test",
        slices=tuple(
            Slice(endpoints=(f"tcp://127.0.0.1:{17_001 + slice_id}",), share=share)
            for slice_id, share in enumerate(shares)
        ),
    )
