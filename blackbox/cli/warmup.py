"""`blackbox warmup`: compile in advance everything that runs later."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from blackbox.cli.ui.feeds import SourceOptions, feed_for, open_with_options
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.progress import LINE_EVERY_S, at_most_every
from blackbox.cli.ui.status import ended_at_once, exit_statuses
from blackbox.cli.ui.terminal import print_json, say, stderr
from blackbox.feed.feed import Feed
from blackbox.numbers import counted, duration
from blackbox.user_cache import draft_in

_REMOVALS: Final = 100
"""Attempts to remove a directory: each file written meanwhile may make one fail."""


def warmup(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE...]",
            help="Sources, NAME:ARGUMENT, to compile their decoders too.",
            show_default=False,
        ),
    ] = None,
    option: SourceOptions = None,
    as_json: JsonOption = False,
) -> None:
    """Compile the kernels of feeds, recordings, replays, venues, relays and hubs now, and keep them in the cache.

    Run it when you build an image, or first in CI, so that later starts do not compile. It publishes, records and
    replays a few messages in a temporary directory, on free ports of 127.0.0.1. Takes minutes the first time, seconds
    when all kernels are cached. For decoders of other formats than ITCH, give a SOURCE. Exits with status 1 if the
    cache cannot be written.

    JSON has `cache`, `compiled`, `from_cache` (kernels) and `seconds`.

    For example:

    blackbox warmup

    blackbox warmup dbn:sample.dbn.zst --json

    XDG_CACHE_HOME=/opt/cache blackbox warmup    in a Dockerfile, with the same variable when the image runs
    """
    with exit_statuses():
        from numba.core.event import install_listener

        from blackbox.cli.ui import warm
        from blackbox.native.compile.kernel_cache import cache_root

        with draft_in(cache_root(), "warmup-", "compiled kernels cannot be cached"):
            pass  # an error now, instead of after minutes
        began = time.monotonic()
        with (
            TemporaryDirectory(prefix="blackbox-warmup-") as place,
            stderr.status("compiling") as shown,
            ThreadPoolExecutor(1) as thread,
            ended_at_once(lambda: _remove(Path(place)), shown.stop),  # what compiles would go on for minutes
        ):
            directory = Path(place)

            def show(kernel: str) -> None:
                shown.update(f"compiling {kernel}")
                say_some(f"compiling {kernel}, {counted(compiled.count, 'kernel')} so far")

            say_some = at_most_every(LINE_EVERY_S, _quiet if stderr.is_terminal else say)
            compiled = warm.Compiled(show)
            with install_listener("numba:compile", compiled):
                for name, part in warm.PARTS.items():
                    before = compiled.count, warm.count_loaded()
                    thread.submit(part, directory).result()
                    new, loaded = compiled.count - before[0], warm.count_loaded() - before[1]
                    say(f"{name}: {counted(new, 'kernel')} compiled, {loaded} from the cache")
                for number, spec in enumerate(sources or ()):
                    thread.submit(_import, spec, option, directory / f"source-{number}").result()
        seconds, loaded = time.monotonic() - began, warm.count_loaded()
        if as_json:
            print_json(
                {
                    "cache": str(cache_root()),
                    "compiled": compiled.count,
                    "from_cache": loaded,
                    "seconds": round(seconds, 3),
                }
            )
        say(
            f"{counted(compiled.count, 'kernel')} compiled, {loaded} from the cache, in {duration(seconds * 1e9)}: "
            f"{cache_root()}"
        )


def _remove(directory: Path) -> None:
    """Remove a directory in which other threads may still write files."""
    for _ in range(_REMOVALS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return


def _import(spec: str, options: list[str] | None, out: Path) -> None:
    from blackbox.archive.importing.import_days import import_days

    feed = Feed.local("warmup", slices=2)
    source = open_with_options(spec, options, feed)
    done = import_days(feed_for(feed, source, spec), out, [source], date=None)
    say(f"{spec}: {counted(sum(day.messages for day in done), 'message')} imported")


def _quiet(_text: str) -> None:
    """Ignore text: a terminal shows each kernel in place."""
