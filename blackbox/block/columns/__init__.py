"""Columns outside blocks: numpy, Arrow, pandas, polars."""
