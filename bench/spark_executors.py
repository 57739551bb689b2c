"""A cluster of its own in a process of its own: `python -m bench.spark_executors N`, for `bench.child.Child`.

driver ── N executors of one core, each a Java of its own (`local-cluster`)

An order is `{"query", "form", "day"}` or `{"query", "parquet"}`; the answer has the seconds and the query's answer.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.spark_trades import begin, load
from bench.table_queries import QUERIES


def main() -> None:
    """Answer orders until the end of input."""
    spark = begin(f"local-cluster[{sys.argv[1]},1,2048]", **{"spark.driver.memory": "1g"})
    print("{}", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        started = time.perf_counter()
        path = order.get("parquet")
        frame = spark.read.parquet(path) if path else load(spark, order["form"], Path(order["day"]))
        answer = QUERIES[order["query"]]["Spark"](frame)
        print(json.dumps({"seconds": time.perf_counter() - started, "answer": answer}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
