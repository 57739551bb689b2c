"""Several archives read as one, invalid requests, and readers that misbehave."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import msgspec
import numpy
import pytest
import zmq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.serve import block_reader, client
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Connection, ConnectionPool, Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import ANSWERS, ENCODER, AskAbout, AskBlocks, Noted, Piece, Refusal
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.batch.block_handler import BLOCK
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, EndpointError
from blackbox.native.system.awake_clock import awake_s
from blackbox.receive.slices.catching_up import Gone, Passed, Told, Wanted
from blackbox.testing import wait_until
from tests.archive.archives import all_numbers, archived_feed, free_endpoint, recorded
from tests.archive.written_journals import Journal, block
from tests.examples import examples
from tests.journals import feed_of

SECOND = 10**9

ALL = Wanted([b""])


def with_archives(key_bytes: int = 0) -> Feed:
    """Return a feed with the endpoints of two archives."""
    return feed_of(key_bytes=key_bytes, archives=(free_endpoint(), free_endpoint()))


class Sent(NamedTuple):
    """A block, and True for each archive that has it."""

    key: bytes
    messages: int
    archived: tuple[bool, bool]
    begins_run: bool
    heard: tuple[bool, bool] = (True, True)
    """True for each archive that knows the end of the epoch before, if one begins. Others may lack that epoch."""


BOTH = Sent(b"A", 3, (True, True), begins_run=False)
SECOND_ONLY = BOTH._replace(archived=(False, True))
NEITHER = BOTH._replace(archived=(False, False))
SENT = st.lists(
    st.builds(
        Sent,
        st.sampled_from((b"A", b"B")),
        st.integers(1, 3),
        st.tuples(st.booleans(), st.booleans()),
        st.sampled_from((False,) * 5 + (True,)),
        st.sampled_from(((True, True), (True, False), (False, True))),
    ),
    min_size=1,
    max_size=15,
)


def put(journal: Journal, key: bytes, key_bytes: int, count: int, time: int, **fields: Any) -> None:
    """Record a block as its publisher sends it. `fields`: header fields."""
    payloads, topic = numpy.zeros((count, 1), numpy.uint8), key + b".x"
    head = HeaderFields(key_rule=key_bytes, ts_out=time * SECOND, **fields)
    sent = Block.encode([topic], [0] * count, PayloadColumns(payloads), head, key=topic[:key_bytes])
    journal._give(BLOCK, sent.header, sent.body.tobytes(), time * SECOND)


def write(place: Path, number: int, sent: list[Sent], key_bytes: int) -> None:
    """Write the recording of one archive, with the end of each epoch and a last epoch without messages."""
    journal, epoch, following = Journal(place / "2026-01-01", key_bytes), 1, 0
    ends: dict[bytes, tuple[int, int]] = {}
    for time, each in enumerate([*sent, Sent(b"A", 0, (False, False), True)], 1):
        if each.begins_run:
            if each.heard[number]:
                journal.hear(ends, epoch, time * SECOND, sequence=following)
            epoch, following, ends = epoch + 1, 0, {}
        key = each.key[:key_bytes]
        previous, count = ends.get(key, (0, 0))
        if each.archived[number]:
            numbers = {"sequence": following, "previous": previous, "key_sequence": count}
            put(journal, each.key, key_bytes, each.messages, time, epoch=epoch, **numbers)
        following += each.messages
        if each.messages:
            ends[key] = following, count + each.messages
    journal.hear(ends, epoch, 1_000 * SECOND)
    journal.writer.close()


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(SENT, st.sampled_from([0, 1]), st.sampled_from([b"", b"A", b"B"]), st.integers(0, 4))
@example([BOTH, SECOND_ONLY._replace(begins_run=True), BOTH._replace(begins_run=True, heard=(False, True))], 1, b"", 0)
@example([BOTH, SECOND_ONLY, NEITHER, BOTH._replace(begins_run=True, heard=(True, False))], 1, b"", 0)
def test_two_archives_are_read_as_one(sent: list[Sent], key_bytes: int, prefix: bytes, start: int) -> None:
    feed = with_archives(key_bytes)
    wanted = prefix[:key_bytes]
    expected: list[tuple[str, int, int]] = []
    epoch, following, runs = 1, 0, [1]
    for each in sent:
        if each.begins_run:
            epoch, following = epoch + 1, 0
            runs.append(epoch)
        numbers = range(following, following + each.messages)
        following += each.messages
        what = "came" if any(each.archived) else "gone"
        if what == "gone" or each.key[:key_bytes].startswith(wanted):
            expected += [(what, epoch, number) for number in numbers if epoch > 1 or number >= start]
    with TemporaryDirectory() as directory, ExitStack() as stack:
        for number, endpoint in enumerate(feed.archives):
            place = Path(directory) / str(number) / feed.name
            write(place, number, sent, key_bytes)
            stack.enter_context(ArchiveServer(place, (endpoint,)))
        found, told, at, until = list[tuple[str, int, int]](), list[int](), Position(1, start), awake_s() + 200
        client = stack.enter_context(ArchiveClient(feed, timeout=200).kept())
        for part in client.read(0, at, Wanted([wanted]), 5.0, lambda: awake_s() > until, patience_s=10.0):
            if isinstance(part, Block):
                found += [("came", part.epoch, n) for n in part.sequences.tolist() if (part.epoch, n) >= (1, start)]
                at = max(at, Position(part.epoch, part.number_of(-1) + 1))
            elif isinstance(part, Gone):
                found += [("gone", at.epoch, n) for n in range(at.sequence, part.position.sequence)]
                at = part.position
            elif isinstance(part, Told):
                told.append(part.epoch)
            else:
                assert part.position >= at
                at = part.position
                if part.is_all:
                    break
    assert [fact for fact in found if fact[0] == "came"] == [fact for fact in expected if fact[0] == "came"]
    gone = {fact for fact in found if fact[0] == "gone"}
    assert gone == {fact for fact in expected if fact[0] == "gone"}
    assert len(found) == len(set(found))
    assert told == [epoch for epoch in runs for _ in range(2)]
    assert at == (runs[-1] + 1, 0)


ARCHIVED = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8)


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(ARCHIVED, st.integers(0, 18))
@example([(True, True), (False, True), (True, False)], 1)
@example([(True, False), (False, True)], 9)
def test_a_time_starts_at_the_first_block_of_any_archive(archived: list[tuple[bool, bool]], halves: int) -> None:
    """Block n is received at second n. An archive has nothing after its last block."""
    feed = with_archives()
    found = [n for n, has in enumerate(archived) if any(has)]
    expected = next((n for n in found if 2 * n >= halves), found[-1] + 1 if found else 0)
    with TemporaryDirectory() as directory, ExitStack() as stack:
        for number, endpoint in enumerate(feed.archives):
            place = Path(directory) / str(number) / feed.name
            with Journal(place / "2026-01-01") as journal:
                for n in (n for n, has in enumerate(archived) if has[number]):
                    put(journal, b"A", 0, 1, n, epoch=7, sequence=n)
            stack.enter_context(ArchiveServer(place, (endpoint,)))
        until = awake_s() + 200
        reading = ArchiveClient(feed, timeout=200).read(
            0, halves * SECOND // 2, ALL, 1.0, lambda: awake_s() > until, patience_s=60.0
        )
        assert next(reading) == Passed(Position(7 if found else 0, expected))
        cast(Generator[object], reading).close()


@contextmanager
def two_recording(tmp_path: Path) -> Iterator[tuple[ArchiveClient, Journal, Journal]]:
    """Yield a client of two archives whose recorders write the yielded journals."""
    feed = with_archives()
    with ExitStack() as stack:
        places = [tmp_path / name / feed.name for name in "ab"]
        first, second = (stack.enter_context(Journal(place / "2026-01-01")) for place in places)
        for place, endpoint in zip(places, feed.archives, strict=True):
            stack.enter_context(ArchiveServer(place, (endpoint,)))
        yield ArchiveClient(feed, timeout=200), first, second


def test_a_gap_of_one_archive_waits_for_another_that_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, pause = [block(2, 3, SECOND, epoch=7)], block_reader._Waits.pause
    monkeypatch.setattr(client, "_GAP_S", 600.0)
    with two_recording(tmp_path) as (reader, first, second):

        def record(waits: Any, retry_s: float) -> None:
            while left:
                second.put(left.pop())
                second.write()
            pause(waits, retry_s)

        monkeypatch.setattr(block_reader._Waits, "pause", record)
        for journal in (first, second):
            journal.put(block(0, 2, SECOND, epoch=7))
            journal.write()
        first.put(block(4, 1, SECOND, epoch=7))
        first.write()
        found = list(reader.blocks(0, start=(7, 0), stop=(7, 5), timeout=1_200))
    assert [each.block.count if isinstance(each, Fetched) else each for each in found] == [2, 3]


def test_waits_for_an_archive_that_records_no_more_are_short_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(block_reader, "awake_s", lambda: now_s[0])
    monkeypatch.setattr(block_reader._Waits, "pause", lambda _, retry_s: now_s.__setitem__(0, now_s[0] + 0.05))
    with two_recording(tmp_path) as (reader, first, second):
        second.put(block(0, 1, SECOND, epoch=7))
        second.write()
        for number in range(40):
            first.put(block(2 * number, 1, SECOND, epoch=7))
        first.write()
        found = list(reader.blocks(0, start=(7, 0), stop=(7, 79)))
    assert sum(isinstance(each, Fetched) for each in found) == 40
    assert now_s[0] < 5


def test_a_start_without_a_silent_archive_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = with_archives()
    with Journal(tmp_path / feed.name / "2026-01-01") as journal:
        for number in range(5):
            put(journal, b"A", 0, 1, number, epoch=7, sequence=number)
    with ArchiveServer(tmp_path / feed.name, feed.archives[1:]):
        reading = ArchiveClient(feed, timeout=0.2).read(0, 3 * SECOND, ALL, 1.0, lambda: False, patience_s=60.0)
        assert next(reading) == Passed(Position(7, 3))
        cast(Generator[object], reading).close()
    warnings = [each.message for each in caplog.records if "starts without" in each.message]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"slice 0 starts without the messages of an archive: {feed.archives[0]} did not")


def test_a_client_does_not_wait_for_an_unreachable_archive() -> None:
    assert not ArchiveClient(with_archives(), timeout=3_600).answers()


def test_an_archive_that_was_unreachable_is_waited_for_while_it_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(endpoint := free_endpoint(), None)
    connection.is_known, connection.is_hasty, connection.timeout = True, True, 60.0
    look = connection._connections.look
    wait_until(lambda: look() == [] and connection._connections.retries > 0)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        wait_until(connection.is_connected)

        def answer_late() -> Any:
            if router.poll(0):
                reader, number, _ = router.recv_multipart()
                router.send_multipart([reader, number, ENCODER.encode(Noted())])
            return look()

        monkeypatch.setattr(connection._connections, "look", answer_late)
        assert connection.ask(AskAbout())[0] == Noted()
        connection.close()


def test_an_archive_whose_answer_is_no_longer_needed_has_not_failed() -> None:
    feed, is_over = with_archives(), iter([False])
    pool = ConnectionPool(feed, 60.0, keeps=False)
    ask = AskBlocks(slice_id=0, start=Position(1, 0))
    assert list(block_reader.BlockReader(pool, ask, lambda: next(is_over, True)).read()) == []
    assert (pool.order, pool.silent) == (feed.archives, {})


@pytest.mark.parametrize(("name", "told"), [(b"tape", "tape"), (b"caf\xe9", r"caf\\udce9")])
def test_an_error_names_the_directory_and_hides_its_location(tmp_path: Path, name: bytes, told: str) -> None:
    feed = archived_feed()
    with (
        ArchiveServer(tmp_path / os.fsdecode(name), feed.archives),
        pytest.raises(ArchiveError, match=f"{told} had no recorded day") as refused,
    ):
        ArchiveClient(feed, timeout=200).about()
    assert str(tmp_path) not in str(refused.value)


def test_invalid_requests_are_rejected_or_dropped(tmp_path: Path) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 100)
    good = ENCODER.encode(AskBlocks(slice_id=0, start=Position(epoch, 0)))
    random = numpy.random.default_rng(7)
    with (
        ArchiveServer(tmp_path / feed.name, feed.archives) as archive,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as reader,
    ):
        reader.linger = 0
        reader.connect(feed.archives[0])
        for number in range(200):
            text = bytearray(good if number % 2 else random.bytes(int(random.integers(0, 40))))
            for place in random.integers(0, max(1, len(text)), 2):
                text[place : place + 1] = random.bytes(1)
            reader.send_multipart([b"%d" % number, bytes(text)])
            assert reader.poll(60_000), bytes(text)
            answer, *_ = frames = reader.recv_multipart()
            assert answer == b"%d" % number
            assert isinstance(ANSWERS.decode(frames[1]), Refusal | Piece)
        for frames in ([b""], [b"", b"", b""], [os.urandom(10)]):
            reader.send_multipart(frames)
        wait_until(lambda: archive.statistics().dropped == 3, what="requests were dropped")
        assert archive.statistics().refused > 60
        assert all_numbers(ArchiveClient(feed, timeout=200).blocks(0)) == list(range(100))


def test_an_invalid_cursor_does_no_harm(tmp_path: Path) -> None:
    feed = archived_feed()
    ask = AskBlocks(slice_id=0, start=Position(recorded(tmp_path, feed, 100), 0))
    archive = Pieces(tmp_path / feed.name)
    cursor = archive.read(ask).piece.cursor
    for segment, offset in ((0, 65), (0, 1 << 62), (999_999, 64), (0, 0)):
        wrong = msgspec.structs.replace(cursor, segment=segment, offset=offset)
        assert archive.read(msgspec.structs.replace(ask, cursor=wrong)).piece.state in ("more", "later", "done")


def test_an_error_names_the_missing_slice_day_or_feed(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 10)
    wide = msgspec.structs.replace(feed, slices=feed_of(slices=2).slices)
    other = msgspec.structs.replace(feed, name="other")
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        with pytest.raises(ArchiveError, match="slice was 1, expected 0 to 0"):
            next(ArchiveClient(wide, timeout=200).blocks(1))
        with pytest.raises(ArchiveError, match="day was '../x', expected one of"):
            ArchiveClient(feed, timeout=200).about("../x")
        with pytest.raises(ArchiveError, match="archive was of feed 'tape', key_bytes = 0, expected feed 'other'"):
            next(ArchiveClient(other, timeout=200).blocks(0))
        with pytest.raises(EndpointError, match="is in use"):
            ArchiveServer(tmp_path, feed.archives).open()
    with pytest.raises(ArchiveError, match=r"no archive of feed 'tape' answered: .* did not answer within 0\.1 s"):
        ArchiveClient(feed, timeout=0.1).about()


def ask(**options: Any) -> object:
    return ArchiveClient(archived_feed()).blocks(0, **options)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda _: feed_of(archives=("inproc://x",)), r"archive was 'inproc://x', expected tcp:// or ipc://"),
        (lambda _: feed_of(archives=("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")), "was named twice"),
        (lambda place: Recorder(feed_of(), place, serve=True), "had no archives"),
        (lambda _: ArchiveClient(feed_of()), "had no archives"),
        (lambda _: ask(start=(1, 1), start_ns=5), "and start_ns 5, expected one of them"),
        (lambda _: ask(prefix=[b"%03d" % n for n in range(257)]), "prefixes were 257, expected at most 256"),
    ],
)
def test_invalid_settings_are_rejected_at_once(tmp_path: Path, call: Callable[[Path], object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        call(tmp_path)
