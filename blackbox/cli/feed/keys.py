"""`blackbox keys`: make the keys of a feed's `[security]`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import print_json, say
from blackbox.errors import ConfigError
from blackbox.feed.feed import check_name


class Action(StrEnum):
    """Actions on keys."""

    NEW = "new"
    GROUP = "group"


def keys(
    action: Annotated[
        Action, typer.Argument(metavar="new|group", help="Make a pair of keys, or a group key for multicast.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of their owner, such as `exchange` or `desk`.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to write to, made if missing.")] = Path(
        "keys"
    ),
    as_json: JsonOption = False,
) -> None:
    """Make keys for the `security` of a feed file: NAME.key to give to others, and NAME.key_secret to keep.

    Prints the public key, never the secret one. Files that exist are not replaced. `group` makes NAME.group_key, which
    all sides of a multicast line share.

    JSON has `public_key`, `public_file` and `secret_file`; with `group`, `group_file`.

    For example:

    blackbox keys new exchange

    blackbox keys new desk --out ~/keys

    blackbox keys group floor
    """
    with exit_statuses():
        check_name(name)
        out = Path(os.path.expanduser(out))  # noqa: PTH111 - Path's own fails for an unknown user
        if action is Action.GROUP:
            _make_group_key(out / f"{name}.group_key", as_json=as_json)
            return
        from blackbox.transport.security.curve import make_pair

        for path in (out / f"{name}.key", out / f"{name}.key_secret"):
            if os.path.lexists(path):
                raise ConfigError(f"{path} already exists: choose another name")
        public, public_file, secret_file = make_pair(out, name)
        if as_json:
            print_json({"public_key": public, "public_file": str(public_file), "secret_file": str(secret_file)})
        else:
            typer.echo(public)
        say(f"secret key: {secret_file}, which only you can read: it is the `key` of this side's [security]")
        say(f"public key: {public_file}, for the other side")
        say("  where publishers, archives and relays bind: into the directory that `allowed_keys` names")
        say("  where subscribers, recorders and relays connect: as one of `server_keys`")


def _make_group_key(path: Path, *, as_json: bool) -> None:
    from blackbox.transport.security.group_key import make_group_key

    if os.path.lexists(path):
        raise ConfigError(f"{path} already exists: choose another name")
    make_group_key(path)
    if as_json:
        print_json({"group_file": str(path)})
    say(f"group key: {path}, which only you can read: the `group_key` of [security] on all sides of a multicast line")
