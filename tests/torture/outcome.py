"""Result of an attack."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Attempts and defects of one class of attack."""

    tried: int
    what: str
    """The unit of `tried`, in the plural: "hostile subscriptions"."""
    found: list[str] = field(default_factory=list)
    """A sentence per defect."""
