"""Every error that the library raises on purpose.

All of them derive from `BlackBoxError`. Where a built-in class says the same thing, the error
derives from that too, so that code which knows nothing of this library can still catch it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blackbox.block.position import Place
    from blackbox.hub.protocol import Places


class BlackBoxError(Exception):
    """Base of every error of this library."""


class ConfigError(BlackBoxError, ValueError):
    """A feed, schema or setting is wrong; nothing has been opened or sent."""


class LimitError(BlackBoxError):
    """The system does not let this process open or start as much as is needed: raise the limit that it names."""


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
    """The publisher cannot do what was asked in its present state."""


class NoSubscriberError(PublisherError, TimeoutError):
    """Nobody subscribed within the timeout."""


class RelayError(BlackBoxError):
    """A relay cannot go on: it is its own source, or libzmq has failed it."""


class NotRecordedError(PublisherError, TimeoutError):
    """Recorders did not acknowledge within the timeout what was published."""


class BridgeError(BlackBoxError):
    """The system on the other side of a bridge is not there, or refuses what it is given."""


class HubError(BlackBoxError):
    """A hub refused what was put, or cannot go on; or a client has ended."""


class NotStoredError(HubError, TimeoutError):
    """The hub did not say within the timeout that it has what was put."""


class RefusedError(HubError):
    """A hub refused a put: it is not stored, and takes nothing else with it.

    Attributes: `topic`. `places`: of `put_many`, those of all its messages, as if it had returned them; those with
    `is_refused` are not stored, all others are. All else is then told of the first that is not. None of `put`.
    """

    def __init__(self, topic: bytes, was: str, places: Places | None = None) -> None:
        """`was`: what is told of the topic."""
        count = 0 if places is None else (places["is_refused"] != 0).sum()
        many = "" if places is None else f"{count} of {len(places)} puts were refused, the first: "
        super().__init__(f"{many}topic {topic[:64]!r} was {was}")
        self.topic, self.places = topic, places


class ConflictError(RefusedError):
    """A put was refused, as its topic's newest message was not where it was expected: see `found`.

    Attributes, beside those of RefusedError: `expected`, `found`, where that message was to be, and is, as
    `Table.revision` tells them.
    """

    def __init__(self, topic: bytes, expected: Place | None, found: Place, places: Places | None = None) -> None:
        """All are told in the text."""
        was, wanted = ("without a value" if at is not None and not at.epoch else f"at {at}" for at in (found, expected))
        super().__init__(topic, f"{was}, expected it {wanted}", places)
        self.expected, self.found = expected, found


class SubscriberError(BlackBoxError):
    """The subscriber cannot do what was asked, or one of its threads or processes has failed."""


class NotConfirmedError(SubscriberError, TimeoutError):
    """A publisher did not confirm the subscription within the timeout."""


class RightsError(SubscriberError):
    """A publisher or an archive does not give what was asked for: the key has no right to it, or has too much."""


class SilentPublisherError(SubscriberError, TimeoutError):
    """Nothing came from a publisher for the time that the caller allows, and it has not said that it ends."""


class SlowSubscriberError(SubscriberError):
    """A subscriber did not keep up and data would have been lost without notice."""


class GapError(SubscriberError):
    """Messages were lost, and the subscriber was to end then."""


class PositionError(BlackBoxError):
    """Positions of a named consumer cannot be read or kept, go back, or another process has the name."""


class CallbackError(SubscriberError):
    """A callback raised; the original exception is the cause."""


class JournalError(BlackBoxError):
    """A recording cannot be written or read: the disk is full, a file is missing or damaged, another owns it."""


class DamagedError(JournalError):
    """A file of a recording is damaged: its checksums do not match."""


class ControlError(BlackBoxError):
    """A replay refused a command, or did not answer."""


class ArchiveError(BlackBoxError):
    """An archive refused a request, or no archive answered it."""
