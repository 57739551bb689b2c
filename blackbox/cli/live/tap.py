"""`blackbox tap`: the messages that pass a publisher, a relay or a hub, as they come."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy
import typer

from blackbox.block.batch.plain_message import as_object
from blackbox.cli.ui.feeds import ConfirmTimeout, feed_text, load_feed
from blackbox.cli.ui.messages import describe
from blackbox.cli.ui.options import (
    CountOption,
    JsonLinesOption,
    PrefixOption,
    SymbolOption,
    choice_of,
    prefixes_of,
    symbols_of,
)
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.feed.schema.schema import load_schema, schema_of
from blackbox.notebook import escaped
from blackbox.numbers import counted, rate
from blackbox.timestamps import time_text

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch
    from blackbox.services.monitor.tap import Tap

_REPORT_S: Final = 1.0
_NAMES: Final = 65_536
"""Number of topics to keep the names of."""
_TOP: Final = 10
"""Symbols shown by name in a line of rates."""


def tap(
    feed: Annotated[
        str | None,
        typer.Argument(
            metavar="[FEED]",
            help="Feed file of a publisher or a hub, or the file below a relay. Default: the built-in feed `local`.",
            show_default=False,
        ),
    ] = None,
    prefix: PrefixOption = None,
    symbol: SymbolOption = None,
    field: Annotated[
        list[str] | None, choice_of("--field", "NAME", "Only this field of the records.", default="all fields")
    ] = None,
    rates: Annotated[
        bool,
        typer.Option(
            "--rate", help="Print messages per second instead: of each symbol, or of each --prefix if one is given."
        ),
    ] = False,
    enough: CountOption = 0,
    timeout: ConfirmTimeout = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Show the messages that pass a publisher, a relay or a hub, decoded, as they come.

    A tap slows nothing: it is disconnected before a publisher or a relay waits for it, and connects again a second
    later. Above 4 MB/s it pauses its subscription. A terminal that is too slow gets the newest messages. stderr says
    how many messages were not shown.

    Each line has the venue's time, the topic and the fields; JSON is as in `blackbox dump`. With --rate JSON has
    `received` and `missed`, messages of all topics with the same keys, and `counts`. Ends at Ctrl-C.

    For example:

    blackbox tap feed.toml --symbol AAPL --field price --field size

    blackbox tap below-relay.toml --prefix AAPL. --prefix MSFT. --json

    blackbox tap feed.toml --rate
    """
    with exit_statuses():
        from blackbox.services.monitor.tap import Tap

        shape = load_feed(feed)
        names = _checked(field, shape)
        with Tap(shape, prefixes_of(prefix), symbols=symbols_of(symbol)) as running:
            say(f"waiting for {feed_text(shape)}")
            running.wait_confirmed(timeout)
            say("tapping")
            report = _Report(running)
            try:
                if rates:
                    _print_rates(running, report, prefixes_of(prefix) if prefix else (), enough, as_json)
                else:
                    _print_messages(running, report, names, enough, as_json)
            finally:
                report.say_rest()


def _checked(field: list[str] | None, feed: Feed) -> frozenset[str] | None:
    """Return the names of `--field`. Raises ConfigError for one that no record of the feed's schema has."""
    known = {name for dtype in load_schema(feed.schema).records.values() for name in dtype.names or ()}
    unknown = sorted(set(field or ()) - known) if known else []
    if unknown:
        raise ConfigError(f"--field was {unknown[0]!r}, expected one of {', '.join(sorted(known))}")
    return frozenset(field) if field else None


class _Report:
    """Reports messages that were not shown, on stderr: once a second, and at the end."""

    def __init__(self, running: Tap) -> None:
        self._tap = running
        self._due = time.monotonic() + _REPORT_S
        self._told = self._hidden()

    def _hidden(self) -> tuple[int, int]:
        now = self._tap.statistics()
        return now.missed, now.skipped

    def look(self) -> None:
        """Report notes at once, counts when due."""
        for note in self._tap.notes():
            say(note)
        if time.monotonic() >= self._due:
            self.say_rest()

    def say_rest(self) -> None:
        """Report what was not shown since the last report."""
        self._due = time.monotonic() + _REPORT_S
        before, self._told = self._told, self._hidden()
        missed, skipped = (now - then for now, then in zip(self._told, before, strict=True))
        if missed:
            say(f"not shown: {counted(missed, 'message')} of these keys, not received: too many, or dropped")
        if skipped:
            say(f"not shown: {counted(skipped, 'message')}, received but not printed in time")


