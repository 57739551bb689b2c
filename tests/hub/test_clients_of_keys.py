"""Client names and ids belong to the key that uses them: in memory, after a restart and after a takeover."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Feed, Hub, HubClient
from blackbox.errors import RefusedError
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed, published
from tests.hub.pairs import hub_of, pair_feed
from tests.keyring import Keyring

PREFIXES = {"desk": b"A.", "guest": b"B."}
"""Prefix of the topics of each key."""
PATIENCE_S = 60.0


def keyring(directory: Path, *hubs: str) -> Keyring:
    keys = Keyring(directory, *hubs, *PREFIXES)
    for hub in hubs:
        keys.allow(hub, *hubs, *PREFIXES)
        rights = "".join(f'{name} = ["{prefix.decode()}"]\n' for name, prefix in PREFIXES.items())
        (directory / f"allowed-by-{hub}" / "put_rights.toml").write_text(rights)
    return keys


def put_as_each(keys: Keyring, feed: Feed, *hubs: str) -> dict[str, tuple[int, int]]:
    """Put with the same id and client name as each key, also without a right; return the places of the messages."""
    places = {}
    for key, prefix in PREFIXES.items():
        with HubClient(keys.feed(feed, key, *hubs), "one") as client:
            place = client.put(prefix + b"x", key.encode(), b"id", timeout=PATIENCE_S)
            places[key] = place.epoch, place.sequence
            with pytest.raises(RefusedError, match="b'C' was refused: the key has no right to it"):
                client.put(b"C", b"")
    return places


def test_a_put_is_stored_if_only_another_key_has_used_its_id(tmp_path: Path) -> None:
    keys, feed = keyring(tmp_path, "hub"), hub_feed(slices=1)
    with Hub(keys.feed(feed, "hub"), tmp_path / "kept") as hub:
        places = put_as_each(keys, feed, "hub")
        assert hub.statistics().stored == 2
        assert put_as_each(keys, feed, "hub") == places
    with Hub(keys.feed(feed, "hub"), tmp_path / "kept") as hub:
        assert put_as_each(keys, feed, "hub") == places
        assert hub.statistics().stored == 0
    assert [each[-2:] for each in published(tmp_path / "kept", feed)] == [(b"A.x", b"desk"), (b"B.x", b"guest")]


def test_a_hub_that_takes_over_knows_the_ids_of_each_key(tmp_path: Path, links: tuple[str, ...]) -> None:
    keys, feed = keyring(tmp_path, "primary", "backup"), pair_feed(slices=1)
    with hub_of(keys.feed(feed, "backup", "primary", "backup"), tmp_path, links, "backup") as backup:
        with hub_of(keys.feed(feed, "primary", "primary", "backup"), tmp_path, links):
            wait_until(lambda: backup.statistics().life == "armed", PATIENCE_S)
            places = put_as_each(keys, feed, "primary", "backup")
        assert put_as_each(keys, feed, "primary", "backup") == places
        assert backup.statistics().life == "active"
    assert [each[-1] for each in published(tmp_path / "backup", feed)] == [b"desk", b"guest"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_name_of_a_client_is_not_taken_over_by_another_key(tmp_path: Path, restarts: bool) -> None:
    keys, feed = keyring(tmp_path, "hub"), hub_feed(slices=1)
    hub = Hub(keys.feed(feed, "hub"), tmp_path / "kept").start()
    with HubClient(keys.feed(feed, "desk", "hub"), "one") as desk:
        desk.put(b"A.x", b"1")
        with HubClient(keys.feed(feed, "guest", "hub"), "one") as guest:
            assert guest.published_count() == 0
            guest.put(b"B.x", b"2")
            if restarts:
                hub.close()
                hub = Hub(keys.feed(feed, "hub"), tmp_path / "kept").start()
            desk.put(b"A.x", b"3", timeout=PATIENCE_S)
            guest.put(b"B.x", b"4", timeout=PATIENCE_S)
            assert (desk.published_count(), guest.published_count()) == (2, 2)
    hub.close()
