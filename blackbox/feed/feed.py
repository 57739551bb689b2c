"""Feeds and their slices: the configuration shared by publishers and subscribers."""

import logging
import os
import re
import string
import tomllib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from blackbox.arguments import as_bytes
from blackbox.errors import ConfigError
from blackbox.feed.endpoint import check_service, free_endpoints, transport_of
from blackbox.feed.environment import override
from blackbox.feed.monitor import Monitor
from blackbox.feed.routing.key_rule import MAX_CHANNELS, MAX_KEY_BYTES, key_of, key_rule_of, most_keys, start_of_keys
from blackbox.feed.routing.slices import PrefixRouting, ShareRouting, check_prefix, check_topic
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.feed.schema.schema import Schema
from blackbox.feed.security import Security, path_in
from blackbox.feed.slice import MAX_LINES, MAX_SLICES, Slice, check_binds, check_together, texts_of
from blackbox.feed.toml import check_ranges, check_types, from_document
from blackbox.regular_file import read_regular
from blackbox.timestamps import clock_of, zone_of

log = logging.getLogger("blackbox")

MAX_NAME_LENGTH = 64
_MOST_BYTES = 64 << 20
"""Largest feed file in bytes."""

_local: Final[set[str]] = set()
"""Endpoints chosen by `Feed.local` in this process."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FEED_RANGES = {
    "key_bytes": (0, MAX_KEY_BYTES),
    "channels": (1, MAX_CHANNELS),
    "block_bytes": (4_096, 16 * 1_048_576),
    "linger_ns": (0, 10**9),
    "heartbeat_ns": (10**6, 3_600 * 10**9),
    "max_lag_ns": (1, 2**63 - 1),
    "max_topics": (1, 2**31 - 1),
    "max_subscriptions": (1, 2**31 - 1),
    "trace_every": (0, 2**62),
    "udp_payload_bytes": (576, 65_507),
    "udp_rate_bytes": (1_000_000, 2**40),
    "udp_ttl": (0, 255),
}


class Feed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A named stream of messages: its schema, slices and limits.

    Publisher and subscriber load the same feed. It is immutable, checked on creation, thread-safe, and can be pickled.
    `msgspec.structs.replace` makes a changed copy.
    """

    name: str
    """Name of the feed, in logs and as a directory of recordings. No default.

    Letters, digits, `.`, `_` and `-`, at most 64, the first a letter or digit."""

    schema: str | Schema = "raw"
    """Name of the schema of the payloads, as in the entry-point group `blackbox.schemas`.

    In code also the schema itself, which then need not be registered: recordings store it. Default: `raw`, payloads are
    bytes. Applies to publisher and subscriber."""

    key_bytes: int = 0
    """Length of the key, the start of a topic on which ZeroMQ filters. Unit: bytes.

    Default 0: subscribers receive whole slices. 1 to 8 saves network traffic and makes blocks smaller. Publisher and
    subscriber must agree."""

    channels: int = 1
    """Instead of `key_bytes`: the key is one of 1 to 128 channels, by a hash of the topic's root. Default: 1.

    A subscriber of one symbol receives one channel, about 1 / `channels` of the slice, and blocks stay larger than
    with `key_bytes`. A prefix without a separator needs all channels. Publisher and subscriber must agree."""

    topic: str = "{symbol}.{type}"
    """Template from which a source makes the topic of each message. Default: `{symbol}.{type}`.

    Applies to sources. `symbol` and `separator` define which part of a topic is its symbol."""

    symbol: str = "before_last"
    """Which part of a topic is its symbol. Default: `before_last`, the text before the last separator.

    `before_last`: `BRK.A.P` has the symbol `BRK.A`. `before_first`: `AAPL.book.1` has `AAPL`. `whole`: topics have no
    type, and `BRK.A` has `BRK.A`. A topic without a separator is its own symbol. Used by filters, archives, Spark
    and reports; `share` and `channels` use the topic's root, whatever this setting is."""

    separator: str = "."
    """Separator between the symbol and the type of a topic. One ASCII character. Default: `.`.

    The text before the first one is the topic's root, which `share` and `channels` hash: publisher and subscriber must
    agree."""

    slices: tuple[Slice, ...]
    """The slices, 1 to 65,536; the position is the slice id. No default."""

    archives: tuple[str, ...] = ()
    """Endpoints of the feed's archives, `tcp://HOST:PORT` or `ipc://PATH`. Default: none.

    Clients try them in this order. An archive serves the first one unless its configuration names another."""

    archives_bind: str | tuple[str, ...] = ()
    """Addresses that archives bind instead of `archives`, as `bind` of a slice. Default: none."""

    hub: str = ""
    """Endpoint at which the feed's hub takes puts of clients, `tcp://HOST:PORT` or `ipc://PATH`. Default: none."""

    hub_backup: str = ""
    """Endpoint at which the standby hub takes over, as `hub`. Default: none.

    The hub at `hub` then publishes line A of each slice and is the first of `archives`; the standby is line B and the
    second."""

    hub_bind: str = ""
    """Address that the hub binds instead of `hub`, as `bind` of a slice. Default: none."""

    hub_backup_bind: str = ""
    """As `hub_bind`, for `hub_backup`. Default: none."""

    block_bytes: int = 262_144
    """Body size at which a block is sent without waiting. Unit: bytes. Default: 256 KiB.

    4,096 to 16,777,216. Applies to the publisher."""

    linger_ns: int = 0
    """Least time between blocks of single messages. Unit: ns. Default: 0; at most 1 s.

    While the line is free, the publishing thread sends a message at once. Messages that arrive meanwhile share the next
    block. At more than some 70,000 messages a second blocks fill for at least 100 µs: a block per message would cost
    more than two cores. Applies to the publisher."""

    heartbeat_ns: int = 1_000_000_000
    """Time between heartbeats of one slice. Unit: ns. Default: 1 s; 1 ms to 1 hour.

    A heartbeat carries the last sequence of every key, which reveals a lost tail and a silent publisher. Applies to
    publisher and subscriber."""

    max_lag_ns: int = 1_000_000_000
    """Lag above which a subscriber is slow and its policy applies. Unit: ns. Default: 1 s.

    Applies to subscribers, which can override it."""

    checksum: bool = True
    """True if blocks carry a checksum of their body. Default: true. Applies to the publisher."""

    max_topics: int = 1_048_576
    """Limit for the distinct topics of one slice. Unit: topics. Default: 1,048,576.

    Bounds the memory of publisher and subscriber. At most 1,677,721 with 8 `key_bytes`; any number with up to 2."""

    max_subscriptions: int = 524_288
    """Prefixes that one connection may subscribe to in a slice. Unit: prefixes. Default: 524,288.

    Further ones are refused with an error. Applies to publishers and relays."""

    trace_every: int = 1_048_576
    """One message in this many is traced, in each slice. A power of two, or 0 for none. Unit: messages. Default: 2^20.

    Relays send when they had its block, and subscribers note when they did. Applies to relays and subscribers."""

    udp_payload_bytes: int = 1_400
    """Largest datagram of a multicast line, without the headers of IP and UDP. Unit: bytes. Default: 1,400.

    576 to 65,507. Larger blocks are sent in several parts. Above the MTU less 28, the network sends fragments. Applies
    to the publisher."""

    udp_rate_bytes: int = 125_000_000
    """Rate at which a slice sends datagrams; above it, publishing waits. Unit: bytes per second. Default: 1 Gbit/s.

    At least 1,000,000. Applies to the publisher."""

    udp_ttl: int = 1
    """Routers that datagrams of a multicast line may pass, plus 1. Default: 1, the local network. 0 to 255.

    0 keeps them on the publisher's host. Applies to the publisher."""

    time_zone: str = "UTC"
    """Time zone of the session dates by which recordings rotate, such as `America/New_York`. Default: UTC.

    Applies to recorders."""

    day_start: str = "00:00"
    """Local time at which a session date begins, `HH:MM` or `HH:MM:SS`. Default: midnight.

    A session that starts at 12:00 or later belongs to the date of its next morning. Applies to recorders."""

    security: Security | None = None
    """Keys for encrypting tcp connections and authenticating peers. Default: none, everything is in the clear.

    In the file the table `[security]`. Applies to everything that binds or connects."""

    monitor: Monitor | None = None
    """The operator console and the processes to watch. Default: none.

    In the file the table `[monitor]`. Applies to subscribers, recorders, and the tools that watch."""

    def __post_init__(self) -> None:
        """Check all settings and that the slices fit together. Raises ConfigError."""
        try:
            check_types(self)
            check_name(self.name)
            if not self.schema_name:
                raise ConfigError("schema was empty, expected the name of a schema")
            _check_template(self.topic)
            _ = self.symbol_rule
            check_ranges(self, _FEED_RANGES)
            if self.trace_every & (self.trace_every - 1):
                raise ConfigError(f"trace_every was {self.trace_every}, expected 0 or a power of two, such as 1024")
            if self.key_bytes and self.channels > 1:
                raise ConfigError(f"key_bytes was {self.key_bytes} and channels {self.channels}, expected only one")
            _check_keys(self.key_bytes, self.max_topics)
            _check_session(self.time_zone, self.day_start)
            check_together(self.slices, self.channels, self.security)
            _check_archives(self.archives)
            check_binds("archives_bind", texts_of(self.archives_bind) or self.archives, self.archives)
            for what in ("hub", "hub_backup"):
                endpoint, bind = getattr(self, what), getattr(self, f"{what}_bind")
                if endpoint:
                    check_service(endpoint, what)
                check_binds(f"{what}_bind", texts_of(bind or endpoint), texts_of(endpoint))
            _ = self.routing
        except ConfigError as error:
            raise ConfigError(f"feed {self.name!r}: {error}") from None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        schema: Schema | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Read a feed from a TOML file; each setting is a key, each slice a `[[slices]]` table.

        `schema`: the schema that the file names, if it is not registered. Variables `BLACKBOX_FEED_...` of
        `environment`, by default those of the process, override settings: `BLACKBOX_FEED_SLICES_0_ENDPOINTS`.

        Raises:
            ConfigError: the file cannot be read or is not TOML, a key or variable is unknown, a setting
                is wrong, or the file names another schema. The error names the file, the key and the value.
        """
        try:
            document = tomllib.loads(read_regular(path, _MOST_BYTES).decode())
        except FileNotFoundError:
            where = f" in {Path.cwd()}" if not Path(path).is_absolute() else ""
            raise ConfigError(f"feed file {os.fspath(path)!r} was not found{where}") from None
        except OSError as error:
            raise ConfigError(f"feed file {os.fspath(path)!r} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{os.fspath(path)} is not TOML: {error}") from error
        overridden: list[str] = []
        try:
            overridden = override(document, cls, os.environ if environment is None else environment)
            feed = from_document(document, cls)
            _check_schema(feed.schema, schema)
            feed = feed._with_paths_in(Path(path).parent)
        except ConfigError as error:
            note = f" (settings from the environment: {', '.join(overridden)})" if overridden else ""
            raise ConfigError(f"{os.fspath(path)}: {error}{note}") from None
        if overridden:
            log.info("%s: settings from the environment: %s", os.fspath(path), ", ".join(overridden))
        return feed if schema is None else msgspec.structs.replace(feed, schema=schema)

    @classmethod
    def local(
        cls,
        name: str,
        slices: int = 2,
        schema: str | Schema = "raw",
        key_bytes: int = 0,
        lines: int = 1,
        transport: Literal["tcp", "ipc", "inproc", "shm"] = "tcp",
        channels: int = 1,
    ) -> Self:
        """Make a feed for this machine, on endpoints that are free now, sharded by symbol.

        Nothing is bound yet, so another process may take a port before the publisher starts. The paths of `ipc` are
        removed when this process ends; `inproc` needs publisher and subscriber in one ZeroMQ context; `shm` is tcp plus
        shared memory.

        Raises:
            ConfigError: a setting is out of range.
        """
        check_name(name)
        if not 1 <= slices <= MAX_SLICES:
            raise ConfigError(f"slices were {slices}, expected 1 to {MAX_SLICES}")
        if not 1 <= lines <= MAX_LINES:
            raise ConfigError(f"lines were {lines}, expected 1 to {MAX_LINES}")
        found = free_endpoints(transport, name, slices, lines)
        _local.update(*found)
        return cls(
            name=name,
            schema=schema,
            key_bytes=key_bytes,
            channels=channels,
            slices=tuple(Slice(endpoints=endpoints, share=(index, slices)) for index, endpoints in enumerate(found)),
        )

    def _with_paths_in(self, directory: Path) -> Self:
        """Return this feed with paths of keys that do not depend on the working directory."""
        if self.security is None:
            return self
        slices = tuple(
            msgspec.structs.replace(part, allowed_keys=path_in(directory, part.allowed_keys)) for part in self.slices
        )
        return msgspec.structs.replace(self, security=self.security.in_directory(directory), slices=slices)

    def bound(self, endpoint: str) -> str:
        """Return the address to bind for an endpoint of an archive or hub."""
        pairs = [
            *zip(self.archives, texts_of(self.archives_bind), strict=False),
            (self.hub, self.hub_bind),
            (self.hub_backup, self.hub_backup_bind),
        ]
        return next((bind for each, bind in pairs if each == endpoint and bind), endpoint)

    @property
    def schema_name(self) -> str:
        """The name of the schema of the payloads."""
        return self.schema.name if isinstance(self.schema, Schema) else self.schema

    @cached_property
    def symbol_rule(self) -> SymbolRule:
        """The rule that splits topics into symbol and type."""
        return SymbolRule(self.symbol, self.separator)

    @cached_property
    def key_rule(self) -> int:
        """The rule for the key of a topic; see `blackbox.feed.routing.key_rule`."""
        return key_rule_of(self.key_bytes, self.channels, self.separator)

    @property
    def max_keys(self) -> int:
        """Most keys of a slice."""
        return self.max_topics if self.key_bytes else self.channels

    def slice_of(self, topic: str | bytes) -> int:
        """Return the id of the slice that `topic` belongs to.

        Raises:
            ConfigError: no slice covers the topic (the known prefixes are named), or it is
                empty, starts with a zero byte, or is longer than 65,535 bytes.
        """
        topic = as_bytes("topic", topic)
        check_topic(topic)
        return self.routing.slice_of(topic)

    def slices_for(self, prefix: str | bytes) -> tuple[int, ...]:
        """Return the ids, ascending, of all slices that topics with `prefix` can belong to.

        The empty prefix matches every topic; the result is empty if no slice covers the prefix.

        Raises:
            ConfigError: the prefix starts with a zero byte or is longer than 65,535 bytes.
        """
        prefix = as_bytes("prefix", prefix)
        check_prefix(prefix)
        return self.routing.slices_for(prefix)

    def key_of(self, topic: str | bytes) -> bytes:
        """Return the key of a topic, on which ZeroMQ filters."""
        return key_of(self.key_rule, as_bytes("topic", topic))

    def subscription_of(self, prefix: str | bytes, *, whole: bool = False) -> bytes:
        """Return the ZeroMQ subscription for topics with `prefix`: their keys start with it.

        `whole`: for the topic equal to `prefix` only.
        """
        return start_of_keys(self.key_rule, as_bytes("prefix", prefix), whole=whole)

    def __repr__(self) -> str:
        """Show name, schema and the number of slices."""
        return f"Feed({self.name!r}, schema={self.schema_name!r}, slices={len(self.slices)})"

    @cached_property
    def routing(self) -> PrefixRouting | ShareRouting:
        """The mapping of topics to slices."""
        if not 1 <= len(self.slices) <= MAX_SLICES:
            raise ConfigError(f"slices were {len(self.slices)}, expected 1 to {MAX_SLICES}")
        shares = [part.share for part in self.slices if part.share is not None]
        if len(shares) == len(self.slices):
            return ShareRouting(shares, self.symbol_rule)
        for slice_id, part in enumerate(self.slices):
            if part.share is not None:
                raise ConfigError(
                    f"slice {slice_id} has a share but others have none, "
                    "expected all slices with shares or all with prefixes"
                )
            if not part.prefixes and len(self.slices) > 1:
                raise ConfigError(
                    f"slice {slice_id} has neither prefixes nor a share, which only the single slice of a feed may do"
                )
        return PrefixRouting([[prefix.encode() for prefix in part.prefixes or ("",)] for part in self.slices])


def check_is_feed(feed: object) -> None:
    """Raise TypeError unless this is a feed."""
    if not isinstance(feed, Feed):
        hint = f": Feed.load({str(feed)!r}) reads a file" if isinstance(feed, str | os.PathLike) else ""
        raise TypeError(f"feed was {feed!r}, expected a Feed{hint}")


def _check_schema(named: str | Schema, given: Schema | None) -> None:
    """Raise ConfigError unless the file names a schema, and the given one if any."""
    if not isinstance(named, str):
        raise ConfigError("schema was a table, expected a name: pass the schema itself to Feed.load(..., schema=...)")
    if given is not None and given.name != named:
        raise ConfigError(
            f"schema was {named!r}, expected {given.name!r}, the name of the given schema: "
            f'write schema = "{given.name}" in the file'
        )


def check_name(name: str) -> None:
    """Raise ConfigError unless this is a valid name of a feed or consumer, and of files."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name was {name!r}, expected 1 to {MAX_NAME_LENGTH} letters, digits, '.', '_' or "
            "'-', the first a letter or digit"
        )


