"""Trades and quotes of the consolidated tape, as QuantConnect's Lean keeps them: CSV in zip archives.

Read: archives, or directories of them. Described in the README of Lean's `Data/equity`, ticks.
"""

from blackbox_feeds.tape.source import PRICE_SCALE, SCHEMA, Tape, export_tape

__all__ = ["PRICE_SCALE", "SCHEMA", "Tape", "export_tape"]
