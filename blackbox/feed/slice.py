"""One slice of a feed: its endpoints, topics and CPUs."""

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.endpoint import (
    MULTICAST,
    SHARED_MEMORY,
    Group,
    check_bind,
    check_endpoint,
    check_interface,
    groups_of,
    transport_of,
)
from blackbox.feed.routing.slices import check_prefix
from blackbox.feed.security import Security
from blackbox.feed.toml import check_types

MAX_LINES = 2
SPIN_NS = 2_000_000
MAX_SLICES = 65_536
MAX_CPU = 65_535


class Slice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One slice of a feed: its endpoints and its topics.

    Its id is its position in `Feed.slices`, from 0. It has either `prefixes` or a `share`. The only slice of a feed may
    have neither; it then takes every topic.
    """

    endpoints: tuple[str, ...]
    """Endpoints at which the slice is published: one, or two for the redundant lines A and B, and optionally shared
    memory.

    `tcp://HOST:PORT`, `ipc://PATH` or `inproc://NAME`. The publisher binds them and subscribers connect to them, so
    HOST is an address of the publisher's host. `shm://NAME` comes in addition to the lines: subscribers of the same
    user on the publisher's host read blocks from it, others use the lines. `udp://GROUP:PORT` is a multicast line,
    alone, as both lines, or after a tcp line, which then carries subscriptions and no data. No default."""

    bind: str | tuple[str, ...] = ()
    """Address that the publisher binds instead of `endpoints`, such as `tcp://0.0.0.0:17801`. Default: none.

    For two lines a list of two. Set it if the publisher's host does not have the address that subscribers use, as in a
    container, or if that is a name. Applies to publishers and relays."""

    prefixes: tuple[str, ...] = ()
    """Topics that start with one of these belong to this slice. Text, sent as UTF-8.

    No prefix may start with a prefix of another slice. Default: none."""

    share: tuple[int, int] | None = None
    """(index, of): topics whose root hashes to `index` of `of` belong to this slice.

    The shares of all slices must cover 0 to `of` - 1, each once. The root is the text before the topic's first
    separator, so `BRK.A.P` and `BRK.B.P` stay together. Default: none."""

    cpus: tuple[int, ...] = ()
    """CPUs for the sender, slice and worker threads. Unit: CPU numbers. Default: any CPU.

    Applies to publisher and subscriber, each on its own host."""

    io_cpus: tuple[int, ...] = ()
    """CPUs for the slice's ZeroMQ I/O thread. Unit: CPU numbers. Default: any CPU.

    Applies to publisher and subscriber, each on its own host."""

    idle: str = "park"
    """Behaviour of the slice's threads while idle. Default: `park`, sleep until there is work.

    `spin` polls for 2 ms before sleeping. That saves up to some tens of µs of lag and costs a core per subscriber, and
    one for a publisher with `when_full="wait"`. With "drop" the publishing thread sends, so there is no thread to wake.
    A slice that is idle for longer than 2 ms costs no more than with `park`. Applies to both."""

    interface: str = ""
    """Address of the network interface that subscribers connect from. Default: the system's.

    Applies to subscribers on tcp. On udp, also to the publisher: the interface of its multicast."""

    allowed_keys: str = ""
    """Directory of public key files of peers that may connect to this slice, instead of `security.allowed_keys`.

    Default: none, the feed's setting applies. Archives use the feed's setting. Applies to publishers and relays."""

    def __post_init__(self) -> None:
        """Check each setting on its own. Raises ConfigError."""
        check_types(self)
        for endpoint in self.endpoints:
            check_endpoint(endpoint)
        lines, shared = len(self.lines), len(self.endpoints) - len(self.lines)
        if not 1 <= lines <= MAX_LINES or shared > 1:
            beside = f" and {shared} in shared memory" if shared else ""
            raise ConfigError(
                f"endpoints were {lines}{beside}, expected 1 or {MAX_LINES} (lines A and B) and at most one shm://"
            )
        self._check_multicast()
        check_binds("bind", self.bound, self.sockets)
        for prefix in self.prefixes:
            check_prefix(prefix.encode())
        if self.share is not None:
            if self.prefixes:
                raise ConfigError("prefixes and a share were both set, expected one of the two")
            _check_share(*self.share)
        _check_cpus("cpus", self.cpus)
        _check_cpus("io_cpus", self.io_cpus)
        if self.idle not in ("park", "spin"):
            raise ConfigError(f"idle was {self.idle!r}, expected 'park' or 'spin'")
        if self.interface:
            check_interface(self.interface)
            for endpoint in self.lines:
                if transport_of(endpoint) not in ("tcp", MULTICAST):
                    raise ConfigError(
                        f"interface was {self.interface!r} with endpoint {endpoint!r}, expected tcp or udp endpoints"
                    )

    def _check_multicast(self) -> None:
        """Raise ConfigError unless multicast lines come last, and without what they exclude."""
        if not self.multicast:
            return
        if self.lines != self.sockets + self.multicast:
            raise ConfigError(f"endpoints were {self.endpoints}, expected udp:// after the other line")
        if self.shared_memory:
            raise ConfigError(f"endpoints were {self.endpoints}, expected either udp:// or shm://")
        if self.interface and ":" in self.interface:
            raise ConfigError(f"interface was {self.interface!r} with udp://, expected an IPv4 address")

    @property
    def lines(self) -> tuple[str, ...]:
        """The endpoints of line A and, if there is one, line B."""
        return tuple(endpoint for endpoint in self.endpoints if transport_of(endpoint) != SHARED_MEMORY)

    @property
    def sockets(self) -> tuple[str, ...]:
        """The endpoints of lines that are ZeroMQ sockets: the first ones."""
        return tuple(endpoint for endpoint in self.lines if transport_of(endpoint) != MULTICAST)

    @property
    def multicast(self) -> tuple[str, ...]:
        """The endpoints of multicast lines: the last ones."""
        return tuple(endpoint for endpoint in self.lines if transport_of(endpoint) == MULTICAST)

    @property
    def data_lines(self) -> int:
        """The number of lines that carry data: a tcp line before a multicast line carries none."""
        return len(self.multicast or self.sockets)

    @property
    def bound(self) -> tuple[str, ...]:
        """The address bound for each line that is a ZeroMQ socket."""
        return texts_of(self.bind) or self.sockets

    @property
    def shared_memory(self) -> str:
        """The name of the slice's shared memory, or an empty string."""
        shared = [endpoint for endpoint in self.endpoints if transport_of(endpoint) == SHARED_MEMORY]
        return shared[0].removeprefix(f"{SHARED_MEMORY}://") if shared else ""

    @property
    def spin_ns(self) -> int:
        """Time that its threads poll before they sleep."""
        return SPIN_NS if self.idle == "spin" else 0

    def __repr__(self) -> str:
        """Show the endpoints and the topics."""
        what = "all topics"
        if self.share is not None:
            what = f"share {self.share[0]} of {self.share[1]}"
        elif self.prefixes:
            what = f"{len(self.prefixes)} prefix{'es' * (len(self.prefixes) > 1)}"
        return f"Slice({' + '.join(self.endpoints)}, {what})"


