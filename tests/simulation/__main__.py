"""Run schedules of lines with their consumer, and of pairs of hubs, in virtual time: see `make simulate`."""

from __future__ import annotations

import argparse
import gc
import secrets
import sys
import time

from tests.simulation.pair_world import pair_finding_of
from tests.simulation.world import finding_of

DEFAULT_SECONDS = 60.0
_KINDS = {"lines": finding_of, "pair": pair_finding_of}


def main() -> int:
    """Run schedules and print findings. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="first seed; without --seconds, run only this one. Default: random")
    parser.add_argument("--seconds", type=float, help=f"time to run; default: {DEFAULT_SECONDS:g}")
    parser.add_argument("--count", type=int, help="number of schedules of each kind to run, instead of --seconds")
    parser.add_argument("--only", choices=_KINDS, help="kind of schedules; default: all")
    options = parser.parse_args()
    first = secrets.randbits(32) if options.seed is None else options.seed
    is_one = options.seed is not None and options.seconds is None
    many = options.count or (1 if is_one else sys.maxsize)
    kinds = [options.only] if options.only else list(_KINDS)
    for kind in kinds:
        _KINDS[kind](0)  # compiles
    gc.freeze()
    used, ran, found = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0), 0
    until = time.monotonic() + (options.seconds or DEFAULT_SECONDS)
    for _ in range(many * len(kinds)):
        if options.count is None and not is_one and time.monotonic() >= until:
            break
        kind = min(kinds, key=lambda each: ran[each] if options.count or is_one else used[each])
        began = time.process_time()
        finding = _KINDS[kind](first + ran[kind])
        used[kind] += time.process_time() - began
        ran[kind] += 1
        if finding:
            found += 1
            print(finding, flush=True)
    for kind in kinds:
        rate = ran[kind] / used[kind] if used[kind] else 0
        print(f"{kind}: {ran[kind]:,} schedules from seed {first} on, {rate:.0f} per CPU second")
    print(f"{found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
