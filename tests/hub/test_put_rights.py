"""Rights of keys to put topics: `put_rights.toml` next to the keys that the hub allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox import ConfigError, Feed, Hub, HubClient
from blackbox.errors import HubError, NotStoredError, RefusedError
from blackbox.testing import wait_until
from tests.keyring import Keyring


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    keys = Keyring(tmp_path, "hub", "desk", "guest", "stranger")
    keys.allow("hub", "desk", "guest")
    return keys


def grant(keys: Keyring, text: str) -> None:
    (keys.directory / "allowed-by-hub" / "put_rights.toml").write_text(text)


@pytest.fixture
def hub(keys: Keyring, feed: Feed, tmp_path: Path) -> Iterator[Hub]:
    grant(keys, 'desk = ["orders.desk.", "notes."]\n"*" = []\n')
    with Hub(keys.feed(feed, "hub"), tmp_path / "kept") as hub:
        yield hub


def client(keys: Keyring, feed: Feed, name: str) -> HubClient:
    return HubClient(keys.feed(feed, name, "hub"), name)


def may_put(client: HubClient) -> bool:
    try:
        client.put(b"orders.x", b"1")
    except NotStoredError:
        raise
    except HubError:
        return False
    return True


def test_a_key_may_put_only_topics_of_its_rights(keys: Keyring, feed: Feed, hub: Hub) -> None:
    with client(keys, feed, "desk") as desk, client(keys, feed, "guest") as guest:
        assert [desk.put(topic, b"1").sequence for topic in (b"orders.desk.1", b"notes.x")] == [0, 1]
        with pytest.raises(RefusedError, match="b'orders.other' .* no right to it, expected .* its put_rights.toml"):
            desk.put(b"orders.other", b"1")
        with pytest.raises(RefusedError, match="1 of 2 puts .* b'orders.x' .* no right to it") as refused:
            desk.put_many([b"notes.x", b"orders.x"], [0, 1], b"ab", offsets=[0, 1, 2])
        assert refused.value.places is not None
        assert refused.value.places["sequence"].tolist() == [2, -1], "the accepted put is stored"
        with pytest.raises(RefusedError, match="b'notes.x' was refused: the key has no right to it"):
            guest.put(b"notes.x", b"1")
        assert desk.put(b"notes.x", b"2").sequence == 3, "the refused put has no sequence"
    assert hub.statistics().refused == 3


def test_a_key_without_a_line_may_put_all_if_there_is_no_default_line(
    keys: Keyring, feed: Feed, tmp_path: Path
) -> None:
    grant(keys, 'desk = ["orders."]\n')
    with Hub(keys.feed(feed, "hub"), tmp_path / "kept"), client(keys, feed, "guest") as guest:
        guest.put(b"anything", b"1")


def test_changed_rights_apply_without_a_restart(keys: Keyring, feed: Feed, hub: Hub) -> None:
    with client(keys, feed, "guest") as guest:
        assert not may_put(guest)
        grant(keys, 'guest = ["orders."]\n')
        wait_until(lambda: may_put(guest))
        grant(keys, "guest = 7\n")  # malformed: no key has a right
        wait_until(lambda: not may_put(guest))


def test_a_key_that_is_not_allowed_puts_nothing(keys: Keyring, feed: Feed, hub: Hub) -> None:
    stranger = client(keys, feed, "stranger").start()
    with pytest.raises(NotStoredError):
        stranger.put(b"notes.x", b"1", timeout=0.5)
    stranger.end()
    assert hub.statistics().stored == 0


def test_a_line_for_a_missing_key_is_logged_once(
    keys: Keyring, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grant(keys, 'gone = ["orders."]\n')
    with Hub(keys.feed(feed, "hub"), tmp_path / "kept"), client(keys, feed, "desk") as desk:
        desk.put(b"orders.x", b"1")
        assert caplog.text.count("names 'gone', which has no key there") == 1
        grant(keys, "guest = 7\n")
        wait_until(lambda: not may_put(desk))
    assert caplog.text.count("no key has a right") == 1


def test_malformed_rights_prevent_a_start(keys: Keyring, feed: Feed, tmp_path: Path) -> None:
    grant(keys, 'desk = "orders."\n')
    with pytest.raises(ConfigError, match=r"put_rights.toml': 'desk' was 'orders.', expected a list of prefixes"):
        Hub(keys.feed(feed, "hub"), tmp_path / "kept").start()
