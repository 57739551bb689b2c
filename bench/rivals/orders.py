"""A process of a contender: told by a line how many messages come next, it tells when it began or ended, and the cost.

bench ==order==> subscriber ==receiving==> bench ==order==> publisher ==messages==> subscriber ==ended==> bench

python -m bench.rivals.orders MODULE SIDE '{"address": ...}'
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from bench.child import end_with_parent
from bench.contest import Lost
from bench.workload import expect_tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


class Orders:
    """What a contender's `publish` or `receive` is given: its arguments, and its orders until the bench has enough.

    Tallies are `by_topic`, or, as ours number topics as they come, in any order. `started` and
    `ended` are of `time.perf_counter`, one clock for all processes of a machine.
    """

    def __init__(self, arguments: dict[str, Any], by_topic: bool = True) -> None:
        self.arguments = arguments
        self.address: str = arguments.get("address", "")
        self.form: str = arguments.get("form", "messages")
        self._by_topic = by_topic
        self._cpu_s = 0.0

    def ready(self) -> None:
        """Connected, as far as that goes before anybody publishes."""
        self._say(ready=True)

    def next(self) -> int | None:
        """Messages to send or to receive next; None: it is over. Waits."""
        line = sys.stdin.readline()
        if not line:
            return None
        self._cpu_s = time.process_time()
        return int(json.loads(line)["messages"])

    def __iter__(self) -> Iterator[int]:
        while (messages := self.next()) is not None:
            yield messages

    def receiving(self) -> None:
        """The publisher may begin."""
        self._say(receiving=True)

    def sent(self, started: float) -> None:
        """All is with the transport, which was first called at `started`."""
        self._say(at=started, cpu_s=time.process_time() - self._cpu_s)

    def received(self, ended: float, state: NDArray[Any], messages: int) -> None:
        """The last callback returned at `ended`; `state` is its int64[topics, 3] of count, digest, sum."""
        self.tallied(0.0, ended, state, messages)

    def done(self, started: float, ended: float, verify: Callable[[], None]) -> None:
        """A contender of one process: begun, ended, and what raises Lost if it was not right."""
        cpu_s = time.process_time() - self._cpu_s
        lost = ""
        try:
            verify()
        except Lost as why:
            lost = str(why)
        self._say(started=started, at=ended, cpu_s=cpu_s, lost=lost)

    def tallied(self, started: float, ended: float, state: NDArray[Any], messages: int) -> None:
        """A contender of one process, which tallied."""
        self.done(started, ended, lambda: expect_tally(state, messages, by_topic=self._by_topic))

    def _say(self, **what: Any) -> None:
        print(json.dumps(what), flush=True)


if __name__ == "__main__":
    end_with_parent()
    module, side, given = sys.argv[1:]
    getattr(importlib.import_module(f"bench.rivals.{module}"), side)(
        Orders(json.loads(given), not module.startswith("ours"))
    )
