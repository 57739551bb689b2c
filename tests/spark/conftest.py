"""One Spark session for all tests of this directory: it takes seconds to begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import blackbox.spark
from blackbox.spark.connector import connector_jar
from blackbox.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.jars": str(connector_jar(find_java())),
    }
    made = blackbox.spark.session("local[2]", conf=conf)
    yield made
    made.stop()
