"""A named consumer, its file, and an archive that deletes days: each is killed, or loses power, at any step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from blackbox import Feed
from blackbox.archive.consumer_positions import CONSUMERS, ConsumerStore, Kept, Owner, PositionFile, owned_consumers
from blackbox.archive.maintain.deleter import needs
from blackbox.block.form.layout import VERSION
from blackbox.block.position import Position
from blackbox.errors import PositionError
from blackbox.subscriber.consumer import Consumer, ConsumerLife
from blackbox.subscriber.progress import Progress
from blackbox.subscriber.start_position import Beginning
from tests.examples import examples

SCHEDULES = examples(500)
STEPS = 60
DAY = 10
"""Messages of a day, which is one epoch."""


class Crash(BaseException):
    """The process is killed, or its host loses power."""


class Disk:
    """Files under a directory, and what a power loss may leave: synced contents, and synced or current names."""

    def __init__(self, root: Path, random: Random) -> None:
        self.root, self.random = root, random
        self.steps_left = -1
        """System calls until one fails; negative: none fails."""
        self.failure: BaseException = Crash()
        self.synced = dict[int, bytes]()
        """Contents, by inode."""
        self.names = dict[Path, dict[str, int]]()
        """Synced files of each directory."""
        self.held = list[int]()
        """Descriptors that keep synced inodes from being reused."""

    @contextmanager
    def patched(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        replace = Path.replace

        def fsync(fd: int) -> None:
            self.step()
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if path.is_dir():
                self.names[path] = {each.name: each.stat().st_ino for each in path.iterdir() if each.is_file()}
            else:
                self.held.append(os.dup(fd))
                self.synced[path.stat().st_ino] = path.read_bytes()

        def step_and_replace(path: Path, target: Path) -> Path:
            self.step()
            return replace(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            patch.setattr(Path, "replace", step_and_replace)
            yield

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == -1:
            raise self.failure

    def cut_power(self) -> None:
        """Keep synced or torn contents, under synced or newer names."""
        for directory in [each for each in self.root.rglob("*") if each.is_dir()]:
            now = {each.name: (each.stat().st_ino, each.read_bytes()) for each in directory.iterdir() if each.is_file()}
            contents = dict(now.values()) | self.synced
            names = self.names.get(directory, {})
            for name in now.keys() | names.keys():
                inode = now[name][0] if name in now else 0
                if self.random.random() < 0.5:
                    inode = names.get(name, 0)
                path = directory / name
                path.unlink(missing_ok=True)
                if inode in contents:
                    whole = contents[inode]
                    path.write_bytes(whole if inode in self.synced else whole[: self.random.randrange(len(whole) + 1)])
                    if inode in self.synced:
                        self.held.append(os.open(path, os.O_RDONLY))
                        self.synced[path.stat().st_ino] = whole
                    self.names.setdefault(directory, {})[name] = path.stat().st_ino


class Archive:
    """A host that records everything and deletes days that no consumer needs."""

    def __init__(self, feed: Feed, root: Path) -> None:
        self.place, self.first = root / feed.name, 0
        """First recorded message."""
        self.is_up = True

    def tell(self, name: str, positions: Mapping[int, Position], secret: bytes, prefixes: Sequence[bytes] = ()) -> None:
        if not self.is_up:
            raise PositionError("the archive is down")
        ConsumerStore(self.place).note(Owner.of_secret(secret, ""), name, positions, tuple(prefixes))

    def delete(self) -> None:
        found = owned_consumers(self.place / CONSUMERS) if (self.place / CONSUMERS).is_dir() else {}
        needed = [kept.slices for file in found.values() if (kept := file.read()) is not None]
        while needed and not any(needs(each, {0: [position_of(self.first + DAY - 1)]}) for each in needed):
            self.first += DAY


def position_of(message: int) -> Position:
    return Position(1 + message // DAY, message % DAY)


def message_of(position: tuple[int, int]) -> int:
    epoch, sequence = position
    return (epoch - 1) * DAY + sequence


class World:
    """A consumer that is restarted repeatedly. Messages are numbered from 0 over all epochs."""

    def __init__(self, seed: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.monkeypatch = Random(seed), monkeypatch
        self.feed = Feed.local("tape")
        self.directory = root / "positions"
        self.disk = Disk(root, self.random)
        self.archive = Archive(self.feed, root)
        self.handled = self.committed = 0
        """Next message of the running consumer, and that of its last checkpoint that returned."""
        self.ended = list[tuple[Consumer, int]]()
        """Ended consumers, and the next message of each."""
        self.begin()

    def new(self) -> Consumer:
        return Consumer(self.feed, PositionFile(self.directory, "strategy-1"), 0.0, None, self.archive)  # type: ignore[arg-type]

    def begin(self) -> None:
        self.consumer = self.new()
        beginning = self.consumer.begin(Beginning())
        at = message_of(beginning.since[0]) if isinstance(beginning.since, Mapping) else 0
        assert self.committed <= at <= self.handled, f"begins at {at}, not in {self.committed, self.handled}"
        assert at == 0 or self.archive.first <= at, f"{at} was deleted, {self.archive.first} is the first one"
        self.handled = self.committed = at
        self.consumer._life = ConsumerLife.KEEPING

    def checkpoint(self) -> None:
        at = self.handled
        self.consumer.keep({0: position_of(at)})
        self.committed = at

    def report(self) -> None:
        self.archive.is_up = self.random.random() < 0.8
        self.consumer._tell_now()

    def end_and_restart(self) -> None:
        """End, make checkpoints of ended consumers, and begin in another process."""
        self.consumer.end(self.no_checkpoint)
        self.ended.append((self.consumer, self.handled))
        self.checkpoint_of_ended(is_free=True)
        self.begin()

    @contextmanager
    def no_checkpoint(self, _timeout: float) -> Iterator[dict[int, Position]]:
        yield {}

    def checkpoint_of_ended(self, *, is_free: bool = False) -> None:
        for consumer, handled in self.ended:
            self.handled = max(self.handled, handled) if is_free else self.handled
            has_news = consumer._progress.stored != {0: position_of(handled)}
            with suppress(PositionError):  # another consumer has the name, or had it
                consumer.keep({0: position_of(handled)})
                assert is_free or not has_news, "stored while another consumer has the name"
                self.committed = max(self.committed, handled) if is_free else self.committed

    def handle(self) -> None:
        self.handled += self.random.randrange(2 * DAY)

    def run(self) -> None:
        steps = [self.handle, self.handle, self.checkpoint, self.report, self.archive.delete, self.end_and_restart]
        for _ in range(STEPS):
            self.disk.steps_left = self.random.choice([-1, self.random.randrange(8)])
            self.disk.failure = self.random.choice([Crash(), Crash(), OSError(5, "Input/output error")])
            step = self.random.choice([*steps, self.checkpoint_of_ended])
            try:
                with self.disk.patched(self.monkeypatch):
                    step()
            except PositionError:
                assert isinstance(self.disk.failure, OSError)
                if step == self.end_and_restart:
                    self.crash()
            except Crash:
                self.crash()

    def crash(self) -> None:
        self.disk.steps_left = -1
        for loses_power in self.random.choice([(False,), (True,), (False, True)]):
            for consumer in (self.consumer, *(consumer for consumer, _ in self.ended)):
                consumer._file.close()
            self.ended.clear()
            if loses_power:
                self.disk.cut_power()
            with self.disk.patched(self.monkeypatch):
                self.begin()


def test_a_position_is_never_after_handled_messages_and_never_before_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = []
    for seed in range(SCHEDULES):
        world = World(seed, tmp_path / str(seed), monkeypatch)
        try:
            world.run()
        except (AssertionError, PositionError) as error:
            findings.append(f"seed {seed}: {error}")
        finally:
            for fd in world.disk.held:
                os.close(fd)
    assert findings == []


def test_slices_without_a_given_position_begin_at_the_stored_one() -> None:
    kept = Kept(VERSION, "tape", 0, {0: Position(5, 100), 1: Position(5, 200)})
    given = Beginning({0: Position(5, 150)})
    found = Progress("tape", 2, Path("strategy-1.positions")).resume(kept, given, release=False)
    assert found.since == {0: Position(5, 150), 1: Position(5, 200)}
