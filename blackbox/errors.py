"""All errors that the library raises on purpose.

They derive from `BlackBoxError`, and also from a built-in class where one fits, so that code unaware of this library
can catch them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blackbox.block.position import Place
    from blackbox.services.hub.protocol import Places


class BlackBoxError(Exception):
    """Base of every error of this library."""


class ConfigError(BlackBoxError, ValueError):
    """A feed, schema or setting is wrong. Nothing was opened or sent."""


class LimitError(BlackBoxError):
    """A system limit is too low for the files, memory or threads needed; the error names the limit to raise."""


class BlockError(BlackBoxError, ValueError):
    """A block's bytes are not a valid block."""


class SourceError(BlackBoxError, ValueError):
    """An input file or source specification cannot be read."""


class EndpointError(BlackBoxError, OSError):
    """An endpoint cannot be bound or connected: the port is in use, or the interface is missing."""

    def __str__(self) -> str:
        """Return the text without the number, which is in `errno`."""
        return self.strerror or super().__str__()


class PublisherError(BlackBoxError):
    """The call is not possible in the publisher's current state."""


class NoSubscriberError(PublisherError, TimeoutError):
    """No subscriber arrived within the timeout."""


class RelayError(BlackBoxError):
    """A relay cannot continue: it is its own source, or libzmq failed."""


class NotRecordedError(PublisherError, TimeoutError):
    """Recorders did not acknowledge published messages within the timeout."""


class BridgeError(BlackBoxError):
    """The system on the other side of a bridge is unreachable, or refuses messages."""


class HubError(BlackBoxError):
    """A hub refused a put or cannot continue, or the client was closed."""


class NotStoredError(HubError, TimeoutError):
    """The hub did not confirm within the timeout that it has stored a put."""


class RefusedError(HubError):
    """A hub refused a put. The put is not stored; others are not affected.

    Attributes: `topic`; `places`, for `put_many` the result for all its messages: those with `is_refused` are not
    stored, all others are. Topic and text then describe the first refused one. None for `put`.
    """

    def __init__(self, topic: bytes, was: str, places: Places | None = None) -> None:
        """`was`: the state of the topic that led to the refusal."""
        count = 0 if places is None else (places["is_refused"] != 0).sum()
        many = "" if places is None else f"{count} of {len(places)} puts were refused, the first: "
        super().__init__(f"{many}topic {topic[:64]!r} was {was}")
        self.topic, self.places = topic, places


class ConflictError(RefusedError):
    """A put was refused because its topic's newest message is not the expected one.

    Attributes, in addition to those of RefusedError: `expected` and `found`, the expected and the actual position of
    that message, as in `Table.revision`.
    """

    def __init__(self, topic: bytes, expected: Place | None, found: Place, places: Places | None = None) -> None:
        """The text reports all of them."""
        was, wanted = ("without a value" if at is not None and not at.epoch else f"at {at}" for at in (found, expected))
        super().__init__(topic, f"{was}, expected it {wanted}", places)
        self.expected, self.found = expected, found


class SubscriberError(BlackBoxError):
    """The call is not possible in the subscriber's current state, or one of its threads or processes failed."""


class NotConfirmedError(SubscriberError, TimeoutError):
    """A publisher did not confirm the subscription within the timeout."""


class RightsError(SubscriberError):
    """A publisher or an archive refused a subscription: the key has no right to it, or has reached a limit."""


class SilentPublisherError(SubscriberError, TimeoutError):
    """A publisher has been silent for longer than the caller allows, without announcing its end."""


class SlowSubscriberError(SubscriberError):
    """A subscriber did not keep up, and data would have been lost silently."""


class GapError(SubscriberError):
    """Messages were lost, and the subscriber was configured to end in this case."""


class PositionError(BlackBoxError):
    """Positions of a named consumer cannot be read or written, go back, or another process uses the name."""


class CallbackError(SubscriberError):
    """A callback raised; the original exception is the cause."""


class JournalError(BlackBoxError):
    """A recording cannot be written or read: the disk is full, a file is missing or damaged, another owns it."""


class DamagedError(JournalError):
    """A file of a recording is damaged: its checksums do not match."""


class ControlError(BlackBoxError):
    """A replay refused a command, or did not answer."""


class ArchiveError(BlackBoxError):
    """An archive refused a request, or no archive answered."""
