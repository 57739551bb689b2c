"""`blackbox bridge`: carry a feed over to other systems, or theirs into a feed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from blackbox.cli.ui.feeds import FeedOption, load_feed, named_options
from blackbox.cli.ui.status import exit_statuses, warn
from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError

PASSWORD_VARIABLE: Final = "BLACKBOX_BRIDGE_PASSWORD"
_MOST_PASSWORD_BYTES: Final = 4_096


def bridge(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The other side: ws://HOST:PORT, where to serve; redis://HOST:PORT/DATABASE; "
            "redis+pubsub://HOST:PORT; amqp://USER@HOST/VHOST; rediss and amqps with TLS.",
        ),
    ],
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only topics that start with this.")] = "",
    feed: FeedOption = None,
    into: Annotated[bool, typer.Option("--in", help="The other way: carry what is there into the feed.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="Option of the bridge, as docs/bridges.md has them. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"File with the password for URL, one line. Default: the variable {PASSWORD_VARIABLE}, if it is set.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Carry a feed over: to browsers, by JSON over WebSocket; to streams of a Redis; to an exchange of a RabbitMQ.

    Browsers ask for prefixes, and what nobody asks for is not subscribed to. Whoever can connect may read all that this
    process may; without `-o origins=` any page may. To Redis a bridge goes on from the last entry when it is started
    again, to a RabbitMQ where it was if it has a name; both if the feed has archives.

    With --in a queue, a stream, or what browsers put, is put to the feed's hub; without a hub, what is wanted of the
    feed is taken from an exchange, and published. Other packages add schemes. Ends at Ctrl-C or SIGTERM.

    A password within URL can be read in the list of processes by every user of this host: give it by --password-file or
    the environment.

    For example:

    blackbox bridge ws://127.0.0.1:8080 --feed feed.toml -o origins=https://desk.example

    blackbox bridge redis://127.0.0.1:6379/0 AAPL. --feed feed.toml -o keep=1000000

    blackbox bridge amqp://desk@127.0.0.1/prices --in --feed feed.toml -o exchange=ticks --password-file secret
    """
    with exit_statuses():
        from blackbox.bridge.bridge import open_bridge
        from blackbox.bridge.url import has_password, with_password
        from blackbox.cli.ui.event_loop import run_in_loop

        password = _password(password_file)
        if password is not None:
            url = with_password(url, password)
        elif has_password(url):
            warn(f"every user of this host can read the password in URL: use --password-file or {PASSWORD_VARIABLE}")
        work = open_bridge(load_feed(feed), url, prefix.encode(), into=into, **named_options(option)).carry(say)
        if work is not None:
            run_in_loop(work)


def _password(file: Path | None) -> str | None:
    """Return the password of a file, else of the environment. Raises ConfigError that does not show it."""
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE) or None
    with file.open("rb") as opened:  # a pipe as well, such as <(pass show redis)
        text = opened.read(_MOST_PASSWORD_BYTES + 1)
    password = text.removesuffix(b"\n").removesuffix(b"\r")
    if not password or len(text) > _MOST_PASSWORD_BYTES or b"\n" in password:
        raise ConfigError(f"{file} had {len(text)} bytes or more, expected one line, of at most {_MOST_PASSWORD_BYTES}")
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} was not UTF-8, expected a password") from None
