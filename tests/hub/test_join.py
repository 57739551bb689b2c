"""Hubs that find each other: each asks known hubs for the others, and forwards the wanted parts of their feeds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq

from blackbox import ConfigError, Feed, Hub, HubClient
from blackbox.block.form.layout import VERSION
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.security import Security
from blackbox.services.hub.pair.paired_hub import PairedHub
from blackbox.services.hub.pair.protocol import Pair
from blackbox.services.hub.protocol import ENCODER, FOUND, Ended, FindSites, FoundSites, Site
from blackbox.services.hub.sites.discovery import Join
from blackbox.services.hub.sites.site_files import SiteFiles
from blackbox.testing import wait_until
from blackbox.transport.security.curve import ClientKeys, load_pair, load_public, use_keys
from tests.hub.hubs import hub_feed
from tests.hub.pairs import pair_feed
from tests.hub.test_sites import here
from tests.keyring import Keyring

WAIT_S = 60.0
EVERY_NS = 50_000_000
SITES = ("ams", "ldn", "nyc", "tyo")


def ports(count: int) -> tuple[int, int]:
    """Return neighbouring ports that are free now."""
    while True:
        (endpoint,) = free_endpoints("tcp", "ports", 1, 1)[0]
        first = int(endpoint.rpartition(":")[2])
        found = [int(each[0].rpartition(":")[2]) for each in free_endpoints("tcp", "ports", count - 1, 1)]
        if found == list(range(first + 1, first + count)):
            return first, first + count - 1


def joining(directory: Path, *ask: Feed, count: int = 8, keys: tuple[str, ...] = (), every_ns: int = EVERY_NS) -> Join:
    return Join(
        ask=tuple(feed.hub for feed in ask),
        ask_keys=keys,
        directory=str(directory / "sites"),
        ports=ports(count),
        every_ns=every_ns,
    )


def path_of(directory: Path, site: str) -> Path:
    """Return the feed file of another site that readers load."""
    return directory / "sites" / f"{site}.toml"


def wait_found(directory: Path, *sites: str) -> list[Feed]:
    """Wait until the sites are found; return their feeds as readers load them."""
    wait_until(lambda: all((directory / "sites" / "there" / f"{site}.toml").exists() for site in sites), WAIT_S)
    return [Feed.load(path_of(directory, site)) for site in sites]


def wait_log(caplog: pytest.LogCaptureFixture, text: str) -> None:
    wait_until(lambda: text in caplog.text, WAIT_S)


def site_of(feed: Feed, *keys: str) -> Site:
    """Return the site that a hub reports of itself."""
    return Site(msgspec.json.encode(msgspec.structs.replace(feed, security=None)), list(keys))


def say_site(hub: Feed, site: Site, keys: ClientKeys | None = None, version: int = VERSION) -> FoundSites | Ended:
    """Report a site to a hub, as any peer that can connect may do."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, int(1e3 * WAIT_S)
        use_keys(socket, keys)
        socket.connect(hub.hub)
        socket.send(ENCODER.encode(FindSites(1, site, version)))
        answer: FoundSites | Ended = FOUND.decode(socket.recv())
        return answer


def assert_comes(feed: Feed, seen: Feed, directory: Path) -> None:
    """Assert that messages put to a feed's hub arrive at a reader of another site."""
    with HubClient(seen, "reader", directory) as reading, HubClient(feed) as putting:
        reading.subscribe(b"A.")
        for number in range(3):
            place = putting.put(b"A.x", b"%d" % number)
            message = reading.get(b"A.", WAIT_S)
            assert (message.slice_id, message.epoch, message.sequence) == place
            assert message.payload == b"%d" % number
        reading.commit()


@pytest.mark.long
def test_hubs_find_and_forward_each_other_also_one_that_joins_later(tmp_path: Path) -> None:
    feeds = {site: hub_feed(site, slices=1) for site in SITES[:3]}
    hubs: dict[str, Hub] = {}
    with ExitStack() as stack:
        for site, asked in (("ldn", "ldn"), ("ams", "ldn"), ("nyc", "ams")):  # the first one asks itself
            join = joining(tmp_path / site, feeds[asked], every_ns=5 * EVERY_NS)
            if site == "nyc":
                wait_found(tmp_path / "ldn", "ams")
                wait_found(tmp_path / "ams", "ldn")
            hubs[site] = stack.enter_context(Hub(feeds[site], tmp_path / site, join=join))
        for site, hub in hubs.items():
            others = [each for each in feeds if each != site]
            seen = wait_found(tmp_path / site, *others)
            wait_until(lambda: len(hub.sites.relays) == len(others), WAIT_S)
            for other, feed in zip(others, seen, strict=True):
                assert_comes(feeds[other], feed, tmp_path / f"{site}-{other}")
                assert msgspec.structs.replace(feed, slices=feeds[other].slices) == feeds[other]


