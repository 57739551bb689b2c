"""Hubs of feeds with keys: sequences count per slice, and only wanted keys cross between sites."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Gap, Hub, HubClient, Subscriber
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import ConflictError
from blackbox.services.hub.protocol import PLACE
from blackbox.services.hub.server.numbers import Numbers
from blackbox.services.hub.server.topics import Topics
from blackbox.testing import wait_until
from tests.hub.hubs import HUB, hub_feed, published
from tests.hub.test_sites import WAIT_S, here, passes_on
from tests.torture.nursery import Nursery

KEY_BYTES: Final = 3
TOPICS: Final = (*(b"S%02d.%s" % (number, kind) for number in range(20) for kind in (b"x", b"y")), b"S", b"T.a")
"""Two topics of each key; topics shorter than KEY_BYTES have a shorter key."""


def keyed(name: str = "hub", slices: int = 2) -> Feed:
    return hub_feed(name, slices, key_bytes=KEY_BYTES)


@given(st.lists(st.lists(st.tuples(st.sampled_from(TOPICS), st.booleans()), min_size=1, max_size=30), max_size=6))
def test_rows_are_numbered_per_slice_and_grouped_by_key(requests: list[list[tuple[bytes, bool]]]) -> None:
    feed = Feed.local("numbers", slices=3, key_bytes=KEY_BYTES)
    numbers, finder, following = Numbers(3), Topics(feed), [0, 0, 0]
    for rows in requests:
        topics = list({topic for topic, _ in rows})
        index = numpy.array([topics.index(topic) for topic, _ in rows], numpy.int32)
        places = numpy.zeros(len(rows), PLACE)
        places["slice"], places["sequence"] = [feed.slice_of(topic) for topic, _ in rows], -1
        order = finder.in_order(topics, index)
        assert sorted(order.tolist()) == list(range(len(rows)))
        keys = [feed.key_of(rows[row][0]) for row in order]
        assert [key for key, _ in groupby(keys)] == list(dict.fromkeys(feed.key_of(topic) for topic, _ in rows))
        taken = order[[rows[row][1] for row in order]]
        numbers.number(places, taken)
        for row in taken.tolist():
            slice_id, _, _, _, sequence = places[row].item()
            assert sequence == following[slice_id]
            following[slice_id] += 1
        assert all(places["sequence"][row] == -1 for row in set(range(len(rows))) - set(taken.tolist()))
        assert numbers.following() == following


@pytest.mark.parametrize("slices", [pytest.param(1, marks=pytest.mark.long), 3])
def test_puts_of_all_kinds_are_published_at_their_places(tmp_path: Path, slices: int) -> None:
    """Put one by one, in columns, with repeated ids, with conditions; over a kill and an orderly end.

    Each message is published at its place, and the places of a topic ascend.
    """
    feed, random = keyed(slices=slices), Random(7)
    said, epochs = list[tuple[Place, bytes, bytes]](), list[int]()
    with Nursery(feed, HUB, 1) as hub, HubClient(feed, "desk") as client:
        hub.begin((tmp_path,))
        newest = dict[bytes, Place]()

        def note(topic: bytes, payload: bytes, place: Place) -> None:
            assert place.slice_id == feed.slice_of(topic)
            assert place > newest.get(topic, (place.slice_id, 0, -1))
            newest[topic] = place
            said.append((place, topic, payload))

        for turn in range(30):
            topics = random.choices(TOPICS, k=random.randrange(1, 60))
            texts = [b"%d %d" % (turn, number) for number in range(len(topics))]
            if turn % 3 == 0:
                offsets = numpy.cumsum([0, *map(len, texts)])
                places = client.put_many(TOPICS, list(map(TOPICS.index, topics)), b"".join(texts), offsets=offsets)
                for topic, text, place in zip(topics, texts, places, strict=True):
                    note(topic, text, Place(*map(int, (place["slice"], place["epoch"], place["sequence"]))))
            elif turn % 3 == 1:
                futures = [client.put_soon(topic, text, text) for topic, text in zip(topics, texts, strict=True)]
                for topic, text, future in zip(topics, texts, futures, strict=True):
                    note(topic, text, future.result(200))
                assert client.put(topics[0], texts[0], texts[0]) == futures[0].result()
            else:
                note(topics[0], texts[0], client.put(topics[0], texts[0], if_at=newest.get(topics[0], NOWHERE)))
                with pytest.raises(ConflictError) as error:
                    client.put(topics[0], b"", if_at=Place(0, 1, 1))
                assert error.value.found == newest[topics[0]]
            epochs.append(next(iter(newest.values())).epoch)
            if turn % 10 == 9:
                hub.kill()
                hub.begin((tmp_path,))
        assert len(set(epochs)) == 1
        wait_until(lambda: hub.notes[0] == 4)
        hub.kill()
    with Hub(feed, tmp_path), HubClient(feed) as client:  # publishes the unpublished rest, and ends in order
        for topic in TOPICS:
            note(topic, b"end", client.put(topic, b"end"))
    with Hub(feed, tmp_path), HubClient(feed) as client:
        begun = [client.put(topic, b"") for topic in TOPICS]
        for slice_id in range(slices):
            numbers = [place.sequence for place in begun if place.slice_id == slice_id]
            assert numbers == list(range(len(numbers)))
    found = [
        (Place(slice_id, epoch, sequence), topic, payload)
        for epoch, slice_id, sequence, topic, payload in published(tmp_path, feed)
        if epoch == epochs[0]
    ]
    assert sorted(found) == sorted(said)
    for slice_id in range(slices):
        numbers = [place.sequence for place, *_ in found if place.slice_id == slice_id]
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("keys", [{}, {"key_bytes": KEY_BYTES}, {"channels": 8}])
def test_a_durable_subscription_begins_after_earlier_puts_and_has_all_of_new_keys(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    feed = hub_feed(slices=2, **keys)
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk", tmp_path / "positions") as client:
        for number in range(3):
            client.put(b"S01.x", b"before %d" % number)
        for prefix in (b"S0", b"S0", b"S02.long"):
            client.subscribe(prefix)
        assert [each.text for each in client.subscriptions] == [b"S0", b"S02.long"]
        said = [
            (topic, client.put(topic, b"%d" % number))
            for number, topic in enumerate((b"S01.x", b"S02.x", b"S02.longer", b"T.a", b"S01.x", b"S03.x"))
        ]
        got = [client.get(b"S0", WAIT_S) for _ in range(5)]
        assert sorted((each.topic, Place(each.slice_id, each.epoch, each.sequence)) for each in got) == sorted(
            (topic, place) for topic, place in said if topic.startswith(b"S0")
        )
        assert client.get(b"S02.long", WAIT_S).payload == b"2"
        with pytest.raises(TimeoutError):
            client.get(b"S0", 0.01)


class Pair:
    """Amsterdam, which forwards London's feed."""

    def __init__(self, tmp_path: Path, slices: int = 1) -> None:
        self.ldn, self.ams, self._place = keyed("ldn", slices), hub_feed("ams", slices=1), tmp_path
        self.here = here(self.ldn)

    def hub_ldn(self) -> Hub:
        return Hub(self.ldn, self._place / "ldn")

    def hub_ams(self) -> Hub:
        return Hub(self.ams, self._place / "ams", peers=[(self.ldn, self.here)])

    def reader(self, name: str = "reader") -> HubClient:
        return HubClient(self.here, name, self._place / name)


