"""IEX TOPS 1.6 and DEEP 1.0, from packet captures of IEX-TP.

Read: pcap and pcapng, plain or gzip. Described in IEX's "Transport Protocol", "TOPS" and "DEEP" specifications.
"""

from blackbox_feeds.iex.source import DEEP10, PRICE_SCALE, TOPS16, Iex, export_iex

__all__ = ["DEEP10", "PRICE_SCALE", "TOPS16", "Iex", "export_iex"]