def _check_template(template: str) -> None:
    try:
        parts: list[Any] = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"topic template {template!r} is malformed: {error}") from None
    if not template or template.startswith("\0"):
        raise ConfigError(f"topic template was {template!r}, expected text such as '{{symbol}}'")
    for _, field, format_spec, conversion in parts:
        if field is not None and (not field.isidentifier() or format_spec or conversion):
            raise ConfigError(
                f"topic template {template!r} has the field '{{{field}}}' or a format, "
                "expected plain names such as '{symbol}'"
            )


def _check_keys(key_bytes: int, max_topics: int) -> None:
    if min(max_topics, 257**key_bytes) > (most := most_keys(key_bytes)):  # 257: a byte, or none
        raise ConfigError(
            f"max_topics was {max_topics}, expected at most {most} with key_bytes = {key_bytes}: a heartbeat has the "
            "end of every key, and a block at most 64 MiB"
        )


def _check_session(time_zone: str, day_start: str) -> None:
    try:
        zone_of(time_zone)
    except ValueError:
        raise ConfigError(f"time_zone was {time_zone!r}, expected a name such as 'America/New_York'") from None
    try:
        is_second = not clock_of(day_start).microsecond
    except ValueError:
        is_second = False
    if not is_second:
        raise ConfigError(f"day_start was {day_start!r}, expected HH:MM or HH:MM:SS")


