"""A generated NASDAQ session of any size, as valid ITCH 5.0 bytes, the same for the same seed.

Read: nothing. Rates, symbols and prices are random, so that tests and demos need no file.
"""

from blackbox_feeds.synthetic.source import Synthetic

__all__ = ["Synthetic"]