def _print_messages(running: Tap, report: _Report, names: frozenset[str] | None, enough: int, as_json: bool) -> None:
    encode = msgspec.json.Encoder().encode
    shown = 0
    while not enough or shown < enough:
        for batch in running.read():
            lines = _json_lines(batch, names, encode) if as_json else _lines(batch, names)
            taken = list(islice(lines, enough - shown) if enough else lines)
            shown += len(taken)
            sys.stdout.buffer.write(b"".join(taken))
            sys.stdout.buffer.flush()
            report.look()
        report.look()


def _lines(batch: Batch, names: frozenset[str] | None) -> Iterator[bytes]:
    schema = batch.schema or schema_of(batch.block.schema_id)
    return (describe(message, schema, names).encode(errors="backslashreplace") + b"\n" for message in batch)


def _json_lines(batch: Batch, names: frozenset[str] | None, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    schema, times = batch.schema or schema_of(batch.block.schema_id), {"ts_out": batch.ts_out, "ts_recv": batch.ts_recv}
    for message in batch:
        found = as_object(message, schema) | times
        if names is not None and "record" in found:
            found["record"] = {name: value for name, value in found["record"].items() if name in names}
        yield encode(found) + b"\n"


def _print_rates(running: Tap, report: _Report, prefixes: tuple[bytes, ...], enough: int, as_json: bool) -> None:
    """Count for a second, print, and begin again."""
    names_of = lru_cache(_NAMES)(partial(_names, prefixes, running.feed.symbol_rule))
    before, end = (0, 0, 0), time.monotonic()  # messages that came before count in the first line
    while not enough or before[0] < enough:
        counts, began = Counter[str](), end
        while (left := began + _REPORT_S - time.monotonic()) > 0:
            for batch in running.read(left):
                counts += _count(batch, names_of)
        end, done = time.monotonic(), running.statistics()
        now, seconds = (done.chosen, done.received, done.missed), end - began
        chosen, received, missed = (after - then for after, then in zip(now, before, strict=True))
        before = now
        if as_json:
            found = {
                "ts": time.time_ns(),
                "seconds": seconds,
                "received": received,
                "missed": missed,
                "counts": dict(counts.most_common()),
            }
            line = msgspec.json.encode(found)
        else:
            line = _rate_line(counts, seconds, chosen, received, missed).encode(errors="backslashreplace")
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        report.look()


def _names(prefixes: tuple[bytes, ...], rule: SymbolRule, topic: bytes) -> tuple[str, ...]:
    """Return the prefixes that a topic is counted by, or without prefixes its symbol."""
    found = [each for each in prefixes if topic.startswith(each)] or [rule.symbol_of(topic)]
    return tuple(name.decode(errors="backslashreplace") for name in found)


def _count(batch: Batch, names_of: Callable[[bytes], tuple[str, ...]]) -> Counter[str]:
    """Count messages by name."""
    found, topics = Counter[str](), batch.block.topics
    index = batch.block.topic_index if batch.rows is None else batch.block.topic_index[batch.rows]
    for topic, count in zip(topics, numpy.bincount(index).tolist(), strict=False):  # later topics have no message
        for name in names_of(topic) if count else ():
            found[name] += count
    return found


def _rate_line(counts: Counter[str], seconds: float, chosen: int, received: int, missed: int) -> str:
    seen = f", {100 * received / (received + missed):.3g} % of the messages seen" if missed else ""
    shown = [f"{escaped(name)} {rate(count / seconds)}" for name, count in counts.most_common(_TOP)]
    rest = counts.total() - sum(count for _, count in counts.most_common(_TOP))
    if rest:
        shown.append(f"{len(counts) - _TOP} others {rate(rest / seconds)}")
    return f"{time_text(time.time_ns(), 0)} {rate(chosen / seconds)}{seen}: {', '.join(shown) or 'nothing'}"
