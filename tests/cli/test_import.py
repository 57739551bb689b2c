"""`blackbox import`: dated recordings of sources, and the report on them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from blackbox_feeds.synthetic import Synthetic

from blackbox import Recording
from blackbox.cli.ui.status import Status
from blackbox.testing import wait_until
from tests.cli.commands import Command, Place, assert_one_line, invoke, write_feed
from tests.examples import first_of
from tests.feeds.build import ethernet, itch, mold, pcap


def test_files_become_the_days_in_their_names(tmp_path: Path, place: Place) -> None:
    for date in ("20260105", "20260106"):
        Synthetic(2_000).write(tmp_path / f"{date}.itch")
    files = [f"itch50:{path}" for path in sorted(tmp_path.glob("*.itch"))]
    ended = invoke(
        "import", *files, "--out", tmp_path / "out", "--feed", place.path, "--compression", "zstd", "--threads", 1
    )
    assert ended.status == 0, ended.errors
    assert (ended.value("days"), ended.value("messages")) == (2, 4_000)
    for date in ("2026-01-05", "2026-01-06"):
        recording = Recording.open(tmp_path / "out" / place.feed.name / date)
        assert (str(recording.date), sum(recording.counts().values())) == (date, 2_000)
        assert f"{recording.path}: 2,000 messages" in ended.errors
    again = invoke("import", *files, "--out", tmp_path / "out", "--feed", place.path)
    assert again.status == Status.ERROR
    assert_one_line(again, r"2026-01-05 exists, expected a day that is not there yet, or replace=True \(--replace\)")
    assert invoke("import", files[1], "--out", tmp_path / "out", "--feed", place.path, "--replace").status == 0


def test_date_sets_the_date_option_of_the_source(tmp_path: Path) -> None:
    ended = invoke("import", "synthetic:1000", "--out", tmp_path, "--date", "2025-03-03")
    assert ended.status == 0, ended.errors
    assert "2025-03-03: 2 messages with a time outside" in ended.errors, "the market closes after midnight in UTC"
    assert Recording.open(tmp_path / "local" / "2025-03-03").time("09:30") // 10**9 == 1_740_994_200


def test_a_date_that_differs_from_the_messages_is_an_error_naming_the_option(tmp_path: Path, shared_data: Path) -> None:
    file = shared_data / "iex/goiex_TOPS16.pcapng.gz"
    ended = invoke("import", f"iex:{file}", "--out", tmp_path, "--date", "2020-01-01")
    assert ended.status == Status.ERROR
    assert_one_line(
        ended,
        "57,674 of its 57,674 messages have times outside of the session 2020-01-01, .* leave out the date .--date",
    )


def test_binance_over_midnight_is_two_days(tmp_path: Path, shared_data: Path) -> None:
    ended = invoke("import", f"binance:{shared_data}/binance/cm_btcusd_perp_20240808.gz", "--out", tmp_path)
    assert ended.status == 0, ended.errors
    assert "outside" not in ended.errors
    assert (ended.value("days"), ended.value("messages")) == (2, 48_270)


def test_a_bad_line_is_named_and_has_status_4(tmp_path: Path, shared_data: Path) -> None:
    file = shared_data.parent / "cases/binance/one_cut_line_in_the_middle.txt"
    ended = invoke("import", f"binance:{file}", "--out", tmp_path)
    assert ended.status == Status.LOST
    errors = ended.errors.replace("\n", "")
    assert "a source is incomplete: " in errors
    assert "one_cut_line_in_the_middle.txt: 1 of 10 lines were bad and left out: line 5: its frame was" in errors
    assert ended.value("messages") == 9


def test_a_wrong_unit_of_receive_times_is_an_error_naming_the_option(tmp_path: Path, shared_data: Path) -> None:
    file = shared_data.parent / "cases/binance/receive_times_in_microseconds.txt"
    ended = invoke("import", f"binance:{file}", "--out", tmp_path)
    assert ended.status == Status.ERROR
    assert_one_line(ended, "which is in us, expected ns: give .* `--option time_unit=us`")
    assert "--date" not in ended.errors
    ended = invoke("import", f"binance:{file}", "--out", tmp_path, "--option", "time_unit=us")
    assert ended.status == 0, ended.errors
    assert ended.value("messages") == 10


def test_a_truncated_source_is_imported_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "20260105.itch"
    Synthetic(1_000).write(path)
    path.write_bytes(path.read_bytes()[:-3])
    ended = invoke("import", f"itch50:{path}", "--out", tmp_path / "out")
    assert ended.status == Status.LOST
    assert f"a source is incomplete: {path}" in ended.errors.replace("\n", "")
    assert ended.value("messages") == 999


def test_messages_that_a_capture_lacks_are_gaps_and_status_4(tmp_path: Path) -> None:
    path = tmp_path / "20260105.pcap"
    packets = [mold(number, [itch("A", ns=10**9 * number)]) for number in (1, 2, 3, 10, 11)]
    path.write_bytes(pcap(map(ethernet, packets)))
    ended = invoke("import", f"itch50:{path}", "--out", tmp_path / "out")
    assert ended.status == Status.LOST
    assert "2026-01-05: 6 messages missing in the sources, kept as gaps" in " ".join(ended.errors.split())
    assert ended.value("messages") == 5
    day = tmp_path / "out" / "local" / "2026-01-05"
    inspected = invoke("inspect", day)
    assert (inspected.status, inspected.value("missing"), inspected.value("not heard")) == (0, 6, 0)
    assert invoke("verify", day).status == Status.LOST


def test_missing_messages_are_counted_as_by_the_venue_for_any_number_of_slices(tmp_path: Path) -> None:
    path, feed = tmp_path / "20260105.pcap", tmp_path / "feed.toml"
    path.write_bytes(pcap([ethernet(mold(number, [itch("A", ns=number)])) for number in (1, 3)]))
    feed.write_text(
        'name = "three"\nschema = "itch50"\n'
        + "".join(
            f'[[slices]]\nendpoints = ["tcp://127.0.0.1:{17_001 + number}"]\nshare = [{number}, 3]\n'
            for number in range(3)
        )
    )
    ended = invoke("import", f"itch50:{path}", "--out", tmp_path / "out", "--feed", feed)
    assert "2026-01-05: 1 message missing in the sources" in " ".join(ended.errors.split())


def test_a_capture_from_mid_session_is_complete_and_the_day_has_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "20260105.pcap"
    path.write_bytes(pcap([ethernet(mold(number, [itch("A", ns=number)])) for number in (100, 101)]))
    ended = invoke("import", f"itch50:{path}", "--out", tmp_path / "out")
    assert ended.status == 0, ended.errors
    assert "messages sent before the first one of the input: 99" in ended.errors
    day = tmp_path / "out" / "local" / "2026-01-05"
    inspected = invoke("inspect", day)
    assert (inspected.value("missing"), inspected.value("not heard")) == (99, 0)
    assert invoke("verify", day).status == Status.LOST


@pytest.mark.parametrize(
    ("number", "status", "said"),
    first_of([(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]),
)
def test_an_interrupted_import_leaves_no_day(tmp_path: Path, number: signal.Signals, status: int, said: str) -> None:
    def is_writing() -> bool:
        return any(path.stat().st_size > 1 << 20 for path in tmp_path.glob("local/importing/*/new/*/*.journal"))

    with Command("import", "synthetic:40000000", "--out", tmp_path, "--date", "2026-01-05") as command:
        wait_until(is_writing, 120)
        ended = command.interrupt(number)
    assert (ended.status, ended.out, ended.errors) == (status, "", f"{said}\n")
    assert not [*tmp_path.glob("local/2*"), *tmp_path.glob("local/importing")]


@pytest.mark.parametrize("date", ["2026-13-01", "today"])
def test_an_invalid_date_is_wrong_usage(tmp_path: Path, date: str) -> None:
    assert invoke("import", "synthetic:10", "--out", tmp_path, "--date", date).status == Status.USAGE


def test_a_feed_of_another_schema_is_refused(tmp_path: Path, place: Place) -> None:
    feed = write_feed(place.feed, tmp_path / "tape.toml")
    feed.write_text(feed.read_text().replace('schema = "raw"', 'schema = "tape"'))
    ended = invoke("import", "synthetic:10", "--out", tmp_path / "out", "--feed", feed)
    assert_one_line(ended, "feed 'cli' has schema 'tape' but source 'synthetic:10' has 'itch50'")
    assert not (tmp_path / "out").exists()
