"""`blackbox positions`: the positions of named consumers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from blackbox.block.position import Position
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import columns_table, print_json, say, stdout
from blackbox.errors import ConfigError, PositionError
from blackbox.timestamps import clock_text, date_of

if TYPE_CHECKING:
    from blackbox.archive.consumer_positions import Kept, PositionFile


_ZONE: Final = "UTC"


def positions(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the consumers' positions.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only this consumer.", show_default=False)
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SLICE:EPOCH:SEQUENCE",
            help="Move the consumer of --name to this position, as listed, or as `put` prints it. Can be repeated.",
        ),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Delete the positions of the consumer of --name.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the positions of named consumers, or move or delete those of one.

    The next message of a consumer is the one with the listed sequence number. A consumer that is moved back receives
    messages again; a deleted one starts again like a new consumer. Stop a consumer before you change it.

    JSON is an array of one object per consumer: `consumer`, `feed`, `kept_ns` (ns since 1970), and `slices` with
    `slice`, `epoch` and `sequence`.

    For example:

    blackbox positions positions

    blackbox positions positions --json

    blackbox positions positions --name strategy-1 --to 0:1795510000000000000:1000

    blackbox positions positions --name strategy-1 --forget
    """
    with exit_statuses():
        from blackbox.archive.consumer_positions import owned_consumers

        if (to or forget) and name is None:
            raise ConfigError(f"{'--forget' if forget else '--to'} was given without --name: name the consumer")
        if to and forget:
            raise ConfigError("--to and --forget were both given: choose one")
        if name is not None and (to or forget):
            change = _change(_file(directory, name), None if forget else to)
            if as_json:
                print_json([] if change is None else [_object(name, change)])
            return
        found = {each: file.read() for each, file in owned_consumers(directory).items() if name in (None, each)}
        known = {each: kept for each, kept in found.items() if kept is not None}
        if name is not None and not known:
            raise _unknown(_file(directory, name))
        if as_json:
            print_json([_object(each, kept) for each, kept in known.items()])
        else:
            _list(known)


def _file(directory: Path, name: str) -> PositionFile:
    """Return the file of a consumer; an archive's is named OWNER/NAME."""
    from blackbox.archive.consumer_positions import PositionFile

    owner, _, plain = name.rpartition("/")
    is_place = owner not in (".", "..") and "/" not in owner
    return PositionFile(directory / owner, plain) if is_place else PositionFile(directory, name)


def _object(name: str, kept: Kept) -> dict[str, Any]:
    slices = [{"slice": n, "epoch": epoch, "sequence": number} for n, (epoch, number) in sorted(kept.slices.items())]
    return {"consumer": name, "feed": kept.feed, "kept_ns": kept.kept_ns, "slices": slices}


def _list(known: dict[str, Kept]) -> None:
    table = columns_table(("consumer", "feed", "kept", "slice", "epoch", "next message"), left=3)
    for name, kept in known.items():
        when = f"{date_of(kept.kept_ns, _ZONE)} {clock_text(kept.kept_ns, _ZONE, 0)} {_ZONE}"
        for slice_id, position in sorted(kept.slices.items()):
            table.add_row(name, kept.feed, when, *map(str, (slice_id, *position)))  # as `--to` takes it
    stdout.print(table)


def _unknown(file: PositionFile) -> PositionError:
    return PositionError(f"{file.path} was not found, expected the positions of consumer {file.name!r}")


def _change(file: PositionFile, to: list[str] | None) -> Kept | None:
    """Move a consumer, or forget it without `to`. Return what the file holds now."""
    kept = file.read()
    if kept is None:
        raise _unknown(file)
    file.own(0)
    try:
        if to is None:
            file.forget()
            say(f"forgot consumer {file.name!r}")
        else:
            file.keep(kept.feed, _moved(kept.slices, to))
            say(f"moved consumer {file.name!r} to {', '.join(to)}")
        return file.read()
    finally:
        file.close()


def _moved(positions: dict[int, Position], to: list[str]) -> dict[int, Position]:
    """Return positions with those moved that are named."""
    moved = dict(positions)
    for text in to:
        try:
            slice_id, epoch, sequence = map(int, text.split(":"))
        except ValueError:
            raise ConfigError(
                f"to was {text!r}, expected SLICE:EPOCH:SEQUENCE such as 0:1795510000000000000:1000"
            ) from None
        moved[slice_id] = Position(epoch, sequence)
    return moved
