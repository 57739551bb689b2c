"""Databento's protocol class, with records as bytes and a bound on what is received."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import databento_dbn
from databento.live.protocol import DatabentoLiveProtocol

if TYPE_CHECKING:
    from blackbox_feeds.dbn.live.session import Client

_log = logging.getLogger(__name__)


class RecordProtocol(DatabentoLiveProtocol):  # type: ignore[misc] # without types for mypy
    """Gives the metadata and each record to a client, in its event loop."""

    def __init__(self, key: str, dataset: str, heartbeat_interval_s: int, client: Client) -> None:
        super().__init__(key, dataset, heartbeat_interval_s=heartbeat_interval_s)
        self._client = client
        self.received = 0
        """Records and parts of the metadata that came."""
        self.records = 0
        """Records of the subscribed schema."""
        self.rejection = ""
        """The gateway's first error message."""
        self.is_paused = False

    def buffer_updated(self, nbytes: int) -> None:
        """Decode what came. End the session at a fault; the next one replays what was not delivered."""
        try:
            super().buffer_updated(nbytes)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the decoder panics at wrong lengths, with no Exception
            _log.warning("the gateway sent bytes that cannot be decoded: %s", error)
            self.transport.abort()

    def received_metadata(self, metadata: databento_dbn.Metadata) -> None:
        """Keep the metadata."""
        super().received_metadata(metadata)
        self.received += 1
        self._client.take_metadata(metadata.encode())

    def received_record(self, record: databento_dbn.DBNRecord) -> None:
        """Pass a record on, and stop reading if the inbox is full."""
        self.received += 1
        if isinstance(record, databento_dbn.ErrorMsg):
            self.rejection = self.rejection or record.err
        elif not isinstance(record, databento_dbn.SystemMsg | databento_dbn.SymbolMappingMsg):
            self.records += 1
        client = self._client
        client.take_record(bytes(record))
        if client.inbox.is_full and not self.is_paused:
            self.is_paused = True
            self.transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self.is_paused and not self.transport.is_closing():
            self.is_paused = False
            self.transport.resume_reading()
