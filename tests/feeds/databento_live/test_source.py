"""Databento live: against a local gateway that interrupts sessions, replays, and rejects."""

from __future__ import annotations

import struct
from functools import partial

import numpy
import pytest
from blackbox_feeds.dbn.live import session
from blackbox_feeds.dbn.live.resumption import MARGIN_NS, Resumption
from blackbox_feeds.dbn.live.source import KEY_VARIABLE, DbnLive
from blackbox_feeds.live.retries import Retries
from hypothesis import given
from hypothesis import strategies as st

from blackbox.errors import ConfigError, SourceError
from tests.feeds.databento_live.gateway import KEY, Gateway, Peer, Session, record, trade, ts_of
from tests.feeds.reader import Reader
from tests.feeds.test_dbn import START, metadata_of

TRADES = [trade(number) for number in range(100)]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(session, "Retries", partial(Retries, 0.01))  # short delays


class Received(Reader):
    """Trades of a source."""

    def __init__(self, port: int, more: str = "") -> None:
        super().__init__(DbnLive(f"GLBX.MDP3?schema=trades&symbols=ESH4&gateway=127.0.0.1:{port}{more}"))

    @property
    def trades(self) -> list[bytes]:
        return [payload for topic, _, payload in self.messages if topic == b"ESH4.trades"]


def sends(*contents: bytes, stays: bool = False) -> Session:
    """Return a session that sends its beginning and these records, and then ends or stays."""

    def run(peer: Peer) -> None:
        peer.begin()
        peer.send(*contents)
        if stays:
            peer.wait_for_close()

    return run


def replays(count: int | None = None) -> Session:
    """Return a session that sends `count` trades from the requested start on, or all of them."""

    def run(peer: Peer) -> None:
        trades = [each for each in TRADES if ts_of(each) >= (peer.start or 0)]
        sends(*trades[:count], stays=count is None)(peer)

    return run


def test_an_interrupted_session_continues_without_a_loss_or_a_repetition() -> None:
    gateway = Gateway(sends(*TRADES[:47]), replays(20), replays())
    with gateway, Received(gateway.port) as received:
        received.wait(lambda: len(received.trades) >= 100)
        now = received.source.statistics()
    assert received.trades == TRADES
    assert received.topics[0] == b"#system.metadata"
    assert set(received.topics) == {b"#system.metadata", b"ESH4.symbol-mapping", b"ESH4.trades"}
    assert received.gaps == []
    assert (now.reconnects, now.duplicates) == (2, 20 + 47)
    first, *later = (peer.requests for peer in gateway.peers)
    assert (first[0]["schema"], first[0]["stype_in"], first[0]["symbols"]) == ("trades", "raw_symbol", "ESH4")
    assert "start" not in first[0]
    assert all(int(asked[0]["start"]) <= ts_of(TRADES[46]) for asked in later)


def test_the_start_is_asked_for_again_until_a_record_came_and_never_an_earlier_one() -> None:
    def ends_after_the_metadata(peer: Peer) -> None:
        peer.send(metadata_of(schema=None, start=START))

    start = ts_of(TRADES[50])
    gateway = Gateway(ends_after_the_metadata, Peer.begin, sends(*TRADES[50:60]), sends(*TRADES[50:], stays=True))
    with gateway, Received(gateway.port, f"&start={start}") as received:
        received.wait(lambda: len(received.trades) >= 50)
    assert [peer.start for peer in gateway.peers] == [start] * 4
    assert (received.trades, received.gaps) == (TRADES[50:], [])


def test_a_replay_that_the_gateway_rejects_is_a_gap() -> None:
    rejects = sends(record("error", ts_event=START, err=b"start is too old"))
    gateway = Gateway(sends(*TRADES[:10]), rejects, sends(*TRADES[60:70], stays=True))
    with gateway, Received(gateway.port) as received:
        received.wait(lambda: len(received.trades) == 20)
    assert [peer.start is None for peer in gateway.peers] == [True, False, True]
    assert received.trades == TRADES[:10] + TRADES[60:70]
    ((place, missing),) = received.gaps
    assert (missing, received.topics[:place].count(b"ESH4.trades")) == (1, 10)


