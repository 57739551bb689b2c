"""`blackbox bridge`: carry a feed to other systems, or their messages into a feed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from blackbox.cli.ui.feeds import FeedOption, load_feed, named_options
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import PrefixOption, SymbolOption, prefixes_of, symbols_of
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
            help="The other side: ws://HOST:PORT to listen at; redis://HOST:PORT/DATABASE; "
            "redis+pubsub://HOST:PORT; amqp://USER@HOST/VHOST; rediss and amqps with TLS.",
        ),
    ],
    prefix: PrefixOption = None,
    symbol: SymbolOption = None,
    feed: FeedOption = None,
    into: Annotated[
        bool, typer.Option("--in", help="The other direction: carry messages of URL into the feed.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="Option of the bridge, see `bridges` in the docs. Can be repeated.",
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
    metrics: MetricsOption = None,
) -> None:
    """Carry a feed to browsers, by JSON over WebSocket; to Redis; or to an exchange of RabbitMQ; or back into a feed.

    Browsers send their own prefixes, and the bridge subscribes only to those. Every client that can connect reads the
    feed with the rights of this process; without `-o origins=` all web pages can. After a restart, a bridge to Redis
    continues after the last entry, and a bridge to RabbitMQ with a name continues at its position, if the feed has
    archives.

    With --in, the messages of a queue, of a stream or of browsers are put to the feed's hub. For a feed without a hub,
    the bridge publishes what its subscribers want from an exchange. Plug-ins add schemes. Ends at Ctrl-C or SIGTERM.

    All users of this host can read a password within URL in the list of processes: use --password-file or the
    environment.

    For example:

    blackbox bridge ws://127.0.0.1:8080 --feed feed.toml -o origins=https://desk.example

    blackbox bridge redis://127.0.0.1:6379/0 --prefix AAPL. --prefix MSFT. --feed feed.toml -o keep=1000000

    blackbox bridge redis+pubsub://127.0.0.1:6379 --symbol AAPL --symbol BRK.B --feed feed.toml

    blackbox bridge amqp://desk@127.0.0.1/prices --in --feed feed.toml -o exchange=ticks --password-file secret
    """
    with exit_statuses():
        from blackbox.cli.ui.event_loop import run_in_loop
        from blackbox.services.bridge.bridge import open_bridge
        from blackbox.services.bridge.url import has_password, with_password

        password = _password(password_file)
        if password is not None:
            url = with_password(url, password)
        elif has_password(url):
            warn(f"all users of this host can read the password in URL: use --password-file or {PASSWORD_VARIABLE}")
        made = open_bridge(
            load_feed(feed), url, prefixes_of(prefix), symbols=symbols_of(symbol), into=into, **named_options(option)
        )
        with monitored(metrics, made):
            work = made.carry(say)
            if work is not None:
                import uvloop  # in the same extra as the bridges that need a loop

                run_in_loop(work, uvloop.new_event_loop)


def _password(file: Path | None) -> str | None:
    """Return the password from a file, else from the environment. Raises ConfigError that does not show it."""
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE) or None
    with file.open("rb") as opened:  # may be a pipe, such as <(pass show redis)
        text = opened.read(_MOST_PASSWORD_BYTES + 1)
    password = text.removesuffix(b"\n").removesuffix(b"\r")
    if not password or len(text) > _MOST_PASSWORD_BYTES or b"\n" in password:
        raise ConfigError(f"{file} had {len(text)} bytes or more, expected one line, of at most {_MOST_PASSWORD_BYTES}")
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} was not UTF-8, expected a password") from None
