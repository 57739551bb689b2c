"""Random numbers for `blackbox_feeds.synthetic.source`: splitmix64, so that a seed always gives the same bytes.

Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). The state is one uint64 in an
array. The generator uses only integer arithmetic, IEEE +, -, *, /, and no library's random stream, so machines and
versions agree.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit

_GAMMA = numpy.uint64(0x9E3779B97F4A7C15)
_MIX_1 = numpy.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = numpy.uint64(0x94D049BB133111EB)


def new_random(seed: int, stream: int) -> NDArray[numpy.uint64]:
    """Return the state of stream number `stream` of a seed, 0 to 2**64 - 1."""
    return numpy.array([seed ^ (stream * 0x5851F42D4C957F2D)], numpy.uint64)


@njit(nogil=True, cache=True)
def draw(random: NDArray[numpy.uint64]) -> int:
    """Return the next 64 random bits, as uint64."""
    random[0] += _GAMMA
    bits = random[0]
    bits = (bits ^ (bits >> numpy.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> numpy.uint64(27))) * _MIX_2
    return bits ^ (bits >> numpy.uint64(31))


# One signature, or it would be compiled separately for every constant limit.
@njit("int64(uint64[::1], int64)", nogil=True, cache=True)
def below(random: NDArray[numpy.uint64], limit: int) -> int:
    """Return a random int64 from 0 to `limit` - 1; `limit` up to 2**31."""
    return (numpy.int64(draw(random) >> numpy.uint64(32)) * limit) >> 32


@njit(nogil=True, cache=True)
def fraction(random: NDArray[numpy.uint64]) -> float:
    """Return a random float from 0 to just below 1."""
    return numpy.int64(draw(random) >> numpy.uint64(11)) * (1.0 / 9007199254740992.0)
