"""The snippets of the docs run: settings load, callbacks are called, commands are valid. For Spark: `tests/spark`."""

from __future__ import annotations

import asyncio
import re
import shlex
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from blackbox_feeds.synthetic import Synthetic

from blackbox import Batch, Feed, Hub, HubClient, Publisher, Recorder, Recording, Subscriber
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.protocol import Gone
from blackbox.block.gap import Gap
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.rights import RIGHTS_FILE, load_rights
from blackbox.services.hub.settings import HubSettings
from blackbox.services.relay.plain_clients import PlainRelay
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import publish_numbered, wait_recorded
from tests.cli.commands import PROGRAM
from tests.recorded import recorded

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    (page.name, line)
    for page in PAGES
    for line in re.findall(r"^ {4}(?:\.venv/bin/)?blackbox (.+)$", page.read_text(), re.MULTILINE)
]


def snippets(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "a page", "exec"), names)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_of_a_page_is_valid(page: str, line: str) -> None:
    name, *words = shlex.split(line, comments=True)
    PROGRAM.commands[name].make_context(name, words)  # type: ignore[attr-defined]


SETTINGS = {"archive-protocol.md": 1, "containers.md": 1, "multicast.md": 2, "security.md": 1, "shared-memory.md": 1}
"""Pages with settings of a feed, and how many of their snippets form one file."""


@pytest.mark.parametrize("page", SETTINGS)
def test_settings_of_a_page_load(page: str, tmp_path: Path) -> None:
    text = "\n".join(snippets(page, "toml")[: SETTINGS[page]])
    slices = "" if "[[slices]]" in text else '\n[[slices]]\nendpoints = ["tcp://127.0.0.1:17201"]\n'
    path = tmp_path / "feed.toml"
    path.write_text(f'name = "page"\n{text}{slices}')
    assert Feed.load(path).slices


def test_rights_of_the_page_load(tmp_path: Path) -> None:
    _, rights = snippets("security.md", "toml")
    (tmp_path / RIGHTS_FILE).write_text(rights)
    assert load_rights(str(tmp_path), 8) == {"desk": (b"AAPL.", b"MSFT."), "intern": (), "*": (b"INDEX.",)}


