"""Texts of the summary page by contest: its subject, and why a rival is ahead.

Keys are the contests' slugs, made of file and test like the names of the pictures. The default is the contest's title.
"""

from __future__ import annotations

from typing import Final

ASKED: Final = {
    "bursts-bursts": "Bursts of ten times the mean: p99",
    "delivery-delivery": "Delivery to working callbacks",
    "fanout-fanout": "With a slow subscriber: p99",
    "latency-latency": "Latency, one message at a time",
    "messages-messages": "A Python call a message",
    "publish-publish": "publish(), a call a message",
    "publish-publish-many": "publish_many(), columns",
    "record-record-at-full-speed": "Recording at full wire speed",
    "replay-replay-in-process": "Replay in process",
    "replay-replay-on-the-wire": "Replay on the wire",
    "rivals-live-live-blocks": "Live, blocks packed by hand",
    "rivals-live-live-messages": "Live, a call a message",
    "rivals-replay-replay-calls": "Replay, a call a trade",
    "rivals-replay-replay-columns": "Replay, compiled work",
    "rivals-store-replay-from-store": "Replaying what was stored",
    "rivals-store-store": "Recording a stream",
    "spark-asof-asof": "Spark: as-of join",
    "spark-query-payloads-group-by-symbol": "Spark: group by symbol, payloads",
    "spark-query-records-all-columns": "Spark: all columns",
    "spark-query-records-group-by-symbol": "Spark: group by symbol",
    "spark-query-records-minute-bars": "Spark: minute bars",
    "spark-query-records-ten-minutes-of-a-symbol": "Spark: ten minutes of a symbol",
}
_SPARK: Final = "Spark plans and schedules each query in a Java process; polars and DuckDB run in the caller's process."
WHY: Final = {
    "hub-restart": "Most of it is the import of blackbox, numpy and numba.",
    "hub-put-recorded": "Client and hub judge and number each put in Python, and write it to a journal first.",
    "repair-repair": "The message comes from an archive in another process, in the order of the slice.",
    "sites-sites-latency": "A hub stores a message before it is published and relayed.",
    "table-table-join-10000": "A table starts a subscriber, and an archive makes the image.",
    "latency-latency": "A message waits up to 100 µs for its block to fill and passes from the slice thread to a"
    " worker; pyzmq sends each message at once and reads it in the calling thread.",
    "rivals-live-live-blocks": "The rivals' blocks have no topics, sequence numbers or filters, and iceoryx2 and Zenoh"
    " avoid the kernel; blackbox checks columns, checksum and topics, in two threads.",
    "rivals-live-live-messages": "blackbox numbers, packs, checks and unpacks single messages; its gain is in columns,"
    " the last rows of that table.",
    "rivals-replay-replay-calls": "DBNStore makes a record of each message in Rust; `fields=` makes the requested"
    " values.",
    "spark-asof-asof": "polars and DuckDB join columns in the caller's process; blackbox passes rows to Spark.",
    "spark-query-payloads-group-by-symbol": _SPARK,
    "spark-query-records-all-columns": _SPARK,
    "spark-query-records-group-by-symbol": _SPARK,
    "spark-query-records-minute-bars": _SPARK,
    "spark-query-records-ten-minutes-of-a-symbol": _SPARK,
}