def begin(client: HubClient, prefix: bytes) -> None:
    client.subscribe(prefix)
    with pytest.raises(TimeoutError):
        client.get(prefix, 0.01)


def test_only_wanted_keys_cross_while_they_have_a_reader(tmp_path: Path) -> None:
    sites = Pair(tmp_path)
    with sites.hub_ldn(), sites.hub_ams() as ams, HubClient(sites.ldn) as putting:
        (peer,) = ams.peers

        def put_all(turn: int) -> list[tuple[bytes, bytes, Place]]:
            texts = [(topic, b"%d" % turn) for topic in TOPICS for _ in range(5)]
            return [(topic, text, putting.put(topic, text)) for topic, text in texts]

        def filters() -> int:
            return sum(line.filters_above for line in peer.statistics().lines)

        def has_withdrawn() -> bool:
            upstreams = [line.upstream for each in peer._slices for line in each.lines]
            return all(each.is_confirmed(each.version) for each in upstreams)

        put_all(0)
        assert (filters(), peer.statistics().messages) == (0, 0)
        with sites.reader("one") as one, sites.reader("two") as two:
            begin(one, b"S03.x")
            begin(two, b"S03.x")
            begin(two, b"S04.")
            wait_until(lambda: filters() == 2 and passes_on(peer), WAIT_S)
            said = put_all(1)
            for client, prefix in ((one, b"S03.x"), (two, b"S03.x"), (two, b"S04.")):
                wanted = [each for each in said if each[0].startswith(prefix)]
                got = [client.get(prefix, WAIT_S) for _ in wanted]
                found = [(each.topic, each.payload, Place(each.slice_id, each.epoch, each.sequence)) for each in got]
                assert found == wanted
            assert peer.statistics().messages == sum(topic[:KEY_BYTES] in (b"S03", b"S04") for topic, *_ in said) == 20
            two.unsubscribe(b"S04.")
            wait_until(lambda: filters() == 1 and passes_on(peer) and has_withdrawn(), WAIT_S)
            put_all(2)
            assert [one.get(b"S03.x", WAIT_S).payload for _ in range(5)] == [b"2"] * 5
            wait_until(lambda: peer.statistics().messages >= 30, WAIT_S)
            assert peer.statistics().messages == 30
        wait_until(lambda: filters() == 0 and has_withdrawn(), WAIT_S)
        put_all(3)
        assert peer.statistics().messages == 30


