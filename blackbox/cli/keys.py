"""`blackbox keys`: make the keys of a feed's `[security]`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError
from blackbox.feed.feed import check_name


class Action(StrEnum):
    """What to do with keys."""

    NEW = "new"


def keys(
    action: Annotated[Action, typer.Argument(metavar="new", help="Make a pair.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose keys they are, such as `exchange` or `desk`.")],
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where to write them; made if need be.")
    ] = Path("keys"),
) -> None:
    """Make keys for the `security` of a feed file: NAME.key, which others get, and NAME.key_secret, which stays.

    Prints the public key. Nothing that is there is replaced.

    For example:

    blackbox keys new exchange

    blackbox keys new desk --dir ~/keys
    """
    with exit_statuses():
        from blackbox.transport.curve import make_pair

        del action  # there is one
        check_name(name)
        directory = directory.expanduser()
        for path in (directory / f"{name}.key", directory / f"{name}.key_secret"):
            if os.path.lexists(path):
                raise ConfigError(f"{path} exists already, expected another name: keys are never replaced")
        public, public_file, secret_file = make_pair(directory, name)
        typer.echo(public)
        say(f"secret key: {secret_file}, which only you can read: it is the `key` of this side's [security]")
        say(f"public key: {public_file}, for the other side")
        say("  where publishers, archives and relays bind: into the directory that `allowed_keys` names")
        say("  where subscribers, recorders and relays connect: as one of `server_keys`")
