"""Routing: which slice of a feed a topic belongs to, and which slices a prefix can belong to.

Publisher and subscriber must agree on it, so it is part of the wire contract:

- by prefix: the slice with a prefix of the topic; there is only one;
- by share: `crc32(root) % of`, with the CRC-32 of zlib (IEEE 802.3). The root is the text before the topic's
  first separator, see `SymbolRule`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from zlib import crc32

from blackbox.errors import ConfigError
from blackbox.feed.routing.symbol import SymbolRule

MAX_TOPIC_BYTES = 65_535
_PREFIXES_IN_ERROR = 8


def check_topic(topic: bytes) -> None:
    """Raise ConfigError unless `topic` can be published: 1 to 65,535 bytes, the first not zero."""
    if not topic:
        raise ConfigError("topic was empty, expected at least one byte")
    check_prefix(topic, "topic")


def check_prefix(prefix: bytes, noun: str = "prefix") -> None:
    """Raise ConfigError unless topics can start with `prefix`; the empty prefix is every topic."""
    if prefix.startswith(b"\0"):
        shown = repr(prefix[:40]) + ("..." if len(prefix) > 40 else "")
        raise ConfigError(f"{noun} {shown} starts with a zero byte, which is reserved for control")
    if len(prefix) > MAX_TOPIC_BYTES:
        raise ConfigError(f"{noun} {prefix[:40]!r}... was {len(prefix)} bytes long, expected at most {MAX_TOPIC_BYTES}")


class PrefixRouting:
    """Each slice has some prefixes; no prefix of one slice starts with a prefix of another."""

    def __init__(self, prefixes_of_slices: Sequence[Sequence[bytes]]) -> None:
        """Sort the prefixes. Raises ConfigError if two overlap."""
        pairs = sorted(
            (prefix, slice_id) for slice_id, prefixes in enumerate(prefixes_of_slices) for prefix in prefixes
        )
        self._prefixes: list[bytes] = []
        self._slice_ids: list[int] = []
        for prefix, slice_id in pairs:
            # In sorted order, a prefix comes right before those that start with it.
            if self._prefixes and prefix.startswith(self._prefixes[-1]):
                if slice_id == self._slice_ids[-1]:
                    continue
                raise ConfigError(
                    f"prefix {_shown(prefix)} of slice {slice_id} overlaps with prefix "
                    f"{_shown(self._prefixes[-1])} of slice {self._slice_ids[-1]}: "
                    "a topic must belong to one slice"
                )
            self._prefixes.append(prefix)
            self._slice_ids.append(slice_id)

    @property
    def prefixes(self) -> list[tuple[bytes, int]]:
        """The prefixes with their slices, sorted; none starts with another."""
        return list(zip(self._prefixes, self._slice_ids, strict=True))

    def slice_of(self, topic: bytes) -> int:
        """Return the slice of `topic`. Raises ConfigError, naming the known prefixes, if no slice covers it."""
        slice_id = self._covering(topic)
        if slice_id is None:
            raise ConfigError(f"topic {topic!r} is covered by no slice, known prefixes: {self._known()}")
        return slice_id

    def slices_for(self, prefix: bytes) -> tuple[int, ...]:
        """Return the slices, in order, that topics starting with `prefix` can belong to."""
        covering = self._covering(prefix)
        if covering is not None:
            return (covering,)
        found = set()
        for position in range(bisect_left(self._prefixes, prefix), len(self._prefixes)):
            if not self._prefixes[position].startswith(prefix):
                break
            found.add(self._slice_ids[position])
        return tuple(sorted(found))

    def _covering(self, topic: bytes) -> int | None:
        # No prefix starts with another one, so only the last that sorts at or before the topic can match.
        position = bisect_right(self._prefixes, topic) - 1
        if position >= 0 and topic.startswith(self._prefixes[position]):
            return self._slice_ids[position]
        return None

    def _known(self) -> str:
        pairs = list(zip(self._prefixes, self._slice_ids, strict=True))
        text = ", ".join(f"{_shown(p)} (slice {i})" for p, i in pairs[:_PREFIXES_IN_ERROR])
        more = len(pairs) - _PREFIXES_IN_ERROR
        return f"{text} and {more} more" if more > 0 else text


class ShareRouting:
    """Each slice has one share of a hash of the symbol's root; the shares cover all topics."""

    def __init__(self, shares: Sequence[tuple[int, int]], rule: SymbolRule) -> None:
        """Map shares to slices. Raises ConfigError if a share is missing, duplicate or inconsistent.

        `shares[slice_id]` is (index, of) with 0 <= index < of.
        """
        self._rule = rule
        self._of = shares[0][1]
        self._slice_of_share: dict[int, int] = {}
        for slice_id, (index, of) in enumerate(shares):
            if of != self._of:
                raise ConfigError(
                    f"share of slice {slice_id} was one of {of}, expected one of {self._of} as in slice 0"
                )
            holder = self._slice_of_share.setdefault(index, slice_id)
            if holder != slice_id:
                raise ConfigError(
                    f"share {index} of {of} is held by slice {holder} and by slice {slice_id}, expected one holder"
                )
        if len(shares) < self._of:
            index = next(i for i in range(self._of) if i not in self._slice_of_share)
            raise ConfigError(f"share {index} of {self._of} is held by no slice")
        self._all = tuple(range(len(shares)))

    @property
    def slice_of_share(self) -> list[int]:
        """The slice of each share."""
        return [self._slice_of_share[share] for share in range(self._of)]

    @property
    def separator(self) -> bytes:
        """The byte that ends the root of a topic."""
        return self._rule.separator.encode()

    def slice_of(self, topic: bytes) -> int:
        """Return the slice of `topic`; every topic has one."""
        return self._slice_of_share[crc32(self._rule.root_of(topic)) % self._of]

    def slices_for(self, prefix: bytes) -> tuple[int, ...]:
        """Return the one slice of a prefix that fixes the root, else all slices."""
        if self._rule.fixes_root(prefix):
            return (self.slice_of(prefix),)
        return self._all


def _shown(prefix: bytes) -> str:
    return repr(prefix.decode(errors="backslashreplace"))
