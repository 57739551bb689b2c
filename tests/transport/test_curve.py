"""Key files and the gate: faulty keys are named in errors, rejected peers are logged."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from blackbox import ConfigError, Feed
from blackbox.transport import curve, gate
from blackbox.transport.connections import Failure
from blackbox.transport.curve import ClientKeys, keys_of_line, load_pair, load_public, refusal_of
from blackbox.transport.gate import AllowedKeys, Gate, open_gate
from tests.keyring import Keyring

FEED = Feed.local("quotes", slices=1)


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "exchange", "desk", "stranger")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def request(key: bytes, address: bytes = b"10.0.0.9") -> list[bytes]:
    return [b"1.0", b"7", b"blackbox", address, b"", b"CURVE", key]


def test_a_new_pair_matches_and_only_its_owner_can_read_it(ring: Keyring) -> None:
    path = ring.path("desk", "key_secret")
    assert path.stat().st_mode & 0o777 == 0o600
    pair = load_pair(str(path))
    assert zmq.curve_public(pair.secret) == pair.public == load_public(str(ring.path("desk")))
    assert b"secret-key" not in ring.path("desk").read_bytes()


def test_a_missing_key_file_is_named(ring: Keyring) -> None:
    with pytest.raises(ConfigError, match=r"^feed 'quotes': secret key file '.*absent.key_secret' was not found"):
        keys_of_line(ring.feed(FEED, "absent", "exchange"), 0, FEED.slices[0].endpoints[0])
    with pytest.raises(ConfigError, match=r"^feed 'quotes': public key file '.*absent.key' was not found"):
        keys_of_line(ring.feed(FEED, "desk", "absent"), 0, FEED.slices[0].endpoints[0])


def test_a_secret_key_readable_by_others_is_rejected(ring: Keyring) -> None:
    path = ring.path("desk", "key_secret")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"desk.key_secret' had mode 0640, expected 0600: others can read it"):
        load_pair(str(path))


def test_a_public_key_instead_of_a_secret_one_is_rejected(ring: Keyring) -> None:
    with pytest.raises(ConfigError, match=r"desk.key' had no secret key, expected one"):
        load_pair(str(ring.path("desk")))


def test_a_secret_key_with_another_public_key_is_rejected(ring: Keyring) -> None:
    path = ring.path("desk", "key_secret")
    path.write_text(path.read_text().replace(ring.public["desk"], ring.public["stranger"]))
    with pytest.raises(ConfigError, match="expected that of its secret"):
        load_pair(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "had no public key, expected one"),
        ("public-key\n", "had no public key, expected one"),
        ('public-key = "abc"', "public key 'abc' in .* had 3 characters, expected 40 of the alphabet Z85"),
        (f'public-key = "{"~" * 40}"', "expected 40 of the alphabet Z85"),
        (f'public-key = "{"#" * 40}"', "expected 40 of the alphabet Z85"),
        ('public-key = "ü"', "expected 40 of the alphabet Z85"),
    ],
)
def test_a_malformed_key_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.key"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_public(str(path))


def test_no_error_shows_a_secret_key(ring: Keyring) -> None:
    path = ring.path("desk", "key_secret")
    secret = load_pair(str(path)).secret.decode()
    path.write_text(path.read_text().replace(secret, secret[:-1]))
    with pytest.raises(ConfigError) as caught:
        load_pair(str(path))
    assert "secret key in" in str(caught.value)
    assert secret[:-1] not in str(caught.value)


def test_a_server_without_allowed_keys_is_rejected(
    ring: Keyring, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    feed, endpoints = ring.feed(FEED, "exchange"), FEED.slices[0].endpoints
    (tmp_path / "allowed-by-exchange").rmdir()
    with pytest.raises(ConfigError, match=r"allowed_keys was '.*allowed-by-exchange', expected a directory"):
        open_gate(context, feed, endpoints, "a publisher")


def test_an_empty_list_of_allowed_keys_is_logged(
    ring: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    AllowedKeys(str(tmp_path / "allowed-by-exchange"))
    assert "has no *.key file: no peer may connect" in caplog.text


def test_a_key_is_allowed_while_its_file_exists(ring: Keyring, tmp_path: Path) -> None:
    ring.allow("exchange", "desk")
    allowed, key = AllowedKeys(str(tmp_path / "allowed-by-exchange")), ring.public["stranger"].encode()
    assert not allowed.has(key)
    ring.allow("exchange", "stranger")
    assert allowed.has(key)
    (tmp_path / "allowed-by-exchange" / "stranger.key").unlink()
    assert not allowed.has(key)
    assert allowed.has(ring.public["desk"].encode())


def test_a_malformed_key_added_later_allows_no_peer_and_is_logged(
    ring: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring.allow("exchange", "desk")
    allowed = AllowedKeys(str(tmp_path / "allowed-by-exchange"))
    (tmp_path / "allowed-by-exchange" / "wrong.key").write_text("nothing")
    assert allowed.has(ring.public["desk"].encode())
    assert not allowed.has(b"")
    assert "wrong.key' had no public key" in caplog.text


@pytest.mark.parametrize(
    ("target", "message"),
    [("gone", "old.key' was not found"), ("x" * 300, "old.key' cannot be read: File name too long")],
    ids=["dangling", "too long"],
)
def test_a_bad_link_does_not_affect_other_keys(
    ring: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str, message: str
) -> None:
    ring.allow("exchange", "desk")
    directory = tmp_path / "allowed-by-exchange"
    allowed = AllowedKeys(str(directory))
    (directory / "old.key").symlink_to(tmp_path / target)
    for _ in range(3):
        assert allowed.has(ring.public["desk"].encode())
    assert caplog.text.count(message) == 1
    with pytest.raises(ConfigError, match=message):
        AllowedKeys(str(directory))


def test_a_key_file_is_reloaded_when_its_permissions_change(ring: Keyring, tmp_path: Path) -> None:
    ring.allow("exchange", "desk")
    allowed = AllowedKeys(str(tmp_path / "allowed-by-exchange"))
    path = tmp_path / "allowed-by-exchange" / "desk.key"
    before = path.stat()
    path.write_text(path.read_text().replace(ring.public["desk"], ring.public["stranger"]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size and time
    assert allowed.has(ring.public["stranger"].encode())
    assert not allowed.has(ring.public["desk"].encode())


def test_a_deleted_directory_allows_no_peer_and_is_logged_once(
    ring: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring.allow("exchange", "desk")
    allowed = AllowedKeys(str(tmp_path / "allowed-by-exchange"))
    (tmp_path / "allowed-by-exchange").rename(tmp_path / "away")
    for _ in range(3):
        assert not allowed.has(ring.public["desk"].encode())
    assert caplog.text.count("cannot be read, so no peer may connect") == 1
    (tmp_path / "away").rename(tmp_path / "allowed-by-exchange")
    assert allowed.has(ring.public["desk"].encode())


def test_a_rejected_key_is_logged_once_per_address(
    ring: Keyring,
    context: zmq.Context[zmq.Socket[bytes]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "_MOST_LOGGED", 3)
    security = ring.feed(FEED, "exchange").security
    assert security is not None
    ring.allow("exchange", "desk")
    at, raw = Gate(context, security, "quotes slice 0"), zmq.utils.z85.decode
    with caplog.at_level(logging.WARNING, "blackbox"):
        allowed = at._answer(request(raw(ring.public["desk"])))
        assert allowed[:3] == [b"1.0", b"7", b"200"]
        assert caplog.messages == []
        stranger = raw(ring.public["stranger"])
        for address in (b"10.0.0.8", b"10.0.0.8", b"10.0.0.9"):
            assert at._answer(request(stranger, address))[2] == b"400"
        for number in range(5):
            assert at._answer(request(bytes([number] * 32)))[2] == b"400"
    assert at.refused == 8
    assert caplog.messages[:2] == [
        f"quotes slice 0: refused key {ring.public['stranger']} at 10.0.0.{host}: not among allowed_keys"
        for host in (8, 9)
    ]
    assert caplog.messages[3:] == ["quotes slice 0: has refused 3 peers, further ones are only counted"]
    at.close()


def test_no_peer_can_connect_after_the_gate_is_closed(ring: Keyring, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    ring.allow("exchange", "desk")
    endpoint = FEED.slices[0].endpoints[0]
    at = open_gate(context, ring.feed(FEED, "exchange"), [endpoint], "quotes slice 0")
    assert at is not None
    keys = keys_of_line(ring.feed(FEED, "desk", "exchange"), 0, endpoint)
    with context.socket(zmq.PUSH) as push, zmq.Context() as other, other.socket(zmq.PULL) as pull:
        push.linger = 0
        at.secure(push, endpoint)
        push.bind(endpoint)
        at.close()
        curve.use_keys(pull, keys)
        place = "inproc://news"
        pull.monitor(place, zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        with other.socket(zmq.PAIR) as news:
            news.connect(place)
            pull.connect(endpoint)
            # libzmq closes the connection, or waits for an answer if the gate was open a moment ago.
            events = [news.recv_multipart()[0][:2]] if news.poll(2_000) else []
        pull.monitor(None, 0)
    assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in [int.from_bytes(event, "little") for event in events]


def test_inproc_with_encrypted_tcp_is_rejected(ring: Keyring) -> None:
    with pytest.raises(ConfigError, match="inproc was combined with tcp://.* and security, expected tcp or ipc"):
        open_gate(zmq.Context.instance(), ring.feed(FEED, "exchange"), FEED.slices[0].endpoints, "a relay")


def test_ipc_needs_no_gate_and_no_key(ring: Keyring, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    feed = ring.feed(FEED, "nobody", "nobody")
    assert open_gate(context, feed, ["ipc:///tmp/x", "inproc://x"], "quotes") is None
    assert keys_of_line(feed, 0, "ipc:///tmp/x") is None


def test_failed_handshakes_are_explained(ring: Keyring) -> None:
    keys = keys_of_line(ring.feed(FEED, "desk", "exchange"), 0, FEED.slices[0].endpoints[0])
    assert isinstance(keys, ClientKeys)
    assert refusal_of([], None) == refusal_of([], keys) == refusal_of([Failure.LEFT], None) == ""
    assert refusal_of([Failure.MECHANISM], None) == "it requires CURVE, and this feed file has no [security]"
    assert f"refused our key {ring.public['desk']}" in refusal_of([Failure.LEFT, Failure.REFUSED], keys)
    assert "it does not speak CURVE" in refusal_of([Failure.MECHANISM], keys)
    assert f"expected the key {ring.public['exchange']} (server_keys)" in refusal_of([Failure.LEFT], keys)


def test_a_slow_curve_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "is_fast", lambda: False)
    curve._warn_of_slow.cache_clear()
    for _ in range(2):
        curve.check_curve()
    assert len(caplog.messages) == 1
    assert "the slow kind (without libsodium)" in caplog.text


def test_the_implementation_of_curve_is_measured_if_libsodium_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    for seconds, fast in ((30e-6, True), (1e-3, False)):
        monkeypatch.setattr(curve, "_seconds_of_key", lambda secret, seconds=seconds: seconds)
        curve.is_fast.cache_clear()
        assert curve.is_fast() is fast
    curve.is_fast.cache_clear()


def test_a_libzmq_without_curve_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    with pytest.raises(ConfigError, match="this libzmq has no CURVE"):
        curve.check_curve()
