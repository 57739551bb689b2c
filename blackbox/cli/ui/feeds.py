"""The feed of a command (a feed file, or the built-in feed `local`), and its source with options."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.environment import override
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import RAW
from blackbox.feed.slice import Slice
from blackbox.feed.source import Source, open_source, options_of, source_kind
from blackbox.feed.toml import from_document, to_toml
from blackbox.numbers import counted

LOCAL = Feed(
    name="local",
    slices=(
        Slice(endpoints=("tcp://127.0.0.1:17101",), share=(0, 2)),
        Slice(endpoints=("tcp://127.0.0.1:17102",), share=(1, 2)),
    ),
)
"""Two slices on this machine, as in `configs/local.toml`."""
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,18}")

FeedOption = Annotated[
    str | None,
    typer.Option(
        "--feed",
        metavar="FILE",
        help="Feed file (TOML), the same for publisher and subscribers. "
        "Default: the built-in feed `local`, two slices on 127.0.0.1, ports 17101 and 17102.",
        show_default=False,
    ),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of the source, such as `date=2019-12-30` for itch50 or `symbols=500` for synthetic. "
        "Can be repeated.",
        show_default=False,
    ),
]
ConfirmTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Time limit for the publishers to confirm. Default: no limit.",
        show_default=False,
    ),
]
SilenceTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.001,
        help="End with status 1 if a slice is silent for this time, without block or heartbeat, because its publisher "
        "was killed for example. Default: never.",
        show_default=False,
    ),
]


def load_feed(path: str | None) -> Feed:
    """Load a feed file; without one return `LOCAL`. The environment overrides settings of both."""
    if path is not None:
        return Feed.load(path)
    document = tomllib.loads(to_toml(LOCAL))
    return from_document(document, Feed) if override(document, Feed, os.environ) else LOCAL


def open_with_options(spec: str, texts: list[str] | None, feed: Feed, date: str | None = None) -> Source:
    """Open the source of `spec` with options of the form NAME=VALUE, the feed's topics, and a date if it takes one.

    Raises:
        ConfigError: the source, the form or an option is wrong.
    """
    options = ({} if feed.topic == LOCAL.topic else {"topic": feed.topic}) | named_options(texts)
    if date is not None and "date" in options_of(source_kind(spec)[0]):
        options.setdefault("date", date)
    return open_source(spec, **options)


def named_options(texts: list[str] | None) -> dict[str, Any]:
    """Return options of the form NAME=VALUE; digits are a number, unless they begin with a 0. Raises ConfigError."""
    options: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"option was {text!r}, expected NAME=VALUE, e.g. date=2019-12-30")
        options[name] = int(value) if _NUMBER.fullmatch(value) else value
    return options


class NamedSource(NamedTuple):
    """A source with its text on the command line."""

    spec: str
    source: Source


def check_schemas(named: Sequence[NamedSource]) -> None:
    """Raise ConfigError unless all sources have the same schema."""
    first, *others = named
    for each in others:
        if each.source.schema.name != first.source.schema.name:
            raise ConfigError(
                f"source {each.spec!r} has schema {each.source.schema.name!r}, but {first.spec!r} has "
                f"{first.source.schema.name!r}: publish them one at a time, each to its own feed"
            )


def in_order(named: Sequence[NamedSource]) -> list[Source]:
    """Return sources in the order of the times of their first messages, which are read: wrong files are found here.

    A live source must be the only one, and is not read.

    Raises SourceError if a source cannot be read, or has no messages; ConfigError for a live source among others.
    """
    from blackbox.feed.first_time import by_first_time
    from blackbox.feed.live_source import LiveSource

    live = [each for each in named if isinstance(each.source, LiveSource)]
    if live:
        if len(named) > 1:
            raise ConfigError(
                f"source {live[0].spec!r} is live and was given with {len(named) - 1} more: publish it alone, "
                "and other sources by other commands"
            )
        return [live[0].source]
    found = by_first_time(each.source for each in named)
    for each in found:
        if each.first_ns is None:
            raise SourceError(each.source.truncated or f"{each.source!r} has no messages, expected at least one")
    return [each.source for each in found]


def feed_text(feed: Feed) -> str:
    """Describe a feed by name and number of slices."""
    return f"feed {feed.name!r} ({counted(len(feed.slices), 'slice')})"


def feed_for(feed: Feed, source: Source, spec: str) -> Feed:
    """Return the feed with the source's schema. A feed with the default schema `raw` accepts any payload.

    Raises:
        ConfigError: the feed has another schema.
    """
    if feed.schema_name == RAW.name:
        return msgspec.structs.replace(feed, schema=source.schema.name)
    if feed.schema_name != source.schema.name:
        raise ConfigError(
            f"feed {feed.name!r} has schema {feed.schema_name!r} but source {spec!r} has {source.schema.name!r}: "
            "choose another feed file, or set its schema"
        )
    return feed
