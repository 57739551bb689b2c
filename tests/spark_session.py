"""One Spark session and one recording of each capture for all tests of a run, since each takes seconds to create."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import blackbox.analysis.spark
from tests.examples import first_of
from tests.recorded import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.journals import Day


@pytest.fixture(scope="session")
def own_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a jar of the user."""
    jar = tmp_path_factory.mktemp("jars") / "own.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("own.txt", "own")
    return jar


@pytest.fixture(scope="session")
def spark(own_jar: Path) -> Iterator[SparkSession]:
    conf = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.shuffle.partitions": 2,
        # With few rows, compiling or replanning a query takes longer than running it.
        "spark.sql.codegen.wholeStage": False,
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": False,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {own_jar} pyspark-shell")
        made = blackbox.analysis.spark.session("local[2]", conf=conf)
    yield made
    made.stop()


@pytest.fixture(params=first_of(["java", "python"]))
def engine(request: pytest.FixtureRequest) -> str:
    """Return each of the two engines of the data source."""
    return str(request.param)


@pytest.fixture(scope="session")
def captured(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a capture's name to its feed's directory, recorded on first use and never changed."""
    from blackbox_feeds.binance import Binance
    from blackbox_feeds.dbn import Dbn
    from blackbox_feeds.iex import Iex
    from blackbox_feeds.itch50 import Itch50
    from blackbox_feeds.tape import Tape

    makers = {
        "itch": lambda: Itch50(shared_data / "itch50" / "runk_locate-13-10k.bin", "2020-01-30"),
        "deep": lambda: Iex(shared_data / "iex" / "goiex_DEEP10.pcap.gz"),
        "tops": lambda: Iex(shared_data / "iex" / "goiex_TOPS16.pcapng.gz"),
        "tape": lambda: Tape(shared_data / "lean" / "ibm_20131007_trade.zip"),
        "dbn": lambda: Dbn(shared_data / "dbn" / "esh4-glbx-mdp3-20231224.mbo.dbn.zst"),
        "binance": lambda: Binance(shared_data / "binance" / "spot_ethusdt_20240808.gz"),
    }

    @cache
    def of(name: str) -> Path:
        return record(tmp_path_factory.mktemp(name), name, makers[name], key_bytes=4 if name == "tops" else 0)

    return of


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Day:
    """Return a generated day with both codecs and all block sizes; tests must not change it."""
    from tests.spark.made_days import make_day

    return make_day(tmp_path_factory.mktemp("written") / "recorded" / "2026-11-20")
