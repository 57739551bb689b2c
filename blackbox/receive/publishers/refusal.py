"""Filters of a slice that a publisher refuses, and the errors of the callbacks that need them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from blackbox.block.form.format import MOST_WANT_BYTES, SHARED_KEY, WANT_KEY
from blackbox.errors import RightsError
from blackbox.feed.feed import Feed
from blackbox.publish.listeners.peers import Why, topics_of

_MOST_SHOWN: Final = 5
"""Prefixes named in an error."""
_REASONS: Final[dict[int, str]] = {
    Why.TOO_MANY: "there are more subscriptions than its max_subscriptions",
    Why.ON_DEMAND: "it cannot deliver them, as its log says",
}
_NO_RIGHT: Final = "our key has no right to that, expected it among the prefixes of its rights.toml"


class Refusal(NamedTuple):
    """Filters that a publisher refused, each with its `Why`. `where`: feed, slice and address."""

    where: str
    filters: Mapping[bytes, int]

    def error(self, feed: Feed, starts: Iterable[tuple[bytes, bool]]) -> RightsError:
        """Return one error for callbacks with these `starts`: it names their refused topics, else the filters."""
        refused = {start: why for start, whole in starts if (why := self._why(feed, start, whole))} or {
            topics: why for each, why in self.filters.items() if (topics := topics_of(each)) is not None
        }
        return self._error(sorted(refused), max(refused.values(), default=0))

    def error_of(self, feed: Feed, starts: Iterable[tuple[bytes, bool]]) -> RightsError | None:
        """Return the error of a callback with these `starts`; None if it needs none of the filters."""
        for start, whole in starts:
            if why := self._why(feed, start, whole):
                return self._error([start], why)
        return None

    def _why(self, feed: Feed, start: bytes, whole: bool) -> int:
        return max(self.filters.get(each, 0) for each in _filters_of(feed, start, whole))

    def _error(self, topics: list[bytes], why: int) -> RightsError:
        shown = ", ".join(map(repr, topics[:_MOST_SHOWN])) + (", ..." if len(topics) > _MOST_SHOWN else "")
        return RightsError(f"{self.where} refused the topics {shown}: {_REASONS.get(why, _NO_RIGHT)}")


def _filters_of(feed: Feed, start: bytes, whole: bool) -> Iterable[bytes]:
    """Return the filters that a callback needs, on sockets and in shared memory."""
    key = feed.subscription_of(start, whole=whole)
    return key, SHARED_KEY + key, WANT_KEY + start[:MOST_WANT_BYTES]