@pytest.mark.long
def test_a_remote_reader_receives_each_key_once_in_order_over_any_kill(tmp_path: Path) -> None:
    sites, count = Pair(tmp_path, slices=2), 1_500
    wanted = [topic for topic in TOPICS if topic.startswith(b"S0")]
    code = HUB.replace("Hub(feed, directory)", "Hub(feed, directory, peers=PEERS)")
    feeds = msgspec.json.encode([(sites.ldn, sites.here)])
    decoded = f"msgspec.json.decode({feeds!r}, type=list[tuple[Feed, Feed]])"
    peers = f"import msgspec\nfrom blackbox import Feed\nPEERS = {decoded}\n"
    with ExitStack() as stack:
        ldn = stack.enter_context(Nursery(sites.ldn, HUB, 1))
        ams = stack.enter_context(Nursery(sites.ams, peers + code, 1))
        ldn.begin((tmp_path / "ldn",))
        ams.begin((tmp_path / "ams",))
        reading = stack.enter_context(sites.reader())
        reading.subscribe(b"S0")
        said: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)

        def put_all() -> None:
            random = Random(3)
            with HubClient(sites.ldn, "desk") as client:
                for number in range(count):
                    topic = random.choice(TOPICS)
                    place = client.put(topic, b"%d" % number, timeout=WAIT_S)
                    said[topic].append((place.sequence, b"%d" % number))

        putting = threading.Thread(target=put_all)
        putting.start()
        got: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)

        def get() -> bool:
            try:
                message = reading.get(b"S0", 0.2)
            except TimeoutError:
                return False
            got[message.topic].append((message.sequence, message.payload or b""))
            return True

        for harmed, directory in ((ams, "ams"), (ldn, "ldn"), (ams, "ams")):
            for _ in range(60):
                while not get():
                    pass
            harmed.kill()
            harmed.begin((tmp_path / directory,))
        putting.join()
        expected = {topic: said[topic] for topic in wanted if said[topic]}
        until = time.monotonic() + WAIT_S
        while sum(map(len, got.values())) < sum(map(len, expected.values())) and time.monotonic() < until:
            get()
        assert dict(got) == expected
        assert not get()
        for each in (ams, ldn):
            each.kill()


def test_a_loss_is_reported_only_for_wanted_keys(tmp_path: Path) -> None:
    """The subscriber has no archives, so lost messages are reported instead of fetched."""
    sites, got, gaps = Pair(tmp_path), list[bytes](), list[Gap]()
    subscriber = Subscriber(msgspec.structs.replace(sites.here, archives=()), on_gap="tell")

    @subscriber.on(b"S03.", fields=("payload",))
    def take(payload: bytes) -> None:
        got.append(payload)

    subscriber.on_gap(b"S03.")(gaps.append)
    with sites.hub_ldn(), HubClient(sites.ldn) as putting:
        putting.put(b"S03.x", b"known")
        with sites.hub_ams():
            subscriber.start()
            for number in range(10):
                putting.put(b"S03.x", b"%d" % number)
                putting.put(b"S04.x", b"not wanted")
            wait_until(lambda: len(got) == 10, WAIT_S)
        for topic in (b"S03.x", b"S04.x", b"S03.y"):
            putting.put_many([topic], [0] * 50, bytes(50), offsets=range(51))
        with sites.hub_ams():
            while b"again" not in got:
                putting.put(b"S03.x", b"again")
            putting.put(b"S03.x", b"last")
            wait_until(lambda: got[-1] == b"last", WAIT_S)
    subscriber.stop()
    assert {gap.key for gap in gaps} == {b"S03"}
    assert gaps[0].sequence in (20, 21)  # after the last one received, or the end that a later heartbeat reported
    # More, and in several gaps, if messages were put before the subscription was in force again.
    assert sum(gap.count for gap in gaps) >= 100


def test_a_table_at_the_other_site_reads_its_writes_and_ends_the_same(tmp_path: Path) -> None:
    sites, topics = Pair(tmp_path), [b"S%02d.%d" % (number % 4, number) for number in range(40)]
    with ExitStack() as stack:
        stack.enter_context(sites.hub_ldn())
        (peer,) = stack.enter_context(sites.hub_ams()).peers
        tables = []
        for feed in (sites.ldn, sites.here):
            client = stack.enter_context(HubClient(feed))
            before = client.put(topics[0], b"there before")
            subscriber = Subscriber(feed, on_gap="repair")
            tables.append(subscriber.table(b"S0", client=client))
            subscriber.start(snapshot="latest")
            stack.callback(subscriber.stop)
            assert tables[-1].wait(before, WAIT_S)
        table = tables[1]
        for turn in range(3):
            for topic in topics:
                place = table.put(topic, b"%d" % turn, if_at=table.revision(topic))
                assert table.wait(place, WAIT_S)
                assert table.revision(topic) == place
        table.delete(topics[3])
        table.put(topics[4], b"", ttl=0.001)
        wait_until(lambda: not {topics[3], topics[4]} & table.keys() and not {topics[3], topics[4]} & tables[0].keys())
        assert table.digest() == tables[0].digest()
        assert table.at == tables[0].at
        assert peer.statistics().messages >= 3 * len(topics)
