"""The command line: `blackbox demo | publish | subscribe | stat`, and `record | import | replay | inspect | ...`.

In: arguments. Out: text and exit statuses. typer and rich are imported in this room only.
"""

import io
import sys

from blackbox.cli.interrupts import end_at_once

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point `blackbox`."""
    end_at_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # text that the locale cannot encode must not end a command
    from blackbox.cli.program import run  # takes some time, in which Ctrl-C may end the process

    run()
