"""Options for peers that stay behind, and the table of peers with losses."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.terminal import bad_if, columns_table, stdout, titled
from blackbox.numbers import byte_rate, count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blackbox.publish.listeners.peers import PeerStatistics


class SlowPeer(StrEnum):
    """Policy for a peer that stays behind."""

    KEEP = "keep"
    DISCONNECT = "disconnect"


SlowPeerOption = Annotated[
    SlowPeer,
    typer.Option(
        "--slow-peer",
        help="When a subscriber on TCP stays behind: `keep` it connected; or `disconnect` it after --max-peer-age.",
    ),
]
MaxPeerAgeOption = Annotated[
    float | None,
    typer.Option(
        "--max-peer-age",
        metavar="SECONDS",
        min=0.001,
        help="With `--slow-peer disconnect`: longest time that data waits for a subscriber. Default: 5 seconds.",
        show_default=False,
    ),
]


def check_slow_peer(slow_peer: SlowPeer, max_peer_age: float | None) -> None:
    """Raise BadParameter for an age without its policy."""
    if slow_peer is SlowPeer.KEEP and max_peer_age is not None:
        raise typer.BadParameter(
            "was given without `--slow-peer disconnect`, expected both", param_hint="--max-peer-age"
        )


def print_lossy_peers(peers: Iterable[PeerStatistics]) -> None:
    """Print the peers for which blocks were dropped, or that report losses, if any."""
    lossy = [each for each in peers if each.dropped_blocks or each.lost_messages]
    if not lossy:
        return
    table = columns_table(("peer", "line", "blocks dropped", "certainty", "messages it lost", "unsent"), 2)
    for each in lossy:
        table.add_row(
            each.address or "not on TCP",
            f"{each.slice_id}{each.line}",
            bad_if(each.dropped_blocks > 0, count(each.dropped_blocks)),
            str(each.how_sure),
            bad_if(each.lost_messages > 0, count(each.lost_messages)),
            byte_rate(each.unsent_bytes).removesuffix("/s"),
        )
    table.caption = "dropped: estimated from TCP's counters; lost: as the peer reports it, repaired messages excluded"
    stdout.print(titled("peers that lost something", table))
