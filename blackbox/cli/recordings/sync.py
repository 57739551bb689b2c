"""`blackbox sync`: copy closed days to an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.progress import reading
from blackbox.cli.ui.status import exit_statuses, lose
from blackbox.cli.ui.terminal import columns_table, print_json, stdout, titled
from blackbox.numbers import byte_size, count

if TYPE_CHECKING:
    from blackbox.archive.objects.sync import SyncedDay


def sync(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of recordings, of a feed's days, or of one day.")
    ],
    store: Annotated[str, typer.Argument(metavar="STORE", help="s3://BUCKET/PREFIX.")],
    as_json: JsonOption = False,
) -> None:
    """Copy closed days to an S3-compatible object store, as STORE/FEED/DATE.

    A day is closed when its session is over and no recorder adds to it. Each object is read back and compared; the
    manifest comes last, so that readers see whole days only. Nothing is deleted, and no day is replaced: a day that
    differs from its copy is reported, with status 4. An interrupted run is resumed by the next one.

    Credentials and region are those of the AWS tools. AWS_ENDPOINT_URL names another server than Amazon's. Needs
    pyarrow.

    `Recording.open` and commands that read days accept s3://BUCKET/PREFIX/FEED/DATE.

    JSON has `store` and `days`: `day`, `name`, `outcome` (copied, present, open or differs), `files`, `bytes` and
    `uploaded` (bytes sent now).

    For example:

    blackbox sync recordings s3://market-data/recordings

    blackbox sync recordings/nasdaq s3://market-data/recordings --json
    """
    with exit_statuses():
        from blackbox.archive.objects.store import Store, local_files
        from blackbox.archive.objects.sync import Outcome, days_at
        from blackbox.archive.objects.sync import sync as copy_days

        into = Store(store)
        done: list[SyncedDay] = []
        sent = 0
        try:
            total = sum(path.stat().st_size for day in days_at(directory) for path in local_files(day).values())
            with reading(f"copying to {into.uri}", total) as progress:

                def note(size: int) -> None:
                    nonlocal sent
                    sent += size
                    progress(sent)

                for each in copy_days(directory, into, note):
                    done.append(each)  # noqa: PERF402 - days before an error are reported too
        finally:
            _report(into.uri, done, as_json=as_json)
        differing = [each.name for each in done if each.outcome is Outcome.DIFFERS]
        if differing:
            text = (
                "1 day differs from its copy"
                if len(differing) == 1
                else f"{len(differing)} days differ from their copies"
            )
            lose(f"{text} in {into.uri}: {', '.join(differing)}")


def _report(uri: str, done: list[SyncedDay], *, as_json: bool) -> None:
    if as_json:
        print_json({"store": uri, "days": [each._asdict() | {"day": str(each.day)} for each in done]})
        return
    table = columns_table(("day", "outcome", "files", "size", "sent"), 2)
    for each in done:
        table.add_row(each.name, each.outcome, count(each.files), byte_size(each.bytes), byte_size(each.uploaded))
    stdout.print(titled(f"copied to {uri}", table))
