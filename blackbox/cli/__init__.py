"""The command line: `blackbox demo | publish | subscribe | stat`, and `record | import | replay | inspect | ...`.

In: arguments. Out: text and exit statuses. typer and rich are imported in this room only.
"""

from blackbox.cli.interrupts import end_at_once

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point `blackbox`."""
    end_at_once()
    from blackbox.cli.program import run  # takes a while, in which nothing needs to be ended in order

    run()
