"""Market data over ZeroMQ: publish a feed in slices, dispatch it to callbacks by topic prefix.

Names are imported when they are first used, so that `import blackbox` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blackbox.archive.outbox import Outbox
    from blackbox.archive.recorder import Recorder
    from blackbox.archive.recording import Recording
    from blackbox.archive.recordings import Recordings
    from blackbox.archive.retention import Retention
    from blackbox.archive.serve.client import ArchiveClient
    from blackbox.block.batch import Batch, Message
    from blackbox.block.block import Block
    from blackbox.block.gap import Gap
    from blackbox.block.position import NOWHERE, Place
    from blackbox.errors import (
        ArchiveError,
        BlackBoxError,
        BlockError,
        BridgeError,
        CallbackError,
        ConfigError,
        ConflictError,
        ControlError,
        EndpointError,
        GapError,
        HubError,
        JournalError,
        LimitError,
        NoSubscriberError,
        NotConfirmedError,
        NotRecordedError,
        NotStoredError,
        PositionError,
        PublisherError,
        RefusedError,
        RelayError,
        RightsError,
        SilentPublisherError,
        SlowSubscriberError,
        SourceError,
        SubscriberError,
    )
    from blackbox.feed.feed import Feed
    from blackbox.feed.schema import Schema
    from blackbox.feed.source import Source
    from blackbox.hub.async_client import AsyncHubClient
    from blackbox.hub.client import HubClient
    from blackbox.hub.hub import Hub
    from blackbox.publish.publisher import Publisher
    from blackbox.relay.plain import PlainRelay
    from blackbox.relay.relay import Relay
    from blackbox.replay.controls import Controls
    from blackbox.replay.replay import Replay
    from blackbox.subscribe.slow_subscriber import SlowPolicy
    from blackbox.subscriber import Subscriber

__version__ = "0.1.0"

__all__ = [
    "NOWHERE",
    "ArchiveClient",
    "ArchiveError",
    "AsyncHubClient",
    "Batch",
    "BlackBoxError",
    "Block",
    "BlockError",
    "BridgeError",
    "CallbackError",
    "ConfigError",
    "ConflictError",
    "ControlError",
    "Controls",
    "EndpointError",
    "Feed",
    "Gap",
    "GapError",
    "Hub",
    "HubClient",
    "HubError",
    "JournalError",
    "LimitError",
    "Message",
    "NoSubscriberError",
    "NotConfirmedError",
    "NotRecordedError",
    "NotStoredError",
    "Outbox",
    "Place",
    "PlainRelay",
    "PositionError",
    "Publisher",
    "PublisherError",
    "Recorder",
    "Recording",
    "Recordings",
    "RefusedError",
    "Relay",
    "RelayError",
    "Replay",
    "Retention",
    "RightsError",
    "Schema",
    "SilentPublisherError",
    "SlowPolicy",
    "SlowSubscriberError",
    "Source",
    "SourceError",
    "Subscriber",
    "SubscriberError",
    "__version__",
]

_MODULE_OF = {
    "NOWHERE": "block.position",
    "ArchiveClient": "archive.serve.client",
    "AsyncHubClient": "hub.async_client",
    "Batch": "block.batch",
    "Block": "block.block",
    "HubClient": "hub.client",
    "Controls": "replay.controls",
    "Feed": "feed.feed",
    "Gap": "block.gap",
    "Hub": "hub.hub",
    "Message": "block.batch",
    "Outbox": "archive.outbox",
    "Place": "block.position",
    "PlainRelay": "relay.plain",
    "Publisher": "publish.publisher",
    "Recorder": "archive.recorder",
    "Recording": "archive.recording",
    "Recordings": "archive.recordings",
    "Relay": "relay.relay",
    "Replay": "replay.replay",
    "Retention": "archive.retention",
    "Schema": "feed.schema",
    "SlowPolicy": "subscribe.slow_subscriber",
    "Source": "feed.source",
    "Subscriber": "subscriber",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'blackbox' has no attribute {name!r}")
    value: object = getattr(import_module(f"blackbox.{_MODULE_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
