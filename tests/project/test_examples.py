"""Each file in `examples/` runs and prints the expected output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

SAYS = {
    "add_a_feed_of_my_own": ["published: 10000", "EURUSD volume: 10000"],
    "back_test_a_strategy": ["\n".join(3 * ["7 trades, profit -2.30, VWAP 153.3042"])],
    "back_test_two_symbols": ["the same live: True"],
    "begin_with_an_image": [
        "image: b'189.98'",
        "synced: [(b'AAPL.price', b'189.98'), (b'MSFT.price', b'370.10')]",
        "then: b'190.00'",
        "now: b'190.00' 2",
    ],
    "change_what_i_want": ["[b'first', b'second', b'third']"],
    "compute_only_what_is_wanted": ["AAPL.delta is wanted\nAAPL.delta 0.52", "computed: [b'AAPL.delta']"],
    "count_without_the_gil": ["messages: 1000000"],
    "encrypted_feed": [
        "desk: AAPL.trade 189.98",
        "stranger: it refused our",
        "desk: the topics b'MSFT.': our key has no right to that",
    ],
    "fan_out_to_websockets": [
        "['AAPL.trade 189.98', 'AAPL.trade 189.99']",
        "['AAPL.trade 189.98', 'MSFT.trade 370.10', 'AAPL.trade 189.99']",
    ],
    "hear_of_a_slow_callback": ["alert: slow subscriber: feed 'busy'", "ended: slow subscriber: feed 'busy'"],
    "join_late_with_the_book": ["in sync: True\nthe same: True"],
    "publish_my_own_messages": ["AAPL.bid 189.98 at 1700000000000000000", "AAPL.ask 190.02 at 1700000000000000500"],
    "read_trades_as_columns": ["AAPL: 218 trades, mean 154.44", "MSFT: 113 trades, mean 527.53"],
    "record_and_replay": ["recorded: 100000", "equal: True 6524"],
    "relay_to_another_site": [
        "first: AAPL.trade 189.98",
        "second: AAPL.trade 189.98",
        "path: london -> desk",
        "unwanted: 1",
    ],
    "replay_two_feeds": ["trades: IBM at 220.10, score +0.5\ntrades: IBM at 219.90, score -1.0"],
    "share_a_table": [
        "desk-2: another was first: b'120'",
        "equal: True {b'limits.AAPL': b'121', b'limits.MSFT': b'50'}",
        "alive: False",
    ],
    "see_batches_in_arrow": ["['topic', 'ts_event', 'sequence', 'payload'] 50000"],
    "publish_through_a_crash": ["heard 3000 in order, each once: True"],
    "survive_being_killed": ["the same: True"],
    "watch_a_book": ["trades of AAPL, 0.0084 from the middle", "never crossed: True"],
    "use_all_cores_for_python": ["slice 0: in its own process: True", "delivered: 100000"],
}

TWINS = (
    "back_test_two_symbols",
    "begin_with_an_image",
    "change_what_i_want",
    "encrypted_feed",
    "publish_through_a_crash",
    "replay_two_feeds",
    "see_batches_in_arrow",
)
"""Examples covered by similar examples or by other tests."""


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in TWINS else []) for name in SAYS]
)
def test_example(name: str) -> None:
    path = EXAMPLES / f"{name}.py"
    assert path.read_text().startswith('"""How do I ')
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, path], check=False, capture_output=True, text=True, timeout=60, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    for text in SAYS[name]:
        assert text in ran.stdout
