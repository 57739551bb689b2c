"""Databento Binary Encoding (DBN), versions 1 to 3: metadata, then records.

Read: files, zstd, plain or gzip. Fields and widths are those of Databento's `databento-dbn` 0.72.
"""

from blackbox_feeds.dbn.source import PRICE_SCALE, SCHEMA, SCHEMA_TS_OUT, Dbn, export_dbn

__all__ = ["PRICE_SCALE", "SCHEMA", "SCHEMA_TS_OUT", "Dbn", "export_dbn"]
