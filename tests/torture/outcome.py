"""What an attack tried and found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What one class of attack did."""

    tried: int
    what: str
    """The unit of `tried`, in the plural: "hostile subscriptions"."""
    found: list[str] = field(default_factory=list)
    """A sentence for each defect; empty when everything held."""
