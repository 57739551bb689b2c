"""Images from an archive's socket: their contents, rights, and wrong answers."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy
import pytest
import zmq
from blackbox_feeds.synthetic import Synthetic

from blackbox import ConfigError, Feed, Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.serve import images as images_module
from blackbox.archive.serve import newest, newest_of_slice
from blackbox.archive.serve.client import ArchiveClient, SliceImage
from blackbox.archive.serve.images import Images
from blackbox.archive.serve.newest_of_slice import Newest, warm_up_images
from blackbox.archive.serve.pieces import Pieces, StaleCursorError
from blackbox.archive.serve.protocol import ENCODER, REQUESTS, About, AskAbout, AskImage, Image, check_version
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.layout import VERSION
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, JournalError
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.damaged import damage_body
from tests.journals import Day, Put, Row
from tests.journals import feed_of as journal_feed
from tests.recorded import recorded


class Told:
    """Published messages, and from a slow loop the newest of each topic: (epoch, sequence, payload)."""

    def __init__(self, key_bytes: int, seed: int = 1) -> None:
        self.newest: dict[bytes, tuple[int, int, bytes]] = {}
        self.following = 0
        """Next sequence of the current epoch."""
        self.published = 0
        self._key_bytes = key_bytes
        self._random = numpy.random.default_rng(seed)

    def publish(self, publisher: Publisher, count: int, topics: int = 50) -> None:
        """Publish messages of random topics, some without a value."""
        names = [b"%c%d.t" % (65 + number % 5, number) for number in range(topics)]
        index = self._random.integers(0, topics, count).astype(numpy.int32)
        payloads = self._random.integers(0, 256, (count, 40), numpy.uint8)
        valid = self._random.random(count) > 0.02
        publisher.publish_many(names, index, payloads, valid=valid)
        publisher.flush()
        place_of_key: dict[bytes, int] = {}

        def place(row: int) -> int:
            return place_of_key.setdefault(names[index[row]][: self._key_bytes], len(place_of_key))

        for row in sorted(range(count), key=place):  # messages published together are sent key by key
            name = names[index[row]]
            self.newest.pop(name, None)
            if valid[row]:
                self.newest[name] = publisher.epoch, self.following, payloads[row].tobytes()
            self.following += 1
        self.published += count

    def new_run(self) -> None:
        """Begin a new epoch, with sequence 0."""
        self.following = 0


def newest_of(image: SliceImage) -> dict[bytes, tuple[int, int, bytes]]:
    found: dict[bytes, tuple[int, int, bytes]] = {}
    for block in image.blocks:
        topics, text = block.topics, block.payloads.tobytes()
        offsets, numbers = block.payload_offsets.tolist(), block.sequences.tolist()
        for row, topic in enumerate(block.topic_index.tolist()):
            assert topics[topic] not in found
            found[topics[topic]] = block.epoch, numbers[row], text[offsets[row] : offsets[row + 1]]
    return found


def answer_of(images: Images, *prefixes: bytes, at: float | None = None, **of: Any) -> tuple[Image, list[Block]]:
    """Return the first piece of an image requested at a time, once the archive has read everything."""
    while True:
        answer, blocks = images.answer(AskImage(slice_id=0, prefixes=prefixes, **of), received_at=at)
        if answer.image:
            return answer, blocks


class Served(NamedTuple):
    """An archive, what was published to it, and its directory."""

    feed: Feed
    told: Told
    directory: Path


@contextmanager
def published(tmp_path: Path, key_bytes: int = 0, runs: int = 1) -> Iterator[Served]:
    """Yield an archive of 3,000 messages of each epoch."""
    feed = archived_feed(key_bytes=key_bytes)
    told = Told(key_bytes)
    for run in range(runs):
        with Publisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
            told.new_run()
            # Each epoch has fewer topics, so the newest message of some topics is of an earlier one.
            for _ in range(6):
                told.publish(publisher, 500, 50 - 15 * run)
            wait_recorded(recorder, 3_000)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        yield Served(feed, told, tmp_path / feed.name)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with published(tmp_path_factory.mktemp("archive")) as served:
        yield served


def test_an_image_is_the_newest_of_every_topic_at_its_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is read in many turns and sent in many pieces."""
    prefixes = (b"A1", b"B", b"C7.")
    with published(tmp_path, 1, 3) as (feed, told, _):
        client = ArchiveClient(feed, timeout=200)
        with monkeypatch.context() as patch:
            for name, value in {"PIECE_BLOCKS": 2, "_READ_BYTES": 1, "_TURN_S": 1e-3}.items():
                patch.setattr(images_module, name, value)
            image = client.image(0)
        subtree = client.image(0, prefixes)
        assert newest_of(client.image(0, [b"nothing"])) == {}
    assert newest_of(image) == told.newest
    assert newest_of(subtree) == {topic: each for topic, each in told.newest.items() if topic.startswith(prefixes)}
    assert image.position == (max(epoch for epoch, _, _ in told.newest.values()), told.following)
    assert subtree.position.sequence == told.following