def _check_share(index: int, of: int) -> None:
    if not 1 <= of <= MAX_SLICES:
        raise ConfigError(f"share was one of {of}, expected one of 1 to {MAX_SLICES}")
    if not 0 <= index < of:
        raise ConfigError(f"share was {index} of {of}, expected 0 to {of - 1}")


def _check_cpus(setting: str, cpus: tuple[int, ...]) -> None:
    for cpu in cpus:
        if not 0 <= cpu <= MAX_CPU:
            raise ConfigError(f"{setting} had CPU {cpu}, expected 0 to {MAX_CPU}")
    if len(set(cpus)) < len(cpus):
        raise ConfigError(f"{setting} were {cpus}, expected each CPU once")


def texts_of(setting: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return a setting of one text or several as a tuple; an empty text gives an empty one."""
    return (setting,) * bool(setting) if isinstance(setting, str) else setting


def check_binds(what: str, binds: tuple[str, ...], endpoints: tuple[str, ...]) -> None:
    """Raise ConfigError unless there is one address to bind for each endpoint."""
    if len(binds) != len(endpoints):
        raise ConfigError(f"{what} had {len(binds)} addresses, expected one for each of the {len(endpoints)} endpoints")
    for bind, endpoint in zip(binds, endpoints, strict=True):
        if bind != endpoint:
            check_bind(what, bind)
            if transport_of(endpoint) != "tcp":
                raise ConfigError(f"{what} was {bind!r} for {endpoint!r}, expected an endpoint on tcp")


def check_together(slices: tuple[Slice, ...], channels: int, security: Security | None) -> None:
    """Raise ConfigError unless the slices of a feed fit each other and its keys."""
    _check_endpoints_differ(slices)
    for slice_id, part in enumerate(slices):
        if part.allowed_keys and security is None:
            raise ConfigError(f"slice {slice_id} had allowed_keys without a table [security], expected both")
    _check_multicast(slices, channels, security is not None and not security.group_key)


def _check_endpoints_differ(slices: tuple[Slice, ...]) -> None:
    slice_of: dict[str, int] = {}
    for slice_id, part in enumerate(slices):
        for endpoint in part.endpoints:
            if endpoint in slice_of:
                raise ConfigError(
                    f"endpoint {endpoint!r} of slice {slice_id} is also an endpoint of "
                    f"slice {slice_of[endpoint]}, expected each endpoint once"
                )
            slice_of[endpoint] = slice_id


def _check_multicast(slices: tuple[Slice, ...], channels: int, lacks_key: bool) -> None:
    """Raise ConfigError unless each multicast line has its own groups, and a group key if it `lacks_key`."""
    taken: dict[Group, str] = {}
    for slice_id, part in enumerate(slices):
        for endpoint in part.multicast:
            if lacks_key:
                raise ConfigError(
                    f"slice {slice_id} had {endpoint!r} and [security] no group_key, expected one: "
                    "`blackbox keys group` makes it"
                )
            for group in groups_of(endpoint, channels):
                if group in taken:
                    raise ConfigError(
                        f"{endpoint!r} of slice {slice_id} uses {group.address}:{group.port}, as {taken[group]!r} "
                        f"does: with {channels} channels, each line needs {channels + 1} groups"
                    )
                taken[group] = endpoint
