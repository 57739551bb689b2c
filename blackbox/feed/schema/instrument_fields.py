"""Message types that describe instruments: definitions, trading states and symbol mappings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from blackbox.errors import ConfigError

TEXTS: Final = ("venue", "name", "instrument_class", "currency", "underlying", "status")
"""Columns of texts. An empty text is null."""
NUMBERS: Final = ("publisher_id", "instrument_id", "lot_size")
PRICES: Final = ("tick_size", "contract_size", "strike_price")
TIMES: Final = ("activation", "expiration", "mapped_from", "mapped_until")

Part = Literal["definition", "status", "mapping"]


@dataclass(frozen=True)
class InstrumentFields:
    """Fields of a message type that describes instruments, as columns of `Recording.instruments`."""

    message_type: str
    columns: dict[str, str]
    """Columns, such as "lot_size", and the field with the value of each."""
    part: Part = "definition"
    """A "definition" or a "mapping" of a symbol to an id makes a row. A "status" completes rows of definitions."""
    constants: dict[str, str] = field(default_factory=dict)
    """Columns of texts that are the same for all instruments."""
    meanings: dict[str, dict[str, str]] = field(default_factory=dict)
    """By column: the text for a value of the venue. Others stay as sent. A status of "" is no change of the status."""
    deleted: tuple[str, str] | None = None
    """A field and its value in definitions that delete the instrument."""

    def __post_init__(self) -> None:
        known = {*TEXTS, *NUMBERS, *PRICES, *TIMES}
        for name in self.columns:
            if name not in known:
                raise ConfigError(
                    f"instruments of type {self.message_type!r} had column {name!r}, expected one of: "
                    + ", ".join(sorted(known))
                )
        for name in (*self.constants, *self.meanings):
            if name not in TEXTS:
                raise ConfigError(
                    f"instruments of type {self.message_type!r} had texts for {name!r}, expected one of: "
                    + ", ".join(TEXTS)
                )
        if (self.part == "status") != ("status" in self.columns):
            raise ConfigError(
                f"instruments of type {self.message_type!r} had part {self.part!r} and columns "
                f"{', '.join(self.columns)}, expected the column 'status' in that part only"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields of the message type that are used."""
        return (*self.columns.values(), *(self.deleted or ())[:1])
