"""A Spark Connect server that does not import our package, on a port of this machine, until its standard input ends."""

from __future__ import annotations

import sys
from typing import Any, Final

from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[1],
    "spark.sql.shuffle.partitions": "1",
}

builder: Any = SparkSession.builder
server = builder.config(map=SETTINGS).getOrCreate()
print("serving", flush=True)
sys.stdin.read()
server.stop()
