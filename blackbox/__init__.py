"""Market data over ZeroMQ: publish a feed in slices, and dispatch it to callbacks by topic prefix.

Names are imported on first use, so that `import blackbox` is fast. Other errors are in `blackbox.errors`; `api` in the
docs lists the modules of all other public names.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blackbox.archive.record.recorder import Recorder
    from blackbox.archive.recording import Recording
    from blackbox.archive.recordings import Recordings
    from blackbox.block.batch.batch import Batch, Message
    from blackbox.block.gap import Gap
    from blackbox.errors import BlackBoxError, CallbackError, ConfigError, GapError, SlowSubscriberError
    from blackbox.feed.feed import Feed
    from blackbox.feed.schema.schema import Schema
    from blackbox.feed.slice import Slice
    from blackbox.feed.source import Source
    from blackbox.publish.publisher import Publisher
    from blackbox.receive.slow_subscriber import SlowPolicy
    from blackbox.receive.stream import Stream
    from blackbox.replay.replay import Replay
    from blackbox.services.hub.client.async_client import AsyncHubClient
    from blackbox.services.hub.client.client import HubClient
    from blackbox.services.hub.server.hub import Hub
    from blackbox.services.relay.relay import Relay
    from blackbox.subscriber.subscriber import Subscriber
    from blackbox.subscriber.table import Table

__version__ = "0.1.0"

if sys.platform == "win32":
    raise ImportError("blackbox does not run on Windows: use Linux, for example in the Windows Subsystem for Linux")
if "t" in getattr(sys, "abiflags", ""):
    # Threads share lists and dicts without a lock.
    raise ImportError("blackbox does not run on a free-threaded Python: use one with the global interpreter lock")

__all__ = [
    "AsyncHubClient",
    "Batch",
    "BlackBoxError",
    "CallbackError",
    "ConfigError",
    "Feed",
    "Gap",
    "GapError",
    "Hub",
    "HubClient",
    "Message",
    "Publisher",
    "Recorder",
    "Recording",
    "Recordings",
    "Relay",
    "Replay",
    "Schema",
    "Slice",
    "SlowPolicy",
    "SlowSubscriberError",
    "Source",
    "Stream",
    "Subscriber",
    "Table",
    "__version__",
]

_MODULE_OF = {
    "AsyncHubClient": "services.hub.client.async_client",
    "Batch": "block.batch.batch",
    "Feed": "feed.feed",
    "Gap": "block.gap",
    "Hub": "services.hub.server.hub",
    "HubClient": "services.hub.client.client",
    "Message": "block.batch.batch",
    "Publisher": "publish.publisher",
    "Recorder": "archive.record.recorder",
    "Recording": "archive.recording",
    "Recordings": "archive.recordings",
    "Relay": "services.relay.relay",
    "Replay": "replay.replay",
    "Schema": "feed.schema.schema",
    "Slice": "feed.slice",
    "SlowPolicy": "receive.slow_subscriber",
    "Source": "feed.source",
    "Stream": "receive.stream",
    "Subscriber": "subscriber.subscriber",
    "Table": "subscriber.table",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'blackbox' has no attribute {name!r}")
    value: object = getattr(import_module(f"blackbox.{_MODULE_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