def _check_archives(archives: tuple[str, ...]) -> None:
    for place, endpoint in enumerate(archives):
        check_service(endpoint)
        if endpoint in archives[:place]:
            raise ConfigError(f"archive {endpoint!r} was named twice, expected each once")


def as_recorded(feed: Feed) -> Feed:
    """Return a feed as recordings store it: its schema by name, without `[security]` and `[monitor]`."""
    slices = tuple(msgspec.structs.replace(part, allowed_keys="", bind=()) for part in feed.slices)
    binds: dict[str, Any] = {"archives_bind": (), "hub_bind": "", "hub_backup_bind": ""}
    return msgspec.structs.replace(feed, schema=feed.schema_name, security=None, monitor=None, slices=slices, **binds)


def with_archive(feed: Feed, endpoint: str) -> Feed:
    """Return a feed with only one of its archives."""
    security = feed.security
    if security is not None and len(security.archive_keys) > 1:
        key = security.key_of_archive(feed.archives.index(endpoint))
        security = msgspec.structs.replace(security, archive_keys=(key,))
    bind = feed.bound(endpoint)
    return msgspec.structs.replace(feed, archives=(endpoint,), archives_bind=bind, security=security)


def missing_peer_hint(endpoints: Iterable[str]) -> str:
    """Return a hint, to end an error text, if peers in other processes cannot connect to the endpoints; else ""."""
    if not _local.isdisjoint(endpoints):
        return " (only this process knows the endpoints of Feed.local: load one feed file in all processes)"
    if any(transport_of(each) == "inproc" for each in endpoints):
        return " (inproc endpoints are within one process)"
    return ""
