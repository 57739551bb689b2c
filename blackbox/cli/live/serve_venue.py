"""`blackbox replay --serve`: serve a recorded day in the venue's own protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from blackbox.cli.live.playing import playing, print_summary
from blackbox.cli.ui.status import warn
from blackbox.cli.ui.terminal import print_json, say, stdout
from blackbox.numbers import count

if TYPE_CHECKING:
    from blackbox.replay.play.venue_server import VenueServer
    from blackbox.replay.replay import Replay


class Wait(NamedTuple):
    """Wait before a replay: for how many subscribers or clients, and for how many seconds; None: no limit."""

    clients: int
    timeout: float | None


def serve_replay(played: Replay, url: str, wait: Wait, *, as_json: bool) -> None:
    """Serve a replay at a URL until its end or a signal, then announce the end of the session."""
    from blackbox.replay.play.to_venue import VenuePlayer
    from blackbox.replay.play.venue_server import make_venue_server

    recordings = played.playlist.recordings
    server = make_venue_server(url, recordings)
    player = VenuePlayer(server, recordings)
    with server:
        say(f"serving {url}")
        done = False
        try:
            server.wait_for(wait.clients, wait.timeout)
            with playing(played.controls):
                played.run(player)
            done = True
        finally:
            try:
                server.end(at_once=not done)
            finally:
                _print_summary(played, server, as_json=as_json)
    if player.without_payload:
        warn(f"{count(player.without_payload)} messages were left out: they have no payload")


def _print_summary(played: Replay, server: VenueServer, *, as_json: bool) -> None:
    counts = server.counts()
    if as_json:
        print_json({"replay": played.statistics(), "server": counts})
        return
    print_summary(played.statistics())
    text = ", ".join(f"{name.replace('_', ' ')} {count(many)}" for name, many in counts.items())
    stdout.print(text, highlight=False, soft_wrap=True)