def test_an_image_has_all_that_was_recorded_before_its_request(tmp_path: Path) -> None:
    """Requests that were waiting together share an image."""
    day, images = Day(tmp_path / "tape" / "2026-01-01", feed_of()), Images(Pieces(tmp_path / "tape"))
    asked_at = list[float]()
    for number in range(3):
        day.put(0, Put((Row(b"A", b"%d" % number),), epoch=1 + number))
        asked_at += [time.monotonic(), time.monotonic()]
        first, second = (answer_of(images, b"", at=at)[0] for at in asked_at[-2:])
        assert first.position == (1 + number, 1)
        assert first == second
        whole = SliceImage(answer_of(images, b"")[1], first.position, 0)
        assert newest_of(whole) == {b"A": (1 + number, 0, b"%d" % number)}
        assert images.answer(AskImage(slice_id=0, prefixes=(b"",), image=first.image))[0] == first
    assert answer_of(images, b"", at=asked_at[0])[0].position == (3, 1)


def test_an_image_has_what_a_day_got_after_the_next_one_was_made(tmp_path: Path) -> None:
    one, two = (Day(tmp_path / "tape" / f"2026-01-0{number}", feed_of()) for number in (1, 2))
    one.put(0, Put((Row(b"A", b"1"),), epoch=1))
    images = Images(Pieces(tmp_path / "tape"))
    assert answer_of(images, b"")[0].position == (1, 1)
    one.put(0, Put((Row(b"A", b"2"),), epoch=1, sequence=1))
    assert answer_of(images, b"")[0].position == (1, 2)
    one.put(0, Put((Row(b"A", b"3"),), epoch=1, sequence=2))
    two.put(0, Put((Row(b"B", b"4"),), epoch=1, sequence=3))
    image, blocks = answer_of(images, b"")
    assert newest_of(SliceImage(blocks, image.position, 0)) == {b"A": (1, 2, b"3"), b"B": (1, 3, b"4")}


def test_readers_of_large_images_do_not_drive_each_other_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "PIECE_BLOCKS", 1)
    monkeypatch.setattr("blackbox.archive.serve.newest._BLOCK_BYTES", 1)  # a block per message
    day = Day(tmp_path / "tape" / "2026-01-01", feed_of())
    day.put(0, Put(tuple(Row(b"%02d" % number, b"xxxx") for number in range(10)), epoch=1))
    images, first = Images(Pieces(tmp_path / "tape")), AskImage(slice_id=0, prefixes=(b"",))
    answer_of(images, b"")
    monkeypatch.setattr(images_module, "MOST_IMAGE_BYTES", images._kept.pop().size + 1)
    clock = itertools.count(1_000)
    monkeypatch.setattr(images_module, "time", SimpleNamespace(monotonic=lambda: next(clock) / 20))
    asks, found, ended = [first] * 3, [0] * 3, set[int]()
    for reader in (turn % 3 for turn in range(600)):
        if reader not in ended:
            image, blocks = images.answer(asks[reader])
            found[reader] += len(blocks)
            asks[reader] = msgspec.structs.replace(first, image=image.image, first=found[reader])
            if image.image and found[reader] >= image.blocks:
                ended.add(reader)
    assert ended == {0, 1, 2}