def test_a_rejected_login_or_subscription_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Gateway(sends(record("error", ts_event=START, err=b"unknown symbol"))) as gateway:
        source = DbnLive(f"GLBX.MDP3?schema=trades&gateway=127.0.0.1:{gateway.port}")
        with pytest.raises(SourceError, match="rejected the subscription: unknown symbol"):
            list(source.chunks())
        monkeypatch.setenv(KEY_VARIABLE, "db-" + "x" * 29)
        with pytest.raises(SourceError, match="rejected the login: User authentication failed"):
            list(DbnLive(f"GLBX.MDP3?schema=trades&gateway=127.0.0.1:{gateway.port}").chunks())


def test_bytes_that_are_no_records_end_the_session_and_a_new_one_continues() -> None:
    with (
        Gateway(sends(*TRADES[:5], b"\x00" * 64, stays=True), sends(*TRADES[:8], stays=True)) as gateway,
        Received(gateway.port) as received,
    ):
        received.wait(lambda: len(received.trades) >= 8)
    assert received.trades == TRADES[:8]


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("GLBX.MDP3", "expected databento://"),
        ("?schema=mbo", "expected databento://"),
        ("GLBX.MDP3?schema=mbo&schema=mbo", "expected databento://"),
        ("GLBX.MDP3?schema=mbo&key=db-1", "expected one of databento://: schema, symbols"),
        ("GLBX.MDP3?schema=levels", "levels"),
        ("GLBX.MDP3?schema=mbo&stype_in=name", "name"),
        ("GLBX.MDP3?schema=trades&snapshot=1", "for the schema mbo without start"),
        ("GLBX.MDP3?schema=mbo&snapshot=2", "expected 0 or 1"),
        ("GLBX.MDP3?schema=mbo&start=yesterday", "option was start=yesterday"),
        ("GLBX.MDP3?schema=mbo&gateway=here", "expected HOST:PORT"),
        ("GLBX.MDP3?schema=mbo&gateway=a..b:1", "expected HOST:PORT"),
        ("GLBX.MDP3?schema=mbo&gateway=here:0", "expected a port from 1 to 65535"),
        ("GLBX.MDP3?schema=mbo&symbols=", "expected symbols joined by commas"),
    ],
)
def test_a_wrong_url_is_an_error_that_says_what_is_expected(url: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        DbnLive(url)


def test_the_key_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DbnLive.from_spec("//GLBX.MDP3?schema=mbo")._client._request.host == "glbx-mdp3.lsg.databento.com"
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(ConfigError, match="set the environment variable DATABENTO_API_KEY"):
        DbnLive("GLBX.MDP3?schema=mbo")


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=80), st.data())
def test_any_replay_is_taken_once(made: list[tuple[int, int]], data: st.DataObject) -> None:
    """Records out of order by up to the margin, with equal ones among them, interrupted twice."""
    stream = [(START + late * MARGIN_NS // 20 + place, kind) for place, (late, kind) in enumerate(made)]
    stream = [(ts - ts % 3, kind) for ts, kind in stream]
    contents = [record("trades", ts_event=ts, sequence=kind) for ts, kind in stream]
    resumption, taken = Resumption(), list[bytes]()

    def receive(records: list[bytes]) -> None:
        joined = numpy.frombuffer(b"".join(records), numpy.uint8)
        lengths = numpy.array([len(each) for each in records], numpy.int32)
        is_new = resumption.new_rows(joined, numpy.cumsum(lengths, dtype=numpy.int64) - lengths, lengths)
        taken.extend(each for row, each in enumerate(records) if is_new is None or is_new[row])

    reached = 0
    for _ in range(2):
        reached = data.draw(st.integers(reached, len(contents)))
        start = resumption.start_ns(None) or 0
        resumption.begin(start)
        if replayed := [each for each in contents[:reached] if struct.unpack_from("<Q", each, 8)[0] >= start]:
            receive(replayed)
    assert taken == contents[:reached]
