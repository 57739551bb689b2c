"""The job that the tests run on a cluster: bars of the trades of a recording, summed up as JSON."""

from __future__ import annotations

import json
import sys

import blackbox.analysis.spark
from blackbox.analysis import time_bars

spark = blackbox.analysis.spark.session(name="bars on a cluster")
reader = spark.read.format("blackbox").option("partitionBytes", "256k")  # more tasks than one worker takes at a time
trades = reader.option("messageType", "T").load(sys.argv[1])
bars = time_bars(trades, "1s", size="size")
sums = "count(*) AS bars", "sum(trades) AS trades", "sum(volume) AS volume", "max(high) AS high"
(row,) = bars.selectExpr(*sums).collect()
for _ in range(3):
    first = reader.load(sys.argv[1]).limit(3).collect()  # Spark closes readers that have more rows
print(
    json.dumps({**row.asDict(), "high": str(row["high"]), "client": type(spark).__module__, "first": len(first)}),
    flush=True,
)
sys.stdin.read()  # until the caller closes it: meanwhile the application may serve Spark Connect
spark.stop()
