"""One Spark session for all tests of this directory: it takes seconds to begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import blackbox.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.sql.shuffle.partitions": 2}
    made = blackbox.spark.session("local[2]", conf=conf)
    yield made
    made.stop()
