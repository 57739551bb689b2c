"""Status and health of running processes by HTTP."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest

from blackbox import ConfigError, Feed, Hub, HubClient, Publisher, Recorder, Relay, Replay, Subscriber
from blackbox.archive.recording import Recording
from blackbox.archive.serve.server import archive_of
from blackbox.errors import EndpointError
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.monitor.listening import NOT_OWN, address_of, is_own_host
from blackbox.services.monitor.serve import http_server
from blackbox.services.monitor.serve.http_server import HttpServer
from blackbox.services.monitor.serve.metrics import serve_metrics
from blackbox.services.monitor.serve.observe import STUCK_S, Beats, Observed, observe
from blackbox.services.monitor.serve.status import ProcessStatus, decode_statuses
from blackbox.services.monitor.serve.watched import FRESH_S, Watched
from blackbox.services.relay.plain_clients import PlainRelay
from blackbox.testing import wait_until


def get(url: str | Request) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=200) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def statuses(server: HttpServer) -> tuple[ProcessStatus, ...]:
    return decode_statuses(get(f"{server.url}/status")[1].encode())


def test_publisher_and_subscriber_from_their_start_to_their_end() -> None:
    feed = Feed.local("watched")
    publisher, subscriber = Publisher(feed), Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    with serve_metrics([publisher, subscriber], "127.0.0.1:0") as server:
        assert get(f"{server.url}/healthz") == (200, "healthy\n")
        code, reasons = get(f"{server.url}/readyz")
        assert (code, reasons.splitlines()) == (
            503,
            [
                "publisher: The publisher is new, and not yet running.",
                "subscriber: The subscriber is new, and not yet running.",
            ],
        )
        with publisher, subscriber:
            wait_until(lambda: get(f"{server.url}/readyz") == (200, "ready\n"), what="readiness")
            for _ in range(7):
                publisher.publish(b"AAPL.trade", b"1")
            wait_until(lambda: subscriber.statistics().delivery.delivered == 7, what="messages")
            wait_until(lambda: statuses(server)[1].statistics["delivery"]["delivered"] == 7, what="the next look")
            first, second = statuses(server)
            assert (first.role, first.feed, first.ready, first.healthy) == ("publisher", "watched", True, True)
            assert first.statistics["messages"] == 7
            assert sum(each.sequence for each in first.slices) == 7
            assert (second.role, second.reasons) == ("subscriber", ())
            assert [each.epoch for each in second.slices] == [publisher.epoch] * 2
            publisher.close()
            wait_until(
                lambda: "subscriber: Slice 0: its publisher has ended." in get(f"{server.url}/readyz")[1],
                what="the end",
            )
        assert "publisher: The publisher has ended." in get(f"{server.url}/readyz")[1]
        assert get(f"{server.url}/healthz")[0] == 200
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{server.url}/status", timeout=200)


def test_a_subscriber_says_which_publisher_it_waits_for() -> None:
    feed = Feed.local("alone", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    watched = Watched(subscriber)
    with pytest.raises(TimeoutError):
        subscriber.start(timeout=0)
    assert not watched.look().is_ready
    with Publisher(feed), Subscriber(feed) as second:
        second.on(b"")(lambda message: None)
        second.wait_confirmed()
        wait_until(lambda: observe(second, Beats()).waits == (), what="readiness")


def test_recorder_archive_relay_and_replay(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(
        Feed.local("site", slices=1), archives=tuple(free_endpoints("tcp", "archive", 1, 1)[0])
    )
    below = msgspec.structs.replace(Feed.local("site", slices=1), archives=())
    recorder, relay = Recorder(feed, tmp_path, serve=True), Relay(feed, below)
    plain = PlainRelay(feed, free_endpoints("tcp", "plain", 1, 1)[0][0])
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(feed))
        for each in (recorder, relay, plain):
            assert not observe(each, Beats()).has_begun
            stack.enter_context(each)
            beats = Beats()
            wait_until(lambda each=each, beats=beats: observe(each, beats).waits == (), what=f"{each!r}")  # type: ignore[misc]
            assert observe(each, beats).faults == ()
        reader = Subscriber(below)
        reader.on(b"")(lambda message: None)
        stack.enter_context(reader)
        publisher.publish(b"A.t", b"1")
        wait_until(lambda: relay.statistics().messages == 1, what="the relay")
        relayed = observe(relay, Beats())
        assert (relayed.role, relayed.slices[0].epoch) == ("relay", publisher.epoch)
        publisher.close(says_end=False)
        wait_until(lambda: "is not connected to" in "".join(observe(relay, beats).waits), what="the lost connection")
    assert observe(relay, beats).waits == ("The relay has ended.",)
    with archive_of(tmp_path / "site", feed, True) as archive:
        assert observe(archive, Beats())[:2] == ("archive", "site")
    played = Replay([Recording.open(next((tmp_path / "site").glob("20*")))])
    assert observe(played, Beats()).waits == ("The replay is ready.",)


def test_a_disk_that_does_not_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed.local("disk", slices=1)
    with Publisher(feed), Recorder(feed, tmp_path) as recorder:
        keeper = recorder._journals.keeper
        wait_until(lambda: 0 < keeper.silent_s() < STUCK_S, what="the keeper")
        monkeypatch.setattr(keeper, "silent_s", lambda: 45.0)
        monkeypatch.setattr(keeper, "late_sync_s", lambda: 44.0)
        seen = observe(recorder, Beats())
        assert seen.faults == (f"The disk of {recorder.directory} has not answered for 45 s.",)
        assert seen.waits == (f"A sync of {recorder.directory} has been due for 44 s.",)


def test_a_hub_is_ready_once_it_takes_puts(tmp_path: Path) -> None:
    ends = [each[0] for each in free_endpoints("tcp", "hub", 2, 1)]
    feed = msgspec.structs.replace(Feed.local("orders", slices=1), hub=ends[0], archives=(ends[1],))
    hub = Hub(feed, tmp_path)
    assert observe(hub, Beats()).waits == ("The hub is new, and not yet serving.",)
    with hub, HubClient(feed) as client:
        client.put(b"A.t", b"1")
        seen = observe(hub, Beats())
        assert (seen.waits, seen.faults, seen.statistics.stored) == ((), (), 1)
        assert [each.sequence for each in seen.slices] == [1]


def test_what_makes_no_progress_is_not_healthy() -> None:
    feed = Feed.local("stuck", slices=1)
    with Publisher(feed) as publisher:
        sent = publisher._slices[0].sender.sent
        assert observe(publisher, Beats()).faults == ()
        heartbeat_at = sent.heartbeat_at
        sent.heartbeat_at = heartbeat_at - round((STUCK_S + 10) * 1e9)
        assert all("no progress: a heartbeat is" in fault for fault in observe(publisher, Beats()).faults)
    beats = Beats()
    assert [beats.still_s("reads", value, now) for value, now in ((1, 0.0), (1, 9.0), (2, 10.0), (2, 41.0))] == [
        0.0,
        9.0,
        0.0,
        31.0,
    ]


def test_many_readers_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    thing = Publisher(Feed.local("many", slices=1))

    def statistics() -> dict[str, int]:
        looks.append(1)
        return {}

    monkeypatch.setattr(thing, "statistics", statistics)
    watched = Watched(thing)
    monkeypatch.setattr("time.monotonic", lambda: 1_000.0)
    looks.clear()
    for _ in range(100):
        watched.look()
    assert len(looks) == 1
    monkeypatch.setattr("time.monotonic", lambda: 1_000.0 + FRESH_S)
    watched.look()
    assert len(looks) == 2


def test_a_state_has_the_time_of_its_change_if_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, faults, now = list[str](), ["It has failed."], [1_000.0]
    monkeypatch.setattr(
        "blackbox.services.monitor.serve.watched.observe",
        lambda *_: Observed("bridge", "f", {}, tuple(waits), tuple(faults)),
    )
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    began_ns, watched = time.time_ns(), Watched(None)

    def look(after_s: float = 1.0) -> ProcessStatus:
        now[0] += after_s
        return watched.look().statuses[0]

    failed = look()
    assert (failed.healthy, began_ns <= failed.since_ns <= failed.now_ns) == (False, True)
    waits.append("redis://x is unreachable.")
    assert look().since_ns == failed.since_ns, "only its reasons have changed"
    faults.clear()
    waiting = look()
    assert (waiting.healthy, waiting.ready) == (True, False)
    assert failed.now_ns <= waiting.since_ns <= waiting.now_ns
    waits.clear()
    assert (look(after_s=100.0).ready, look().since_ns) == (True, 0)


def test_peers_of_a_publisher_are_the_addresses_of_its_receivers() -> None:
    feed = Feed.local("joined", slices=1)
    below = Feed.local("joined", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda message: None)
    with Publisher(feed) as publisher, Relay(feed, below) as relay, subscriber:

        def addresses() -> list[set[str]]:
            receivers = [observe(each, Beats()).slices for each in (subscriber, relay)]
            return [{address for each in slices for address in each.addresses} for slices in receivers]

        wait_until(lambda: all(addresses()), what="connections")
        wait_until(
            lambda: set.union(*addresses()) <= {each.address for each in publisher.statistics().peers}, what="peers"
        )
        assert addresses()[0].isdisjoint(addresses()[1])


def test_addresses() -> None:
    assert [address_of(text, "127.0.0.1") for text in ("9100", "10.0.0.1:80", "[::1]:9100", "host:0")] == [
        ("127.0.0.1", 9100),
        ("10.0.0.1", 80),
        ("::1", 9100),
        ("host", 0),
    ]
    for text in ("", "host", "host:", "host:a", "::1", "::1:80", "host:65536", "host:-1", "host:" + "1" * 5_000):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            address_of(text, "127.0.0.1")
    for text in ("9500", ":80"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            address_of(text)


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_host_that_cannot_be_a_name_is_one_error(host: str) -> None:
    thing = Publisher(Feed.local("nowhere", slices=1))
    with (
        pytest.raises(EndpointError, match=f"metrics address {host}: it cannot be the name of a host"),
        serve_metrics(thing, f"{host}:0"),
    ):
        pass


def test_a_page_of_another_site_cannot_read_the_status() -> None:
    """A site may point its own name to this address (DNS rebinding); tools use addresses and names of hosts."""
    with serve_metrics(Publisher(Feed.local("own", slices=1)), "127.0.0.1:0") as server:
        for path in ("/status", "/metrics", "/healthz", "/readyz"):
            foreign = Request(f"{server.url}{path}", headers={"Host": "evil.example:80"})
            assert get(foreign) == (421, NOT_OWN)
        for host in ("localhost", "recorder:9101", f"127.0.0.1:{server.port}", "desk.local", socket.getfqdn()):
            assert get(Request(f"{server.url}/healthz", headers={"Host": host}))[0] == 200
    assert [is_own_host(each, "desk.example.com") for each in ("desk.example.com:1", "", "[a", "evil.example.")] == [
        *(True, True, False, False),
    ]


def test_a_thing_that_cannot_be_watched_is_one_error() -> None:
    with pytest.raises(TypeError, match="a Feed was given, expected one of Publisher"):
        Watched(Feed.local("watched"))


def test_connections_and_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", 3)
    with serve_metrics(Publisher(Feed.local("bounded", slices=1)), "127.0.0.1:0") as server, ExitStack() as stack:
        where = "127.0.0.1", server.port
        idle = [stack.enter_context(socket.create_connection(where, 60)) for _ in range(3)]
        refused = stack.enter_context(socket.create_connection(where, 60))
        with pytest.raises(ConnectionResetError):
            assert refused.recv(1) == b""
            raise ConnectionResetError
        idle.pop().close()
        wait_until(lambda: is_answered(server), what="a free connection")
        flood = stack.enter_context(socket.create_connection(where, 60))
        with suppress(ConnectionError):  # it is closed before everything was sent
            flood.sendall(b"GET /status HTTP/1.1\r\nX: " + bytes([0x78]) * (1 << 20))
            answer = flood.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 400 ")
        flood.close()
        wait_until(lambda: is_answered(server), what="a free connection")
        assert get(f"{server.url}/other")[0] == 404


def is_answered(server: HttpServer) -> bool:
    try:
        return get(f"{server.url}/healthz")[0] == 200
    except OSError:
        return False


def test_the_snippet_of_the_page_serves_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "watching.md"
    code, *_ = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    scraped = "    from urllib.request import urlopen\n    text = urlopen(server.url + '/metrics').read().decode()\n"
    names: dict[str, str] = {}
    exec(compile(code + scraped, "watching.md", "exec"), names)
    assert "blackbox_publisher_messages_total" in names["text"]
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")
