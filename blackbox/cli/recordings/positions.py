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
    release: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help='Let this consumer start again, after lost messages ended it (on_gap="stop").',
            show_default=False,
        ),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Delete the positions of the consumer of --name.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the positions of named consumers, or move, release or delete those of one.

    The next message of a consumer is the one with the listed sequence number. A consumer that is moved back receives
    messages again; a deleted one starts again like a new consumer. Stop a consumer before you change it.

    A consumer with on_gap="stop" that lost messages is held, and does not start until it is released. It then goes on
    from its position, over the loss.

    JSON is an array of one object per consumer: `consumer`, `feed`, `kept_ns` (ns since 1970), `slices` with `slice`,
    `epoch` and `sequence`, and `held` with the same and `count` for each loss.

    For example:

    blackbox positions positions

    blackbox positions positions --json

    blackbox positions positions --name strategy-1 --to 0:1795510000000000000:1000

    blackbox positions positions --release strategy-1

    blackbox positions positions --name strategy-1 --forget
    """
    with exit_statuses():
        from blackbox.archive.consumer_positions import owned_consumers

        if (to or forget) and name is None:
            raise ConfigError(f"{'--forget' if forget else '--to'} was given without --name: name the consumer")
        if sum(map(bool, (to, forget, release))) > 1:
            raise ConfigError("more than one of --to, --release and --forget were given: choose one")
        if release is not None or (name is not None and (to or forget)):
            changed = release or name or ""
            change = _change(_file(directory, changed), to, forget=forget)
            if as_json:
                print_json([] if change is None else [_object(changed, change)])
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
    held = [
        {"slice": n, "epoch": lost.position.epoch, "sequence": lost.position.sequence, "count": lost.count}
        for n, lost in sorted(kept.held.items())
    ]
    return {"consumer": name, "feed": kept.feed, "kept_ns": kept.kept_ns, "slices": slices, "held": held}


def _list(known: dict[str, Kept]) -> None:
    table = columns_table(("consumer", "feed", "kept", "slice", "epoch", "next message", "held"), left=3)
    for name, kept in known.items():
        when = f"{date_of(kept.kept_ns, _ZONE)} {clock_text(kept.kept_ns, _ZONE, 0)} {_ZONE}"
        for slice_id in sorted(kept.slices | kept.held):
            position = kept.slices.get(slice_id, ("", ""))  # as `--to` accepts it
            table.add_row(name, kept.feed, when, *map(str, (slice_id, *position, kept.held.get(slice_id, ""))))
    stdout.print(table)


def _unknown(file: PositionFile) -> PositionError:
    return PositionError(f"{file.path} was not found, expected the positions of consumer {file.name!r}")


def _change(file: PositionFile, to: list[str] | None, *, forget: bool) -> Kept | None:
    """Forget a consumer, move it, or, without `to`, release it. Return the file's new content."""
    if not file.path.exists():  # before a lock file is made
        raise _unknown(file)
    file.own(0)
    try:
        kept = file.read()
        if kept is None:
            raise _unknown(file)
        if forget:
            file.forget()
            say(f"forgot consumer {file.name!r}")
        elif not to:
            file.keep(kept.feed, kept.slices, accepted=kept.released())
            say(f"released consumer {file.name!r}")
        else:
            file.keep(kept.feed, _moved(kept.slices, to), kept.held, kept.accepted)
            say(f"moved consumer {file.name!r} to {', '.join(to)}")
        return file.read()
    finally:
        file.close()


def _moved(positions: dict[int, Position], to: list[str]) -> dict[int, Position]:
    """Return positions with the given ones moved."""
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