def test_every_page_with_code_has_a_test_that_names_it() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    pages = [page.name for page in PAGES if re.search(r"^```(python|toml|js|sql)$", page.read_text(), re.MULTILINE)]
    assert len(pages) > 20
    assert [name for name in pages if f'"{name}"' not in tests and f"/{name}" not in tests] == []


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Return a recorded session with trades of AAPL."""
    return recorded(tmp_path_factory.mktemp("session"), lambda: Synthetic(20_000, symbols=50))


def test_callbacks_books_and_hooks_of_the_page_are_called(session: Recording) -> None:
    fields, _stream, book, lost, _several, _wanted = snippets("callbacks.md")
    subscriber = Subscriber(session.feed)
    names: dict[str, Any] = {"subscriber": subscriber, "prices": {}}
    for code in (fields, book, lost):
        run(code, names)
    subscriber.replay(session)
    assert subscriber.statistics().delivery.failed == 0
    assert list(names["prices"]) == [b"AAPL"]
    assert b"AAPL" in names["book"].symbols
    names["lost"](Gap(0, 1, b"", 0, 1, 0))
    assert names["prices"] == {}


def test_subscribers_on_the_same_sockets_start_and_end_as_on_the_page() -> None:
    feed = Feed.local("page", slices=1)
    with Publisher(feed):
        names: dict[str, Any] = {"Subscriber": Subscriber, "feed": feed, "quote": lambda _: None}
        run(snippets("callbacks.md")[4].replace("...", "assert second.state == 'running'"), names)
    assert names["first"].state == names["second"].state == "ended"


def test_values_with_subscribers_are_computed_as_on_the_page() -> None:
    feed = Feed.local("page", slices=1)
    computed: list[bytes] = []
    switched: list[tuple[bytes, bool]] = []

    class Models:
        def switch(self, prefix: bytes, is_wanted: bool) -> None:
            switched.append((prefix, is_wanted))

    def compute_delta() -> bytes:
        computed.append(b"")
        return b"0.5"

    with Publisher(feed) as publisher:
        names: dict[str, Any] = {"publisher": publisher, "compute_delta": compute_delta, "models": Models()}
        code = snippets("callbacks.md")[5]
        run(code, names)
        assert computed == []
        subscriber = Subscriber(feed)
        subscriber.on(b"AAPL")(lambda _: None)
        with subscriber:
            assert switched == [(b"AAPL", True)]
            run(code, names)
    assert len(computed) == 1


def test_the_stream_of_the_page_is_read_to_its_end(session: Recording) -> None:
    subscriber = Subscriber(session.feed)
    names: dict[str, Any] = {}
    run(f"async def read(subscriber):\n{textwrap.indent(snippets('callbacks.md')[1], '    ')}", names)

    def replay() -> None:
        wait_until(lambda: subscriber.callbacks != ())
        subscriber.replay(session)

    thread = threading.Thread(target=replay)
    thread.start()
    asyncio.run(names["read"](subscriber))
    thread.join()
    assert subscriber.statistics().delivery.delivered > 0


def test_the_plain_pyzmq_program_prints_the_same_output(capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = snippets("from-pyzmq.md")
    ((endpoint,),) = free_endpoints("tcp", "plain", 1, 1)
    run(plain.replace("tcp://127.0.0.1:17201", endpoint), {})
    assert f"`{capsys.readouterr().out.strip()}`" in PAGES[0].read_text()


def test_the_plain_client_of_the_page_reads_a_message_of_a_plain_relay() -> None:
    *_, code = snippets("from-pyzmq.md")
    ((endpoint,),) = free_endpoints("tcp", "plain", 1, 1)
    feed = Feed.local("page", slices=1)
    names: dict[str, Any] = {}
    client = threading.Thread(target=run, args=(code.replace("tcp://127.0.0.1:6000", endpoint), names), daemon=True)
    with Publisher(feed) as publisher, PlainRelay(feed, endpoint):
        client.start()

        def has_come() -> bool:  # nothing confirms a plain subscription
            publisher.publish(b"AAPL.trade", b"189.98", ts_event=17)
            return "payload" in names

        wait_until(has_come)
    client.join()
    assert (names["topic"], names["payload"], names["ts_event"]) == (b"AAPL.trade", [b"189.98"], b"\x11" + bytes(7))


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[tuple[Feed, Publisher, Recorder]]:
    feed = archived_feed()
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        yield feed, publisher, recorder


def test_the_checkpoint_of_the_page_is_resumed(
    archived: tuple[Feed, Publisher, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, publisher, recorder = archived
    monkeypatch.chdir(tmp_path)
    named, checkpoint, _ = snippets("recovery.md")
    before, after = checkpoint.split("...\n")
    kept: dict[int, Any] = {}
    names: dict[str, Any] = {"feed": feed, "Subscriber": Subscriber, "state": None}
    names["keep_in_one_transaction"] = lambda _state, positions: kept.update(positions)
    got: list[int] = []

    run(named, names)
    names["subscriber"].on(b"", fields=("sequence",))(got.append)
    with names["subscriber"].start():
        publish_numbered(publisher, 0, 100)
        wait_until(lambda: len(got) == 100)
        run(before, names)
    assert kept == {0: (publisher.epoch, 100)}
    publish_numbered(publisher, 100, 50)
    wait_recorded(recorder, 150)
    names |= {"subscriber": Subscriber(feed), "kept_positions": kept}
    names["subscriber"].on(b"", fields=("sequence",))(got.append)
    run(after, names)
    with names["subscriber"]:
        wait_until(lambda: len(got) == 150)
    assert got == list(range(150))


def test_the_stream_checkpoint_of_the_page_follows_the_messages_read(
    archived: tuple[Feed, Publisher, Recorder],
) -> None:
    feed, publisher, _ = archived
    _, _, code = snippets("recovery.md")
    kept: list[tuple[int, dict[int, Any]]] = []
    applied: list[int] = []
    subscriber = Subscriber(feed)

    def is_time_to_keep() -> bool:
        if len(applied) == 100:
            subscriber.request_stop()
        return len(applied) % 10 == 0

    with subscriber.stream(b"") as stream, subscriber:
        publish_numbered(publisher, 0, 100)
        names: dict[str, Any] = {"stream": stream, "subscriber": subscriber, "is_time_to_keep": is_time_to_keep}
        names["state"] = SimpleNamespace(apply=lambda message: applied.append(message.sequence))
        names["keep_in_one_transaction"] = lambda _, positions: kept.append((len(applied), dict(positions)))
        run(code, names)
    assert kept == [(count, {0: (publisher.epoch, count)}) for count in range(10, 101, 10)]


def test_the_hub_of_the_page_stores_the_puts_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings, hub_settings = snippets("hub.md", "toml")
    for number in ("17110", "17111", "17112"):
        settings = settings.replace(f"tcp://127.0.0.1:{number}", f"ipc://{tmp_path}/{number}")
    (tmp_path / "feed.toml").write_text(settings)
    (tmp_path / "hub.toml").write_text(hub_settings)
    put, columns, table = snippets("hub.md")
    feed = Feed.load("feed.toml")
    with Hub(feed, HubSettings.load("hub.toml").directory):
        names: dict[str, Any] = {}
        run(put.replace("timeout=5.0", "timeout=200.0"), names)
        assert names["message"].payload == b"buy 100 AAPL"
        with HubClient(feed, "columns") as client:
            names = {"client": client, "numpy": numpy}
            run(columns, names)
        assert names["places"]["sequence"].tolist() == [10_001, 10_002]
        run(table, {})


def test_settings_of_pairs_and_sites_load(tmp_path: Path) -> None:
    pair_feed, pair, peers, site, join = snippets("hub-pairs-and-sites.md", "toml")
    hub = tmp_path / "hub.toml"
    (tmp_path / "feed.toml").write_text(f'name = "page"\n{pair_feed}')
    assert len(Feed.load(tmp_path / "feed.toml").slices[0].lines) == 2
    hub.write_text(f'feed = "feed.toml"\ndirectory = "kept"\n{pair}{join}')
    loaded = HubSettings.load(hub)
    assert loaded.pair is not None
    assert loaded.join is not None
    assert (loaded.pair.role, loaded.join.ports) == ("primary", (17_200, 17_299))
    hub.write_text(peers)
    assert [Path(each.here).name for each in HubSettings.load(hub).peers] == ["ldn-here.toml"]
    (tmp_path / "ldn.toml").write_text(site)
    assert Feed.load(tmp_path / "ldn.toml").hub == "tcp://127.0.0.1:17210"


def test_images_and_tables_of_the_page_start_with_recorded_messages(
    archived: tuple[Feed, Publisher, Recorder],
) -> None:
    feed, publisher, recorder = archived
    image, _books, table = snippets("images.md")
    publisher.publish(b"AAPL.price", b"100", ts_event=1)
    publisher.publish(b"AAPL.price", b"101", ts_event=2)
    publisher.flush()
    wait_recorded(recorder, 2)
    got: list[tuple[bytes, bool]] = []
    code = image.replace("...  #", "got.extend((message.payload, batch.is_recorded) for message in batch)  #")
    names: dict[str, Any] = {"feed": feed, "Subscriber": Subscriber, "Batch": Batch, "got": got}
    run(code, names)
    with names["subscriber"]:
        wait_until(lambda: got != [])
    assert got == [(b"101", True)]
    names = {"subscriber": Subscriber(feed)}
    run(table, names)
    names["subscriber"].stop()
    assert names["price"] == b"101"


def test_the_archive_answers_the_requests_of_the_page(archived: tuple[Feed, Publisher, Recorder]) -> None:
    feed, publisher, recorder = archived
    publish_numbered(publisher, 0, 6_000)
    wait_recorded(recorder, 6_000)
    names: dict[str, Any] = {"feed": feed, "epoch": publisher.epoch, "ArchiveClient": ArchiveClient, "Gone": Gone}
    (code,) = snippets("archive-protocol.md")
    run(code, names)
    assert len(names["rows"]) > 0
    assert not isinstance(names["found"], Gone)


def test_a_file_is_imported_and_queried_as_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in snippets("data-in-and-out.md"):
        run(code, names)
    page = (ROOT / "docs" / "data-in-and-out.md").read_text()
    told = re.findall(r"prints\s`(.*?)`", page, re.DOTALL)
    assert capsys.readouterr().out.splitlines() == [" ".join(text.split()) for text in told]
