"""Each file in `examples/` runs and prints the expected output."""

from __future__ import annotations

import pytest

from tests.project.scripts import ROOT, in_turn, together

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
    "count_with_many_writers": ["count: 40"],
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

ALONE = (
    "back_test_two_symbols",
    "begin_with_an_image",
    "change_what_i_want",
    "encrypted_feed",
    "publish_through_a_crash",
    "replay_two_feeds",
    "see_batches_in_arrow",
    "survive_being_killed",
)
"""Examples covered by similar examples or by other tests, some with processes of their own."""


def test_every_example_is_tested_and_asks_a_question() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SAYS)
    assert all(path.read_text().startswith('"""How do I ') for path in EXAMPLES.glob("*.py"))


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    """Run all examples that share a process; first the one that forks."""
    names = sorted(SAYS.keys() - set(ALONE), key=lambda name: (name != "use_all_cores_for_python", name))
    return in_turn(*(EXAMPLES / f"{name}.py" for name in names))


@pytest.mark.parametrize("name", sorted(SAYS.keys() - set(ALONE)))
def test_example(name: str, outputs: dict[str, str]) -> None:
    assert [text for text in SAYS[name] if text not in outputs[name]] == [], outputs[name]
    assert "Traceback" not in outputs[name]


@pytest.mark.long
@pytest.mark.parametrize("name", ALONE)
def test_example_in_its_own_process(name: str) -> None:
    (output,) = together(EXAMPLES / f"{name}.py")
    assert [text for text in SAYS[name] if text not in output] == [], output
