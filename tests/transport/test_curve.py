"""Key files and the gate: faulty keys are named in errors, rejected peers are logged."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import zmq

from blackbox import ConfigError, Feed, repeated_log
from blackbox.transport.security import curve
from blackbox.transport.security.curve import ClientKeys, keys_of_line, load_pair, load_public, refusal_of
from blackbox.transport.security.gate import AllowedKeys, Gate, open_gate
from blackbox.transport.tcp_info import Failure
from tests.keyring import Keyring

FEED = Feed.local("quotes", slices=1)
ENDPOINT = FEED.slices[0].endpoints[0]


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    ring = Keyring(tmp_path, "exchange", "desk", "stranger")
    ring.allow("exchange", "desk")
    return ring


@pytest.fixture
def allowed(ring: Keyring, tmp_path: Path) -> Path:
    """Return the directory of keys that the exchange accepts."""
    return tmp_path / "allowed-by-exchange"


def key_of(ring: Keyring, name: str) -> bytes:
    return ring.public[name].encode()


def test_a_new_pair_matches_and_only_its_owner_can_read_it(ring: Keyring) -> None:
    path = ring.path("desk", "key_secret")
    assert path.stat().st_mode & 0o777 == 0o600
    pair = load_pair(str(path))
    assert zmq.curve_public(pair.secret) == pair.public == load_public(str(ring.path("desk")))
    assert b"secret-key" not in ring.path("desk").read_bytes()


def test_a_faulty_secret_key_file_is_named_without_showing_the_key(ring: Keyring) -> None:
    path = ring.path("desk", "key_secret")
    text, secret = path.read_text(), load_pair(str(path)).secret.decode()
    path.write_text(text.replace(ring.public["desk"], ring.public["stranger"]))
    with pytest.raises(ConfigError, match="expected that of its secret"):
        load_pair(str(path))
    path.write_text(text.replace(secret, secret[:-1]))
    with pytest.raises(ConfigError, match="secret key in") as caught:
        load_pair(str(path))
    assert secret[:-1] not in str(caught.value)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"desk.key_secret' had mode 0640, expected 0600: others can read it"):
        load_pair(str(path))
    with pytest.raises(ConfigError, match=r"desk.key' had no secret key, expected one"):
        load_pair(str(ring.path("desk")))
    for me, server, missing in (("absent", "exchange", "secret"), ("stranger", "absent", "public")):
        with pytest.raises(ConfigError, match=rf"^feed 'quotes': {missing} key file '.*absent.key.*' was not found"):
            keys_of_line(ring.feed(FEED, me, server), 0, ENDPOINT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
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


# Allowed keys


def test_a_key_is_allowed_while_its_file_exists(ring: Keyring, allowed: Path) -> None:
    keys, stranger = AllowedKeys(str(allowed)), key_of(ring, "stranger")
    assert not keys.has(stranger)
    ring.allow("exchange", "stranger")
    assert keys.has(stranger)
    (allowed / "stranger.key").unlink()
    assert not keys.has(stranger)
    path = allowed / "desk.key"
    before = path.stat()
    path.write_text(path.read_text().replace(ring.public["desk"], ring.public["stranger"]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size and time
    assert keys.has(stranger)
    assert not keys.has(key_of(ring, "desk"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gone", "old.key' was not found"),
        ("x" * 300, "old.key' cannot be read: File name too long"),
        ("malformed", "old.key' had no public key"),
    ],
    ids=["dangling", "too long", "malformed"],
)
def test_a_bad_file_added_later_is_logged_once_and_does_not_affect_other_keys(
    ring: Keyring, allowed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str, message: str
) -> None:
    (tmp_path / "malformed").write_text("nothing")
    keys = AllowedKeys(str(allowed))
    (allowed / "old.key").symlink_to(tmp_path / target)
    for _ in range(3):
        assert keys.has(key_of(ring, "desk"))
        assert not keys.has(b"")
    assert caplog.text.count(message) == 1
    with pytest.raises(ConfigError, match=message):
        AllowedKeys(str(allowed))


def test_a_missing_or_empty_directory_allows_no_peer_and_is_reported(
    ring: Keyring, allowed: Path, context: zmq.Context[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = AllowedKeys(str(allowed))
    allowed.rename(tmp_path / "away")
    for _ in range(3):
        assert not keys.has(key_of(ring, "desk"))
    assert caplog.text.count("cannot be read, so no peer may connect") == 1
    with pytest.raises(ConfigError, match=r"allowed_keys was '.*allowed-by-exchange', expected a directory"):
        open_gate(context, ring.feed(FEED, "exchange"), [ENDPOINT], "a publisher")
    (tmp_path / "away").rename(allowed)
    assert keys.has(key_of(ring, "desk"))
    AllowedKeys(str(tmp_path / "allowed-by-desk"))
    assert "has no *.key file: no peer may connect" in caplog.text


# The gate


def test_a_rejected_key_is_logged_once_an_hour_per_address_in_bounded_number(
    ring: Keyring, context: zmq.Context[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_log, "MOST_SUBJECTS", 3)
    security = ring.feed(FEED, "exchange").security
    assert security is not None
    at = Gate(context, security, "quotes slice 0")

    def answer(key: bytes, address: bytes = b"10.0.0.9") -> list[bytes]:
        return at._answer([b"1.0", b"7", b"blackbox", address, b"", b"CURVE", key])

    assert answer(zmq.utils.z85.decode(ring.public["desk"]))[:3] == [b"1.0", b"7", b"200"]
    assert caplog.messages == []
    for address in (b"10.0.0.8", b"10.0.0.8", b"10.0.0.9"):
        assert answer(zmq.utils.z85.decode(ring.public["stranger"]), address)[2] == b"400"
    for number in range(5):
        assert answer(bytes([number] * 32))[2] == b"400"
    assert at.refused == 8
    assert caplog.messages[:2] == [
        f"quotes slice 0: refused key {ring.public['stranger']} at 10.0.0.{host}: not among allowed_keys"
        for host in (8, 9)
    ]
    assert len(caplog.messages) == 4  # those of the first three keys and addresses, and one of all others
    at.close()


def test_no_peer_can_connect_after_the_gate_is_closed(ring: Keyring, context: zmq.Context[Any]) -> None:
    at = open_gate(context, ring.feed(FEED, "exchange"), [ENDPOINT], "quotes slice 0")
    assert at is not None
    with context.socket(zmq.PUSH) as push, zmq.Context() as other, other.socket(zmq.PULL) as pull:
        push.linger = 0
        at.secure(push, ENDPOINT)
        push.bind(ENDPOINT)
        at.close()
        curve.use_keys(pull, keys_of_line(ring.feed(FEED, "desk", "exchange"), 0, ENDPOINT))
        place = "inproc://news"
        pull.monitor(place, zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        with other.socket(zmq.PAIR) as news:
            news.connect(place)
            pull.connect(ENDPOINT)
            # libzmq closes the connection, or waits for an answer if the gate was open a moment ago.
            events = [news.recv_multipart()[0][:2]] if news.poll(2_000) else []
        pull.monitor(None, 0)
    assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in [int.from_bytes(event, "little") for event in events]


def test_only_tcp_is_encrypted_and_not_next_to_inproc(ring: Keyring, context: zmq.Context[Any]) -> None:
    feed = ring.feed(FEED, "nobody", "nobody")
    assert open_gate(context, feed, ["ipc:///tmp/x", "inproc://x"], "quotes") is None
    assert keys_of_line(feed, 0, "ipc:///tmp/x") is None
    with pytest.raises(ConfigError, match="inproc was combined with tcp://.* and security, expected tcp or ipc"):
        open_gate(zmq.Context.instance(), ring.feed(FEED, "exchange"), [ENDPOINT], "a relay")  # the context of inproc


def test_failed_handshakes_are_explained(ring: Keyring) -> None:
    keys = keys_of_line(ring.feed(FEED, "desk", "exchange"), 0, ENDPOINT)
    assert isinstance(keys, ClientKeys)
    assert refusal_of([], None) == refusal_of([], keys) == refusal_of([Failure.LEFT], None) == ""
    assert refusal_of([Failure.MECHANISM], None) == "it requires CURVE, and this feed file has no [security]"
    assert f"refused our key {ring.public['desk']}" in refusal_of([Failure.LEFT, Failure.REFUSED], keys)
    assert "it does not speak CURVE" in refusal_of([Failure.MECHANISM], keys)
    assert f"expected the key {ring.public['exchange']} (server_keys)" in refusal_of([Failure.LEFT], keys)


def test_a_missing_or_slow_curve_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(zmq, "has", lambda capability: False)
        with pytest.raises(ConfigError, match="this libzmq has no CURVE"):
            curve.check_curve()
    with monkeypatch.context() as patch:
        patch.setattr(curve, "is_fast", lambda: False)
        curve._warn_of_slow.cache_clear()
        for _ in range(2):
            curve.check_curve()
    assert len(caplog.messages) == 1
    assert "the slow kind (without libsodium)" in caplog.text
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # libsodium is hidden
    for seconds, fast in ((30e-6, True), (1e-3, False)):
        monkeypatch.setattr(curve, "_seconds_of_key", lambda secret, seconds=seconds: seconds)
        curve.is_fast.cache_clear()
        assert curve.is_fast() is fast
    curve.is_fast.cache_clear()
