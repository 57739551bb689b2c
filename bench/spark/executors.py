"""Process of a Spark cluster.

driver ── N executors of one core, each its own Java process (`local-cluster`)

An order is `{"query", "form", "day"}` or `{"query", "parquet"}`; the answer has the seconds and the query's answer.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.processes.child import answer, orders
from bench.spark.queries import QUERIES
from bench.spark.trades import begin, load


def serve(executors: int) -> None:
    """Answer orders."""
    spark = begin(f"local-cluster[{executors},1,2048]", **{"spark.driver.memory": "1g"})
    for order in orders():
        started = time.perf_counter()
        path = order.get("parquet")
        frame = spark.read.parquet(path) if path else load(spark, order["form"], Path(order["day"]))
        found = QUERIES[order["query"]]["Spark"](frame)
        answer(seconds=time.perf_counter() - started, answer=found)
    spark.stop()
