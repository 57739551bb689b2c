"""`blackbox demo`: a session end to end: live, recorded and replayed."""

from blackbox.cli.demo.command import demo

__all__ = ["demo"]
