"""Databento's live gateway: session, and resumption after an interruption."""
