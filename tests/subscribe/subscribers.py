"""Feeds of one slice, a callback that does nothing, and the numbers that arrived."""

from __future__ import annotations

from typing import Any

import msgspec

from blackbox import Feed
from blackbox.testing import Collector


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("subscriber", slices=1), **settings)


def numbers_of(got: Collector) -> list[int]:
    return [int(payload) for payload in got.payloads]


def nothing(_: Any) -> None:
    pass
