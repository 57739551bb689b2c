"""`blackbox demo`: a session through the whole machine, live, recorded and replayed."""

from blackbox.cli.demo.command import demo

__all__ = ["demo"]