def test_a_hub_that_is_down_is_asked_again_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ams, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    with Hub(ams, tmp_path / "ams", join=joining(tmp_path / "ams", ldn)) as hub:
        wait_log(caplog, f"hub {ldn.hub} does not answer which sites there are; it is asked again every 0.05 s")
        asked = hub.sites._asked[ldn.hub]
        wait_until(lambda: asked._unanswered > 10, WAIT_S)
        assert caplog.text.count("does not answer which sites") == 1
        with Hub(ldn, tmp_path / "ldn"):
            wait_until(lambda: len(hub.sites.relays) == 1, WAIT_S)
            wait_log(caplog, f"hub {ldn.hub} answers again")


def test_a_hub_without_join_names_its_peers_and_forwards_no_one_else(tmp_path: Path) -> None:
    ams, ldn, nyc = (hub_feed(site, slices=1) for site in SITES[:3])
    with (
        Hub(ldn, tmp_path / "ldn", peers=[(nyc, here(nyc))]) as hub,
        Hub(ams, tmp_path / "ams", join=joining(tmp_path / "ams", ldn)),
    ):
        there = [feed.slices for feed in wait_found(tmp_path / "ams", "ldn", "nyc")]
        assert there != [ldn.slices, nyc.slices]
        assert Feed.load(tmp_path / "ams" / "sites" / "there" / "nyc.toml") == nyc  # straight from its origin
        assert hub.sites.relays == ()


