"""The synthetic session is exact, repeatable, and valid for an independent reader."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
from blackbox_feeds.io.dates import midnight_ns
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic

from blackbox.errors import ConfigError, SourceError
from tests.feeds.build import ITCH_LENGTHS, messages_of
from tests.feeds.test_itch50_book import Slow, apply_slowly, top

SECOND = 10**9
OPEN, CLOSE = 34_200, 57_600


def session_bytes(source: Synthetic, messages: int = 131_072) -> bytes:
    return b"".join(window.tobytes() for window in source.windows(messages))


def payloads_of(data: bytes) -> list[bytes]:
    payloads, position = [], 0
    while position < len(data):
        (length,) = struct.unpack_from(">H", data, position)
        payloads.append(data[position + 2 : position + 2 + length])
        position += 2 + length
    return payloads


def check_market(payloads: list[bytes]) -> tuple[Counter[str], list[bytes]]:
    """Check a session message by message, in plain Python; return its messages by type, and its symbols."""
    kinds: Counter[str] = Counter()
    events = b""
    names: dict[int, bytes] = {}
    books: dict[int, Slow] = {}
    references: set[int] = set()
    matches: set[int] = set()
    time = 0
    for payload in payloads:
        kind = chr(payload[0])
        assert len(payload) == ITCH_LENGTHS[kind]
        locate, _, high, low = struct.unpack_from(">HHHI", payload, 1)
        assert high << 32 | low >= time
        time = high << 32 | low
        kinds[kind] += 1
        if kind == "S":
            events += payload[11:]
            continue
        if kind == "R":
            assert (events, locate in names) == (b"O", False)
            names[locate] = payload[11:19]
            continue
        if kind == "H":
            assert payload[11:20] == names[locate] + b"T"
            continue
        assert events == b"OSQ"
        orders = books.setdefault(locate, {})
        if kind in "AFP":
            assert payload[24:32] == names[locate]
            assert kind != "P" or payload[11:20] == bytes(8) + b"B"
        if kind in "ECXDU":
            resting = orders[int.from_bytes(payload[11:19], "big")]
            if kind == "E":
                assert resting[1] == top(orders, resting[0])[0]
            if kind == "C":
                assert payload[31:32] == b"Y"
                assert abs(int.from_bytes(payload[32:36], "big") - resting[1]) == 100
        if kind in "ECP":
            match = int.from_bytes(payload[36:44] if kind == "P" else payload[23:31], "big")
            assert match not in matches
            matches.add(match)
        if kind in "AFU":
            reference = int.from_bytes(payload[11:19] if kind in "AF" else payload[19:27], "big")
            assert reference not in references
            references.add(reference)
        apply_slowly(orders, payload)
        if kind in "AFU":
            side, price, shares = orders[reference]
            assert (side in b"BS", price >= 10_000, price % 100, shares > 0) == (True, True, 0, True)
            bid, ask = top(orders, b"B"), top(orders, b"S")
            assert not bid or not ask or bid < ask
    assert events == b"OSQMEC"
    return kinds, [names[locate] for locate in sorted(names)]


@pytest.mark.parametrize("symbols", [40, 5_000])
def test_an_independent_reader_finds_nothing_wrong(symbols: int) -> None:
    source = Synthetic(20_000, symbols=symbols)
    kinds, names = check_market(payloads_of(session_bytes(source)))
    assert set(kinds) == set("SRHAFECXDUP")
    assert kinds["H"] == kinds["R"] == len(names) == source.symbols == min(symbols, 999)
    assert names == sorted(set(names))
    assert all(name.decode().rstrip().isalpha() for name in names)
    assert b"AAPL    " in names


@pytest.mark.parametrize("messages", [*range(12), 25, 26, 27, 100, 1_000])
def test_a_session_has_exactly_the_requested_messages(messages: int) -> None:
    source = Synthetic(messages)
    found = messages_of(source)
    assert len(found) == source.total == messages
    assert source.truncated is None
    if messages >= 9:
        check_market([payload for _, _, payload in found])
    elif messages:
        assert found[0][0] == b"#system.S"


def test_the_same_seed_gives_the_same_bytes_for_any_window() -> None:
    whole = session_bytes(Synthetic(9_000))
    assert session_bytes(Synthetic(9_000), messages=777) == whole
    assert session_bytes(Synthetic(9_000), messages=9_000) == whole
    assert session_bytes(Synthetic(9_000, seed=8)) != whole
    assert session_bytes(Synthetic(9_000, date="2026-01-06", topic="{type}")) == whole


def test_the_bytes_never_change() -> None:
    digest = hashlib.sha256(session_bytes(Synthetic(100_000))).hexdigest()
    assert digest == "14220e1c31bdd81a827f14410806242f547ceacfae42049c7d5e2a9c0180bbca"


def test_a_written_session_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "20260701.itch"
    source = Synthetic(2_000, date="2026-07-01")
    assert source.write(path) == path.stat().st_size
    assert path.read_bytes() == session_bytes(source)
    reader = Itch50(path)
    assert messages_of(reader) == messages_of(source)
    assert reader.truncated is None
    with pytest.raises(SourceError, match="cannot be written"):
        source.write(tmp_path)


def test_the_rate_is_u_shaped_with_bursts_of_ten_times_the_mean() -> None:
    source = Synthetic(1_000_000, symbols=500)
    per_second = numpy.zeros(86_400, numpy.int64)
    for chunk in source.chunks():
        seconds = (chunk.ts_event - midnight_ns(source.date)) // SECOND
        per_second += numpy.bincount(seconds, minlength=86_400)
    body = per_second[OPEN:CLOSE]
    mean = body.mean()
    assert body.sum() == 1_000_000 - 2 * 500 - 5
    assert body.max() == pytest.approx(10 * mean, rel=0.02)
    bursts = body > 5 * mean
    assert 40 < bursts.sum() < 200
    usual = numpy.where(bursts, 0, body)
    first, noon, last = usual[:1_800].mean(), usual[10_800:12_600].mean(), usual[-1_800:].mean()
    assert first > 2.5 * noon
    assert last > 2.5 * noon


def test_activity_is_zipf_like() -> None:
    source = Synthetic(500_000, symbols=1_000, topic="{symbol}")
    counts: Counter[bytes] = Counter()
    for chunk in source.chunks():
        per_topic = numpy.bincount(chunk.topic_index, minlength=len(chunk.topics))
        counts.update(dict(zip(chunk.topics, per_topic.tolist(), strict=True)))
    del counts[b"#system"]
    weights = 1 / (numpy.arange(1_000) + 3.0)
    expected = 498_000 * weights / weights.sum()
    found = numpy.array(sorted(counts.values(), reverse=True)) - 2
    assert found[:20] == pytest.approx(expected[:20], rel=0.05)
    assert found[100:500].sum() == pytest.approx(expected[100:500].sum(), rel=0.02)
    assert counts.most_common(1)[0][0] == b"NVDA"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": -1}, "messages was -1, expected 0 to"),
        ({"messages": 1, "symbols": "abc"}, "symbols was 'abc', expected 1 to 65535"),
        ({"messages": 1, "symbols": 65_536}, "symbols was 65536, expected 1 to 65535"),
        ({"messages": 1, "seed": -1}, "seed was -1, expected 0 to"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Synthetic(**options)


def test_from_spec() -> None:
    source = Synthetic.from_spec("1_000_000", seed=3)
    assert (source.messages, source.seed) == (1_000_000, 3)
    assert repr(source) == "<Synthetic 1,000,000 messages, 5,000 symbols, seed 3>"
    with pytest.raises(ConfigError, match="number of messages was 'many', expected one such as"):
        Synthetic.from_spec("many")
    with pytest.raises(ConfigError, match="Synthetic: option was 'speed', expected one of: seed, sym"):
        Synthetic.from_spec("1", speed=3)


@pytest.mark.long
def test_a_session_may_use_all_locates() -> None:
    source = Synthetic(20 * 65_535 + 6, symbols=65_535)
    first = next(source.windows(65_536))
    names = [payload[11:19] for payload in payloads_of(first.tobytes()) if payload[:1] == b"R"]
    assert len(names) == len(set(names)) == source.symbols == 65_535