def test_an_image_is_kept_while_it_is_fetched_and_expires(archive: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_time(now: float) -> None:
        monkeypatch.setattr(images_module, "time", SimpleNamespace(monotonic=lambda: now))

    now, images = time.monotonic(), Images(Pieces(archive.directory))
    made, blocks = answer_of(images, b"")
    ask = AskImage(slice_id=0, prefixes=(b"",), image=made.image)
    for late in range(10):  # a slow reader
        set_time(now + 20 * late)
        rest = images.answer(ask)
        assert (rest[0], len(rest[1])) == (made, len(blocks))
    with pytest.raises(StaleCursorError, match="expected a recent one of this archive"):
        images.answer(AskImage(slice_id=0, prefixes=(b"A",), image=made.image))  # not its prefixes
    set_time(now + 1_000)
    with pytest.raises(StaleCursorError, match="expected a recent one of this archive"):
        images.answer(ask)


def test_an_image_that_is_too_large_is_rejected(archive: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "MOST_IMAGE_BYTES", 1_000)
    with pytest.raises(ArchiveError, match=r"image of slice 0 had \d+ bytes, expected at most 1000: request lo"):
        answer_of(Images(Pieces(archive.directory)), b"")


def test_the_size_of_kept_images_of_small_payloads_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Day(tmp_path / "tape" / "2026-01-01", feed_of())
    day.put(0, Put(tuple(Row(b"%04d" % number, b"") for number in range(1_000)), epoch=1))
    monkeypatch.setattr(images_module, "MOST_IMAGE_BYTES", 1_000 * (72 + 4))
    monkeypatch.setattr(images_module, "_BUSY_S", 0.0)
    images = Images(Pieces(tmp_path / "tape"))
    for number in range(10):
        answer_of(images, b"", b"%d" % number)
    assert len(images._kept) == 2


def test_days_that_are_replaced_or_of_another_layout_do_not_mix(tmp_path: Path) -> None:
    feed = archived_feed()
    for number, slices in ((1, 2), (2, 1)):
        day = Day(tmp_path / feed.name / f"2026-01-0{number}", feed_of(slices=slices))
        day.put(0, Put((Row(b"A", b"%d" % number), Row(b"B%d" % number, b"x")), epoch=number))
    images = Images(Pieces(tmp_path / feed.name))
    answer, blocks = answer_of(images, b"")
    assert answer.position == (2, 2)
    assert sorted(newest_of(SliceImage(blocks, answer.position, 0))) == [b"A", b"B2"]


def test_an_invalid_request_for_an_image_is_rejected(archive: Served) -> None:
    client = ArchiveClient(archive.feed, timeout=200)
    with pytest.raises(ConfigError, match="slice was 1, expected 0 to 0"):
        client.image(1)
    with pytest.raises(ConfigError, match="prefixes of an image were 0, expected 1 to 256"):
        client.image(0, [])
    with pytest.raises(ArchiveError, match="schema of books was .raw."):
        client.image(0, of="books", timeout=0.0)
    wide = msgspec.structs.replace(archive.feed, slices=feed_of(slices=2).slices)
    with pytest.raises(ArchiveError, match="slice was 1, expected 0 to 0"):
        ArchiveClient(wide, timeout=200).image(1, timeout=0.1)
    with pytest.raises(ArchiveError, match=r"no archive of feed 'tape' answered: .* did not answer within 0\.1 s"):
        ArchiveClient(archived_feed(), timeout=0.1).image(0, timeout=0.2)


def test_a_slice_without_records_has_an_empty_image(tmp_path: Path) -> None:
    feed = archived_feed(slices=2)
    Day(tmp_path / "2026-01-01", feed_of(slices=2)).put(0, Put((Row(b"A", b"1"),)))
    with ArchiveServer(tmp_path, feed.archives):
        image = ArchiveClient(feed, timeout=200).image(1)
    assert (image.blocks, image.position) == ([], Position(0, 0))


def test_damaged_messages_are_left_out_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = archived_feed()
    day = Day(tmp_path / "2026-01-01", feed_of())
    damage_body(day.put(0, *(Put((Row(b"A", b"0"),), sequence=number) for number in range(3))), 2)
    with ArchiveServer(tmp_path, feed.archives), caplog.at_level(logging.WARNING, "blackbox"):
        image = ArchiveClient(feed, timeout=200).image(0)
    assert newest_of(image) == {b"A": (1, 1, b"0")}
    assert "1 places of its files could not be read for an image" in caplog.text


BLOCK = [
    bytes(each)
    for each in Block.encode(
        [b"A"], [0], PayloadColumns(numpy.zeros((1, 4), numpy.uint8), sequences=[3]), HeaderFields(epoch=1)
    ).frames
]


IMAGE = Image(image=1, blocks=1, position=Position(1, 4))
ABOUT = About(
    version=VERSION, feed="tape", key_rule=0, schema={}, days=[], day="", slices={}, deleted="", live_epoch=None
)


@pytest.mark.parametrize(
    ("image", "frames", "match"),
    [
        (IMAGE, lambda f: f[:2], "was no image, or lacked a part"),
        (IMAGE, lambda f: [f[0], f[1][:-1], f[2]], "is damaged"),
        (IMAGE, lambda f: [*f[:2], bytes(len(f[2]))], "is damaged"),
        (Image(image=1, blocks=1, position=Position(1, 3)), lambda f: f, "which cannot be in it"),
        (Image(image=1, blocks=1, position=Position(0, 4)), lambda f: f, "which cannot be in it"),
        (IMAGE, lambda f: f * 2, "had 2 blocks, expected 1"),
        (Image(image=1, blocks=2, position=Position(1, 4)), lambda f: [], "was not whole within timeout=0 s, expected"),
        (Image(image=0), lambda f: [], "was not whole within timeout=0 s, expected a longer"),
        (AskAbout(), lambda f: f, "did not answer as an archive does"),
    ],
)
def test_after_a_wrong_answer_the_next_archive_is_asked(archive: Served, image: Any, frames: Any, match: str) -> None:
    """A peer speaks the protocol but sends wrong answers."""
    feed, told, _ = archive
    with zmq.Context() as context, context.socket(zmq.ROUTER) as liar:
        port = liar.bind_to_random_port("tcp://127.0.0.1")
        over = threading.Event()

        def lie() -> None:
            while not over.is_set():
                if liar.poll(20):
                    *envelope, text = liar.recv_multipart()
                    if isinstance(REQUESTS.decode(text), AskAbout):
                        liar.send_multipart([*envelope, ENCODER.encode(ABOUT)])
                    else:
                        liar.send_multipart([*envelope, ENCODER.encode(image), *frames(BLOCK)])

        thread = threading.Thread(target=lie)
        thread.start()
        endpoint = f"tcp://127.0.0.1:{port}"
        try:
            with pytest.raises(ArchiveError, match=match):
                ArchiveClient(msgspec.structs.replace(feed, archives=(endpoint,))).image(0, timeout=0.0)
            both = msgspec.structs.replace(feed, archives=(endpoint, *feed.archives))
            if "not whole" not in match:
                assert newest_of(ArchiveClient(both, timeout=200).image(0)) == told.newest
        finally:
            over.set()
            thread.join()


def test_an_archive_of_another_version_is_refused(archive: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.archive.serve.pieces.VERSION", 99)
    with pytest.raises(ArchiveError, match=f"archive version was 99, expected {VERSION}: use the same release"):
        ArchiveClient(archive.feed, timeout=200).about()
    with pytest.raises(ArchiveError, match=f"archive version was 99, expected {VERSION}"):
        check_version(ENCODER.encode({"is": "about", "version": 99, "fields of that version": []}))


def test_the_first_image_of_an_archive_compiles_nothing(tmp_path: Path) -> None:
    """A reader waits for a few seconds at most."""
    warm_up_images()
    compiled = [each.signatures for each in (newest_of_slice._take, newest.move_payloads)]
    recording = recorded(tmp_path, lambda: Synthetic(1_000, symbols=5), slices=1)
    kept = Newest(0, 0, 1_000)
    for run in recording.runs():
        kept.take(run)
    assert sum(block.count for block in kept.blocks([b""]))
    assert [each.signatures for each in (newest_of_slice._take, newest.move_payloads)] == compiled


def test_a_beginning_that_has_no_room_stays_an_error(tmp_path: Path) -> None:
    Day(tmp_path / "2026-01-01", journal_feed(max_topics=1)).put(0, Put((Row(b"A0", b"1"),), epoch=2))
    columns = PayloadColumns(numpy.zeros((2, 1), numpy.uint8))
    block = Block.encode([b"A0", b"A1"], [0, 1], columns, HeaderFields(key_rule=0, epoch=1))
    images = Images(Pieces(tmp_path), {0: SliceImage([block], Position(1, 2), 0)})
    for _ in range(2):
        with pytest.raises(JournalError, match="more than 1 topics"):
            images.answer(AskImage(slice_id=0, prefixes=(b"",)))


def test_blocks_of_an_image_are_small_where_payloads_are_empty() -> None:
    count = 20_000
    topics, columns = [b"%d" % number for number in range(count)], PayloadColumns(numpy.zeros((count, 0), numpy.uint8))
    block = Block.encode(topics, numpy.arange(count, dtype=numpy.int32), columns, HeaderFields(key_rule=0, epoch=1))
    state = Newest(0, 0, count)
    state.begin([block], Position(1, count), 0)
    sizes = [each.body.nbytes for each in state.blocks((b"",))]
    assert len(sizes) > 1
    assert max(sizes) < 2 * newest._BLOCK_BYTES
