"""`blackbox import`: dated recordings of sources, and the report on them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Recording
from blackbox.cli.ui.status import Status
from blackbox.testing import wait_until
from tests.cli.commands import Command, Ended, Place, assert_one_line, invoke, write_feed
from tests.cli.test_publish import capture


def import_to(directory: Path, *words: object, status: int = Status.OK) -> Ended:
    """Import, and return how it ended, with its errors on one line."""
    ended = invoke("import", *words, "--out", directory)
    assert ended.status == status, ended.errors
    return ended._replace(errors=" ".join(ended.errors.split()))


def test_files_become_the_days_in_their_names(tmp_path: Path, place: Place) -> None:
    for date in ("20260105", "20260106"):
        Synthetic(2_000).write(tmp_path / f"{date}.itch")
    files = [f"itch50:{path}" for path in sorted(tmp_path.glob("*.itch"))]
    out, feed = tmp_path / "out", ("--feed", place.path)
    ended = import_to(out, *files, *feed, "--compression", "zstd", "--threads", 1)
    assert (ended.value("days"), ended.value("messages")) == (2, 4_000)
    for date in ("2026-01-05", "2026-01-06"):
        recording = Recording.open(out / place.feed.name / date)
        assert (str(recording.date), sum(recording.counts().values())) == (date, 2_000)
        assert f"{recording.path}: 2,000 messages" in ended.errors
    again = invoke("import", *files, "--out", out, *feed)
    assert_one_line(again, r"2026-01-05 exists, expected a day that is not there yet, or replace=True \(--replace\)")
    import_to(out, files[1], *feed, "--replace")


def test_date_sets_the_date_option_of_the_source(tmp_path: Path, shared_data: Path) -> None:
    ended = import_to(tmp_path, "synthetic:1000", "--date", "2025-03-03")
    assert "2025-03-03: 2 messages with a time outside" in ended.errors, "the market closes after midnight in UTC"
    assert Recording.open(tmp_path / "local" / "2025-03-03").time("09:30") // 10**9 == 1_740_994_200
    file = shared_data / "iex/goiex_TOPS16.pcapng.gz"
    ended = invoke("import", f"iex:{file}", "--out", tmp_path, "--date", "2020-01-01")
    assert_one_line(
        ended,
        "57,674 of its 57,674 messages have times outside of the session 2020-01-01, .* leave out the date .--date",
    )


def test_lines_of_binance_become_days_and_bad_ones_are_named(tmp_path: Path, shared_data: Path) -> None:
    ended = import_to(tmp_path / "night", f"binance:{shared_data}/binance/cm_btcusd_perp_20240808.gz")
    assert "outside" not in ended.errors
    assert (ended.value("days"), ended.value("messages")) == (2, 48_270)
    cases = shared_data.parent / "cases/binance"
    cut = import_to(tmp_path / "cut", f"binance:{cases}/one_cut_line_in_the_middle.txt", status=Status.LOST)
    assert "a source is incomplete: " in cut.errors
    assert "in_the_middle.txt: 1 of 10 lines were bad and left out: line 5: its frame was" in cut.errors
    assert cut.value("messages") == 9
    file = cases / "receive_times_in_microseconds.txt"
    ended = invoke("import", f"binance:{file}", "--out", tmp_path / "us")
    assert_one_line(ended, "which is in us, expected ns: give .* `--option time_unit=us`")
    assert "--date" not in ended.errors
    assert import_to(tmp_path / "us", f"binance:{file}", "--option", "time_unit=us").value("messages") == 10


def test_a_truncated_source_is_imported_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "20260105.itch"
    Synthetic(1_000).write(path)
    path.write_bytes(path.read_bytes()[:-3])
    ended = import_to(tmp_path / "out", f"itch50:{path}", status=Status.LOST)
    assert f"a source is incomplete: {path}" in ended.errors
    assert ended.value("messages") == 999


@pytest.mark.parametrize(
    ("numbers", "status", "said", "missing"),
    [
        ((1, 2, 3, 10, 11), Status.LOST, "2026-01-05: 6 messages missing in the sources, kept as gaps", 6),
        ((100, 101), Status.OK, "messages sent before the first one of the input: 99", 99),
    ],
)
def test_messages_that_a_capture_lacks_are_gaps(
    tmp_path: Path, numbers: tuple[int, ...], status: int, said: str, missing: int
) -> None:
    ended = import_to(tmp_path / "out", capture(tmp_path / "20260105.pcap", *numbers), status=status)
    assert said in ended.errors
    assert ended.value("messages") == len(numbers)
    day = tmp_path / "out" / "local" / "2026-01-05"
    inspected = invoke("inspect", day)
    assert (inspected.value("missing"), inspected.value("not heard")) == (missing, 0)
    assert invoke("verify", day).status == Status.LOST


def test_missing_messages_are_counted_as_by_the_venue_for_any_number_of_slices(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("three", slices=3), schema="itch50")
    words = (capture(tmp_path / "20260105.pcap", 1, 3), "--feed", write_feed(feed, tmp_path / "feed.toml"))
    ended = import_to(tmp_path / "out", *words, status=Status.LOST)
    assert "2026-01-05: 1 message missing in the sources" in ended.errors


def test_an_interrupted_import_leaves_no_day(tmp_path: Path) -> None:
    def is_writing() -> bool:
        return any(path.stat().st_size > 1 << 20 for path in tmp_path.glob("local/importing/*/new/*/*.journal"))

    with Command("import", "synthetic:40000000", "--out", tmp_path, "--date", "2026-01-05") as command:
        wait_until(is_writing, 120)
        ended = command.interrupt()
    assert (ended.status, ended.out, ended.errors) == (130, "", "interrupted\n")
    assert not [*tmp_path.glob("local/2*"), *tmp_path.glob("local/importing")]
