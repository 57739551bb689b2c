"""`blackbox feed check`: load a feed file and check its endpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses, warn
from blackbox.cli.ui.terminal import bad_if, columns_table, print_json, stdout, titled
from blackbox.feed.environment import PREFIX
from blackbox.feed.feed import Feed
from blackbox.numbers import counted


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The feed file (TOML).")], as_json: JsonOption = False
) -> None:
    """Load a feed file, and show its endpoints with their topics, and the processes that listen there.

    Also reads the schema and the key files of the feed. Exits with status 1 if the file is wrong. Warnings and used
    ports do not change the status, because the feed's own publisher may run. Binds nothing.

    JSON has `file`, `feed`, `schema`, `key_bytes`, `channels`, `environment` (variables that override settings),
    `endpoints` and `warnings`.

    For example:

    blackbox feed check feed.toml

    blackbox feed check configs/nasdaq.toml --json | jq .endpoints
    """
    with exit_statuses():
        from blackbox.cli.feed.endpoints import check_files, endpoints_of, warnings_of

        feed = Feed.load(file)
        check_files(feed)
        endpoints = endpoints_of(feed)
        warnings = warnings_of(feed, endpoints)
        variables = sorted(name for name in os.environ if name.startswith(PREFIX))
        if as_json:
            print_json(
                {
                    "file": str(file),
                    "feed": feed.name,
                    "schema": feed.schema_name,
                    "key_bytes": feed.key_bytes,
                    "channels": feed.channels,
                    "environment": variables,
                    "endpoints": endpoints,
                    "warnings": warnings,
                }
            )
            return
        table = columns_table(("what", "endpoint", "bound at", "takes", "on this host"), left=5)
        for each in endpoints:
            bind = each.bind if each.bind != each.endpoint else ""
            table.add_row(each.what, each.endpoint, bind, each.takes, bad_if(each.used, each.state))
        title = f"{file}: feed {feed.name!r}, schema {feed.schema_name!r}, {counted(len(feed.slices), 'slice')}"
        stdout.print(titled(title, table))
        if variables:
            stdout.print(f"settings from the environment: {', '.join(variables)}", highlight=False, soft_wrap=True)
        for text in warnings:
            warn(text)
