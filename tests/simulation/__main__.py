"""Run schedules of publishers, lines, archives and consumers in virtual time: see `make simulate`."""

from __future__ import annotations

import argparse
import gc
import secrets
import sys
import time
from itertools import count

from tests.simulation.world import finding_of

DEFAULT_SECONDS = 60.0


def main() -> int:
    """Run schedules and print findings. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="first seed; without --seconds, run only this one. Default: random")
    parser.add_argument("--seconds", type=float, help=f"time to run; default: {DEFAULT_SECONDS:g}")
    parser.add_argument("--count", type=int, help="number of schedules to run, instead of --seconds")
    options = parser.parse_args()
    first = secrets.randbits(32) if options.seed is None else options.seed
    is_one = options.seed is not None and options.seconds is None
    many = options.count or (1 if is_one else sys.maxsize)
    finding_of(0)  # compiles
    gc.freeze()
    began, until = time.process_time(), time.monotonic() + (options.seconds or DEFAULT_SECONDS)
    found = ran = 0
    for seed in count(first):
        if ran == many or (options.count is None and time.monotonic() >= until):
            break
        finding = finding_of(seed)
        ran += 1
        if finding:
            found += 1
            print(finding, flush=True)
    rate = ran / (time.process_time() - began)
    print(f"{ran:,} schedules from seed {first} on, {rate:.0f} per CPU second: {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