def test_refused_sites_are_logged_once_and_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They have the name of another site or of the hub, need too many ports, or would overwrite another file."""
    ams, ldn, again, own = (hub_feed(name, slices=1) for name in ("ams", "ldn", "ldn", "ams"))
    (tmp_path / "hub.toml").write_text("mine")
    refused = {
        f"feed 'ldn' was of hub {again.hub} and of hub {ldn.hub}: give each its own name": again,
        f"feed 'ams' was of hub {own.hub} and of hub {ams.hub}: give each its own name": own,
        "free ones, expected 3 for the slices of feed 'large'": hub_feed("large", slices=3),
        f"{tmp_path / 'hub.toml'} was there already, expected": hub_feed("hub", slices=1),
    }
    patient = joining(tmp_path, count=2, every_ns=10**11)  # a busy hub must not be taken for one that is down
    join = msgspec.structs.replace(patient, directory=str(tmp_path))
    with Hub(ams, tmp_path / "kept", join=join) as hub, Hub(ldn, tmp_path / "ldn"):
        say_site(ams, site_of(ldn))
        wait_until(lambda: len(hub.sites.relays) == 1, WAIT_S)
        for why, feed in refused.items():
            for _ in range(3):
                say_site(ams, site_of(feed))
            wait_log(caplog, why)
        assert_comes(ldn, Feed.load(tmp_path / "ldn.toml"), tmp_path / "reader")
        assert [relay.upstream for relay in hub.sites.relays] == [ldn]
    said = [each.message for each in caplog.records if "hub of feed 'ams': a site was not accepted" in each.message]
    assert [sum(why in each for each in said) for why in refused] == [1] * len(refused)
    assert (tmp_path / "hub.toml").read_text() == "mine"


def test_a_peer_of_the_hub_file_is_not_replaced(tmp_path: Path) -> None:
    ams, ldn, nyc = (hub_feed(site, slices=1) for site in SITES[:3])
    with (
        Hub(ldn, tmp_path / "ldn", peers=[(nyc, here(nyc))]),
        Hub(ams, tmp_path / "ams", peers=[(ldn, here(ldn))], join=joining(tmp_path / "ams", ldn)),
    ):
        wait_found(tmp_path / "ams", "nyc")
        assert not path_of(tmp_path / "ams", "ldn").exists()


def test_a_site_that_leads_back_here_is_dropped_and_the_hub_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ams, ldn, nyc, tyo = (hub_feed(site, slices=1) for site in SITES)
    join = joining(tmp_path / "ams", ldn)
    # Each of the two feeds has the endpoint at which ams forwards the other one.
    at = [msgspec.structs.replace(ldn.slices[0], endpoints=(f"tcp://127.0.0.1:{join.ports[0] + n}",)) for n in (1, 2)]
    peers = [
        (msgspec.structs.replace(feed, slices=(part,)), here(feed))
        for feed, part in zip((nyc, tyo), reversed(at), strict=True)
    ]
    with Hub(ldn, tmp_path / "ldn", peers=peers), Hub(ams, tmp_path / "ams", join=join):
        wait_log(caplog, "is its own source: ams -> ams")
        (seen,) = wait_found(tmp_path / "ams", "ldn")
        assert_comes(ldn, seen, tmp_path / "reader")


def test_a_restarted_hub_keeps_its_sites_and_ports_unless_a_file_is_damaged(tmp_path: Path) -> None:
    ams, ldn = hub_feed("ams", slices=2), hub_feed("ldn", slices=2)
    join = joining(tmp_path / "ams", ldn)
    with Hub(ldn, tmp_path / "ldn"):
        with Hub(ams, tmp_path / "ams", join=join):
            (seen,) = wait_found(tmp_path / "ams", "ldn")
        # This time no hub is asked.
        join = msgspec.structs.replace(join, ask=(), every_ns=10**12)
        with Hub(ams, tmp_path / "ams", join=join) as hub:
            assert len(hub.sites.relays) == 1
            assert_comes(ldn, seen, tmp_path / "reader")
    path_of(tmp_path / "ams", "ldn").write_text("name = ")
    with pytest.raises(ConfigError, match=r"ldn\.toml is not TOML"):
        Hub(ams, tmp_path / "ams", join=join).start()


def test_a_site_that_has_moved_is_forwarded_at_the_same_ports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ams, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    moved = msgspec.structs.replace(ldn, slices=here(ldn).slices)
    with Hub(ams, tmp_path / "ams", join=joining(tmp_path / "ams", ldn)):
        with Hub(ldn, tmp_path / "ldn"):
            (seen,) = wait_found(tmp_path / "ams", "ldn")
        with Hub(moved, tmp_path / "ldn"):
            wait_log(caplog, "has changed: feed 'ldn'")
            assert wait_found(tmp_path / "ams", "ldn") == [seen]
            assert_comes(moved, seen, tmp_path / "reader")


def test_both_hubs_of_a_pair_answer_also_the_passive_one(tmp_path: Path) -> None:
    ams, ldn = hub_feed("ams", slices=1), pair_feed("ldn", slices=1)
    links = [each[0] for each in free_endpoints("tcp", "links", 2, 1)]
    passive = PairedHub(ldn, tmp_path / "ldn", pair=Pair(role="backup", link=links[1], peer=links[0]))
    asks_backup = msgspec.structs.replace(joining(tmp_path / "ams"), ask=(ldn.hub_backup,))
    with passive, Hub(ams, tmp_path / "ams", join=asks_backup):
        (seen,) = wait_found(tmp_path / "ams", "ldn")
        assert passive.statistics().life == "passive"
        assert (seen.hub, seen.hub_backup, len(seen.slices[0].lines)) == (ldn.hub, ldn.hub_backup, 1)


@pytest.mark.long
def test_sites_with_keys_find_each_other_and_a_stranger_is_no_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring = Keyring(tmp_path, *SITES[:3])
    for site in SITES[:3]:
        ring.allow(site, *SITES[:3])
    plain = {site: hub_feed(site, slices=1) for site in SITES[:3]}
    feeds = {site: ring.feed(feed, site) for site, feed in plain.items()}
    keys = (str(ring.path("ldn")),)
    with (
        Hub(feeds["ldn"], tmp_path / "ldn", join=joining(tmp_path / "ldn")),
        Hub(feeds["ams"], tmp_path / "ams", join=joining(tmp_path / "ams", feeds["ldn"], keys=keys)),
        Hub(feeds["nyc"], tmp_path / "nyc", join=joining(tmp_path / "nyc", feeds["ldn"], keys=keys)),
    ):
        (seen,) = wait_found(tmp_path / "ams", "nyc")  # with the key that ldn reported
        wait_found(tmp_path / "ldn", "ams", "nyc")
        wait_found(tmp_path / "nyc", "ams")
        assert seen.security == Security(
            key=str(ring.path("ams", "key_secret")),
            server_keys=(str(tmp_path / "ams" / "sites" / "keys" / "own.key"),),
            archive_keys=(str(tmp_path / "ams" / "sites" / "keys" / "nyc-0.key"),),
            allowed_keys=str(tmp_path / "allowed-by-ams"),
        )
        assert_comes(seen, seen, tmp_path / "reader")  # puts also use the key of nyc
        # The liar may connect with the key of ams, but claims to be another site with another key.
        liar = ring.feed(hub_feed("tyo", slices=1), "ams", "nyc")
        with Hub(liar, tmp_path / "liar", join=joining(tmp_path / "liar", feeds["ldn"], keys=keys)):
            wait_log(caplog, "names no sites: site was refused: feed 'tyo' had the keys")
        assert not path_of(tmp_path / "ldn", "tyo").exists()


def test_a_site_without_keys_is_not_accepted_by_one_with_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring = Keyring(tmp_path, "ams", "ldn")
    ring.allow("ldn", "ams")
    ams, ldn, nyc = (hub_feed(site, slices=1) for site in SITES[:3])
    join = joining(tmp_path / "ams", ldn, keys=(str(ring.path("ldn")),))
    with (
        Hub(ring.feed(ldn, "ldn"), tmp_path / "ldn", peers=[(nyc, here(nyc))]),
        Hub(ring.feed(ams, "ams"), tmp_path / "ams", join=join),
    ):
        wait_log(caplog, "feed 'nyc' had none of the keys of [security], expected some as here")
        wait_found(tmp_path / "ams", "ldn")


def test_the_key_of_a_hub_that_is_asked_is_missing(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "ams")
    ams, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    with pytest.raises(ConfigError, match="ask_keys were missing"):
        Hub(ring.feed(ams, "ams"), tmp_path / "ams", join=joining(tmp_path / "ams", ldn)).start()


def test_an_address_of_another_host_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    ams, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    join = msgspec.structs.replace(joining(tmp_path / "ams", ldn), host="192.0.2.1")
    with Hub(ldn, tmp_path / "ldn"), Hub(ams, tmp_path / "ams", join=join):
        wait_log(caplog, "host was '192.0.2.1', expected an address of this host")


def test_a_site_that_changes_repeatedly_leaks_no_sockets(tmp_path: Path) -> None:
    ams, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    with Hub(ams, tmp_path / "ams", join=joining(tmp_path / "ams")) as hub:
        for number in range(20):
            backup = f"tcp://127.0.0.1:{number + 1}"
            changed = msgspec.structs.replace(ldn, hub_backup=backup)
            say_site(ams, site_of(changed))
            wait_until(lambda: len(hub.sites.relays) == 1 and hub.sites.relays[0].upstream.hub_backup == backup, WAIT_S)
        wait_until(lambda: set(hub.sites._asked) == {ldn.hub, backup}, WAIT_S)


def test_an_unreachable_hub_of_a_site_ends_no_hub(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ams, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    join = joining(tmp_path / "ams")
    with Hub(ams, tmp_path / "ams", join=join):
        for number, endpoint in enumerate(("ipc://@", "tcp://a_b:1", "ipc:///")):
            say_site(ams, site_of(msgspec.structs.replace(hub_feed(f"bad-{number}", slices=1), hub=endpoint)))
        say_site(ams, site_of(ldn))
        wait_found(tmp_path / "ams", "ldn")
    with Hub(ams, tmp_path / "ams", join=join) as hub:
        wait_until(lambda: "ldn" in [each.upstream.name for each in hub.sites.relays], WAIT_S)
    assert "sites of 'ams' failed" not in caplog.text
    assert "hub 'ipc://@' cannot be asked" in caplog.text


def test_a_hub_killed_while_a_site_changes_starts_again_at_the_same_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ams, ldn = hub_feed("ams", slices=2), hub_feed("ldn", slices=2)
    join = joining(tmp_path / "ams")
    files = SiteFiles(ams, join)
    seen = files.write(site_of(ldn), ldn).here
    replaced = list[Path]()
    replace = Path.replace

    def dies(path: Path, target: Path) -> Path:
        if replaced:
            raise InterruptedError("killed")
        replaced.append(target)
        return replace(path, target)

    fewer = msgspec.structs.replace(ldn, max_topics=17)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        with pytest.raises(InterruptedError):
            files.write(site_of(fewer), fewer)
    with Hub(ams, tmp_path / "ams", join=join) as hub:
        say_site(ams, site_of(fewer))
        wait_until(lambda: [each.upstream for each in hub.sites.relays] == [fewer], WAIT_S)
        assert [part.endpoints for part in hub.sites.relays[0].downstream.slices] == [
            part.endpoints for part in seen.slices
        ]


def test_a_site_is_not_changed_by_another_key(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "ams", "ldn", "evil")
    ring.allow("ams", "ldn", "evil")
    ring.allow("ldn", "ams")
    plain, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    ams = ring.feed(plain, "ams")
    evil = ClientKeys(load_pair(str(ring.path("evil", "key_secret"))), load_public(str(ring.path("ams"))))
    with Hub(ams, tmp_path / "ams", join=joining(tmp_path / "ams")) as hub:
        keys = ClientKeys(load_pair(str(ring.path("ldn", "key_secret"))), load_public(str(ring.path("ams"))))
        assert isinstance(say_site(ams, site_of(ldn, ring.public["ldn"]), keys), FoundSites)
        wait_until(lambda: len(hub.sites.relays) == 1, WAIT_S)
        elsewhere = msgspec.structs.replace(ldn, slices=here(ldn).slices)
        for told in ([ring.public["evil"]], [ring.public["evil"], ring.public["ldn"]]):
            answer = say_site(ams, site_of(elsewhere, *told), evil)
            assert isinstance(answer, Ended)
            assert "as before: to accept new ones" in answer.why


def test_a_hub_whose_name_ends_as_key_files_do_keeps_its_key(tmp_path: Path) -> None:
    ring = Keyring(tmp_path, "ldn-0", "ldn")
    ldn = hub_feed("ldn", slices=1)
    own = ring.feed(hub_feed("ldn-0", slices=1), "ldn-0")
    found = SiteFiles(own, joining(tmp_path)).write(site_of(ldn, ring.public["ldn"]), ldn)
    assert found.there.security is not None
    assert load_public(found.there.security.server_keys[0]).decode() == ring.public["ldn"]
    assert found.here.security is not None
    assert load_public(found.here.security.server_keys[0]).decode() == ring.public["ldn-0"]


@pytest.mark.parametrize(
    ("answer", "said", "times"),
    [
        (
            lambda number, _: FoundSites(number, [Site(b"%d" % each, []) for each in range(10_000)], VERSION),
            "names no sites: its answer was not understood: Expected `array` of length <= 256",
            1,
        ),
        (
            lambda number, _: FoundSites(number, [site_of(hub_feed("ldn", slices=1))], 2),
            "names no sites: its version was 2, expected 3: ",
            1,
        ),
        (lambda _, count: Ended(f"{count} " + "x" * 100_000), "names no sites: ", 4),
    ],
    ids=["too many", "another version", "nonsense"],
)
def test_a_hub_that_names_no_sites_is_not_down_and_logged_once_per_question_and_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Callable[[int, int], object], said: str, times: int
) -> None:
    ams, ldn = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger, socket.rcvtimeo = 0, int(1e3 * WAIT_S)
        socket.bind(ldn.hub)
        join = msgspec.structs.replace(joining(tmp_path, ldn), every_ns=2_000_000_000)
        with Hub(ams, tmp_path / "ams", join=join):
            for question in range(4):
                peer, asked = socket.recv_multipart()
                while socket.poll(0):  # the hub takes any answer for one to its last question
                    peer, asked = socket.recv_multipart()
                number = msgspec.msgpack.decode(asked)[1]
                for count in range(3):
                    socket.send_multipart([peer, ENCODER.encode(answer(number, 3 * question + count))])
            wait_until(lambda: caplog.text.count(said) == times, WAIT_S)
            told = say_site(ams, site_of(ldn), version=2)
            assert isinstance(told, Ended)
            assert "site version was 2, expected 3: " in told.why
    assert all(len(record.message) < 1_000 for record in caplog.records)
    assert caplog.text.count("names no sites") == times
    assert "a site was not accepted" not in caplog.text
    assert "does not answer which sites there are" not in caplog.text
    assert not list(tmp_path.rglob("ldn.toml"))
