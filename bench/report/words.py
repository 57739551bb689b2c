"""Texts of the summary page by contest: its subject, and why a rival is ahead.

Keys are the contests' slugs, made of file and test. The default subject is the contest's title.
"""

from __future__ import annotations

from typing import Final

ASKED: Final = {
    "bursts-bursts": "Bursts of ten times the mean: p99",
    "delivery-delivery": "Delivery to working callbacks",
    "fanout-fanout": "With a slow subscriber: p99",
    "latency-latency": "Latency, one message at a time",
    "messages-messages": "A Python call a message",
    "replay-replay-in-process": "Replay in process",
    "replay-replay-on-the-wire": "Replay on the wire",
    "rivals-live-live-blocks": "Live, blocks packed by hand",
    "rivals-live-live-messages": "Live, a call a message",
    "rivals-replay-replay-calls": "Replay, a call a trade",
    "rivals-replay-replay-columns": "Replay, compiled work",
    "rivals-store-store": "Recording a stream",
    "spark-asof-asof": "Spark: as-of join",
}
_SPARK: Final = "Spark plans and schedules each query in a Java process; polars and DuckDB run in the caller's process."
WHY: Final = {
    "hub-put-recorded": "Client and hub judge and number each put in Python, and write it to a journal first.",
    "repair-repair": "The message comes from an archive in another process, in the order of the slice.",
    "sites-sites-latency": "A hub stores a message before it is published and relayed.",
    "table-table-join-10000": "A table starts a subscriber, and an archive makes the image.",
    "latency-latency": "A message waits up to 100 µs for its block to fill and passes from the slice thread to a"
    " worker; pyzmq sends each message at once and reads it in the calling thread.",
    "rivals-live-live-blocks": "The rivals' blocks have no topics, sequence numbers or filters, and iceoryx2 avoids the"
    " kernel; blackbox checks columns, checksum and topics, in two threads.",
    "rivals-live-live-messages": "blackbox numbers, packs, checks and unpacks single messages; its gain is in columns.",
    "rivals-replay-replay-calls": "DBNStore makes a record of each message in Rust, from one file in order.",
    "spark-asof-asof": "polars and DuckDB join columns in the caller's process; blackbox passes rows to Spark.",
} | {
    f"spark-query-{query}": _SPARK
    for query in ("one-column", "group-by-symbol", "ten-minutes-of-a-symbol", "minute-bars")
}
