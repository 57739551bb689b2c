"""A step of a publisher's clock changes only its time stamps."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.testing import wait_until
from tests.clock_steps import STEP_CLOCK, words_before
from tests.examples import first_of
from tests.publish.subscribers import one_slice
from tests.support import Script


@pytest.mark.parametrize("seconds", first_of([-30, 30]))
def test_heartbeats_go_on_after_the_clock_is_stepped(seconds: int, tmp_path: Path) -> None:
    feed = one_slice(heartbeat_ns=20_000_000, linger_ns=1_000_000)
    code = f"""
        {STEP_CLOCK.strip()}
        with Publisher(feed) as publisher:
            say("started")
            input()
            before = time.time_ns()
            step_clock({seconds})
            say(round((time.time_ns() - before) / 1e9) // 10)
            input()
            publisher.publish(b"A", b"")
            publisher.flush(60)
            say("flushed")
    """
    with Script(code, feed, words_before(tmp_path)) as script, Heartbeats(feed) as watcher:
        script.expect("started")
        (line,) = watcher.lines

        def hear(count: int) -> None:
            def heard() -> bool:
                watcher.listen(0.01)
                return line.heard >= count

            wait_until(heard, what=f"heartbeat {count}")

        hear(3)
        script.tell("step")
        script.expect(str(seconds // 10))
        hear(line.heard + 10)
        script.tell("publish")
        script.expect("flushed")
