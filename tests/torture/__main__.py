"""Attack the system, one class of attack after another, and print attempts and defects: see `make torture`.

Each class is a module of this folder with `attack(random, seconds) -> Outcome`. The seed determines the attempts; the
seconds and the machine determine their number.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import random
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.torture.outcome import Outcome

Attack = Callable[[random.Random, float], Outcome]

_PYTHON_ERROR = "the attack itself failed"


def attacks() -> dict[str, Attack]:
    """Return every class of attack by name."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = {name: importlib.import_module(f"tests.torture.{name}") for name in names if name != "__main__"}
    return {name: module.attack for name, module in modules.items() if hasattr(module, "attack")}


def run(name: str, attack: Attack, seed: int, seconds: float) -> Outcome:
    """Run one class of attack. An exception that it raises is a defect too."""
    try:
        return attack(random.Random(f"{name} {seed}"), seconds)
    except Exception as error:  # noqa: BLE001 - the other attacks are to be run as well
        traceback.print_exc()
        return Outcome(0, "attempts", [f"{_PYTHON_ERROR}: {type(error).__name__}: {error}"])


def main() -> int:
    """Run all attacks or the selected ones; return 1 if any defect was found."""
    known = attacks()
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="repeats a run; default: random")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each attack; default: 60")
    parser.add_argument("--only", choices=sorted(known), help="one attack")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:g} s for each attack", flush=True)
    print(f"{'attack':<20} {'seconds':>7} {'tried':>12}  {'of':<34} result", flush=True)
    findings = 0
    for name, attack in known.items():
        if options.only in (None, name):
            began = time.monotonic()
            outcome = run(name, attack, options.seed, options.seconds)
            took = time.monotonic() - began
            findings += len(outcome.found)
            said = f"{len(outcome.found)} defects" if outcome.found else "nothing"
            print(f"{name:<20} {took:7.1f} {outcome.tried:12,}  {outcome.what:<34} {said}", flush=True)
            for defect in outcome.found:
                print(f"    {defect}", flush=True)
    if findings:
        print(f"{findings} found; again with: python -m tests.torture --seed {options.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
