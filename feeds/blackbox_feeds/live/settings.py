"""Settings of live clients: the options of a URL, such as `//239.1.1.1:26400?b=239.1.1.2:26400&hold=0.5`."""

from __future__ import annotations

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.venue_url import Address


class LineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of clients that receive datagrams."""

    b: str | None = None
    """GROUP:PORT of the second line, with the same datagrams."""
    interface: str | None = None
    """Name or IPv4 address of the interface that joins the groups."""
    backfill: int = 100_000
    """After a late start, messages before the first one that are requested."""
    hold: float = 1.0
    """Seconds for which messages after a gap are held while it is requested."""
    held: int = 16_384
    """Datagrams held."""
    stale: float = 5.0
    """Seconds without data or heartbeats after which the lines are joined again."""
    buffer_mib: int = 16
    """Receive buffer of each socket in the kernel."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("backfill", 0, 1 << 32),
            ("hold", 0, 3_600),
            ("held", 1, 1 << 20),
            ("stale", 0.01, 86_400),
            ("buffer_mib", 1, 1_024),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"option {name} was {value}, expected {least} to {most}")

    def lines(self, a: Address) -> list[Address]:
        """Return the addresses of the lines."""
        return [a] if self.b is None else [a, Address.of(self.b, "option b")]
