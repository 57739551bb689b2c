"""The key table of a slice drops keys of earlier epochs. Kept blocks, unreported losses and reported ends keep theirs.

See `test_gaps.py` for the table of a whole subscriber.
"""

from __future__ import annotations

from pathlib import Path

import numpy

from blackbox import Recorder
from blackbox.native.compile.jit import njit
from blackbox.native.compile.kept_arguments import Kept, kept_at
from blackbox.receive.order.keys import forget_keys
from blackbox.receive.order.losses import lose_messages, next_loss, number_key
from blackbox.receive.order.state import Order, OrderAt, Phase, held_block, key_state
from blackbox.receive.state import SliceCounters
from blackbox.testing import RawPublisher
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.receive.subscribers import subscribed

_at = kept_at(OrderAt)


@njit(nogil=True)
def _number(kept: int, text: int, size: int) -> int:
    number: int = number_key(_at(kept), text, size)
    return number


@njit(nogil=True)
def _keep_some(kept: int, first_held: int, doubted: int, heard: int, losers: tuple[int, int]) -> None:
    at = _at(kept)
    held_block(at, 1).key, held_block(at, 2).key = first_held, doubted
    key_state(at, heard).heard_epoch = 9
    key_state(at, 1).told_before = 30
    for key in losers:
        lose_messages(at, key, 1, 2, 1, False)


@njit(nogil=True)
def _keys_in_use(kept: int) -> tuple[int, int, int, int]:
    at = _at(kept)
    return held_block(at, 1).key, held_block(at, 2).key, next_loss(at).key, next_loss(at).key


def test_keys_of_kept_blocks_losses_told_ends_and_later_epochs_stay_when_others_are_forgotten() -> None:
    counters = SliceCounters()
    order = Order(4, 2, 1, 1, 1_000, counters)
    kept = Kept(order.at)

    def number(name: bytes) -> int:
        text = numpy.frombuffer(name, numpy.uint8)
        return int(_number(kept.address, text.ctypes.data, len(name)))

    assert [number(name) for name in (b"A", b"B", b"C", b"D", b"E", b"F", b"G", b"H")] == [*range(8)]
    order.state.epoch, order.state.phase, order.state.told_next = 5, Phase.CATCHING_UP, 30
    order.state.first_held, order.state.doubted_place[1], order.epochs.doubted_key[0] = 1, 2, 1 + 5
    _keep_some(kept.address, 6, 3, 0, (2, 4))
    forget_keys(order.at)
    assert order.keys.names() == [b"A", b"B", b"C", b"D", b"E", b"F", b"G"]
    found = [order.keys.name(key) for key in (*_keys_in_use(kept.address), order.epochs.doubted_key[0] - 1)]
    assert found == [b"G", b"D", b"E", b"C", b"F"]
    assert (number(b"G"), number(b"H"), counters.gaps) == (6, 7, 2)


def test_archives_deliver_messages_of_more_keys_than_an_epoch_has(tmp_path: Path) -> None:
    subscriber, got = subscribed(feed := archived_feed(key_bytes=2, max_topics=4), b"0", b"1", workers=1)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for publisher.epoch in range(1, 6):
            publisher.sequences, publisher.ends = [0], [{}]
            for number in range(4):
                topic = b"%02d.t" % (4 * publisher.epoch - 4 + number)
                publisher.send(publisher.encode([(topic, b"")] * 2))
            wait_recorded(recorder, 8 * publisher.epoch)
        with subscriber.start(since=0):
            got.wait(40)
            assert [message.sequence for message in got.messages] == 5 * [*range(8)]
            assert subscriber.statistics().received.gaps == 0
