"""Find the hubs of other sites by asking known hubs, and relay their feeds here.

A question names the site of the hub that asks. Its answer names the sites that the other hub knows at first hand: its
peers, and hubs that have asked or answered it recently. Every found hub is asked, too, so all hubs get to know all.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

import msgspec
import zmq
from msgspec.structs import replace

from blackbox.block.form.layout import VERSION
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import BlackBoxError, ConfigError
from blackbox.feed.feed import Feed, as_recorded
from blackbox.native.system.limits import Needs
from blackbox.services.hub.protocol import (
    ENCODER,
    FOUND,
    MOST_FEED_BYTES,
    MOST_SITES,
    Ended,
    FindSites,
    FoundSites,
    Site,
    wrong_version,
)
from blackbox.services.hub.settings import feed_of_hub
from blackbox.services.hub.sites.discovery import Join
from blackbox.services.hub.sites.site_files import Feeds, SiteFiles, keys_of
from blackbox.services.relay.relay import Relay
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import ClientKeys, load_pair, load_public, refusal_of, use_keys
from blackbox.transport.server_thread import ServerThread
from blackbox.transport.tcp_info import Connections, Failure
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_MOST_ANSWER_BYTES: Final = 32 << 20
_FEED: Final = Decoder[Feed]("json", Feed, MOST_FEED_BYTES)
_LATELY: Final = 3
"""Questions without an answer after which a hub counts as away: it is still asked, but no longer named to others."""
_CONNECTING_S: Final = 0.25
_MOST_SAID: Final = 1_000
_MOST_WHY: Final = 500
_MOST_AT_ONCE: Final = 16
"""Maximum answers of one hub that are read at once."""
_NEEDS: Final = Needs(descriptors=16)


class _Heard(NamedTuple):
    """A site that has sent a message itself."""

    site: Site
    at: float
    is_new: bool
    """True if the thread has not processed it yet."""


class _Recent:
    """Sites that have sent a message themselves, by hub. Both threads of a hub use it."""

    def __init__(self, own_hub: str, keep_s: float) -> None:
        """`keep_s`: seconds after which a silent site is forgotten."""
        self._own_hub, self._keep_s = own_hub, keep_s
        self._changed = threading.Lock()
        self._heard: dict[str, _Heard] = {}

    def note(self, site: Site, hub: str) -> bool:
        """Note that a site has sent a message. Return False if there is no room for it."""
        is_known = hub in self.sites()
        with self._changed:
            if hub == self._own_hub:
                return True
            if is_known or len(self._heard) < MOST_SITES:
                self._heard[hub] = _Heard(site, time.monotonic(), is_new=True)
                return True
        return False

    def sites(self) -> dict[str, Site]:
        """Return the sites that have recently sent a message, and forget all others."""
        since = time.monotonic() - self._keep_s
        with self._changed:
            self._heard = {hub: heard for hub, heard in self._heard.items() if heard.is_new or heard.at >= since}
            return {hub: heard.site for hub, heard in self._heard.items()}

    def take(self) -> list[Site]:
        """Return the same, each at least once even if the calling thread was busy."""
        self.sites()
        with self._changed:
            heard = [*self._heard.values()]
            self._heard = {hub: each._replace(is_new=False) for hub, each in self._heard.items()}
        return [each.site for each in heard]


class _Found(NamedTuple):
    """A site that is relayed here."""

    site: Site
    hubs: tuple[str, ...]
    relay: Relay


class Sites:
    """The sites that a hub knows. With `[join]`, its own thread looks for others, from `start` to `close`.

    `answer` is for the hub's thread.
    """

    def __init__(self, own: Feed, peers: Sequence[Feed], join: Join | None) -> None:
        """`peers`: feeds of the sites that the hub file names. Raises ConfigError for keys that cannot be read."""
        self._own, self._join = own, join
        self._names = {feed.name: feed.hub for feed in (*peers, own)}
        """Hub endpoints by name of the feeds that need not be found."""
        self._told = [*map(_site_of, (own, *peers))]
        size = max(len(each.feed) for each in self._told)
        self._why_not = f"a feed had {size} bytes as JSON, expected at most {MOST_FEED_BYTES}"
        if size <= MOST_FEED_BYTES:
            self._why_not = ""
        elif join is not None:
            raise ConfigError(self._why_not)
        every_s = 0.0 if join is None else join.every_ns / 1e9
        self._recent = _Recent(own.hub, _LATELY * every_s)
        self._found: dict[str, _Found] = {}
        """Sites by name of the feed."""
        self._asked: dict[str, _Asked] = {}
        """Asked hubs by endpoint."""
        self._refused: set[tuple[str, str]] = set()
        """Feed and hub of sites that cannot be relayed here."""
        self._said: set[str] = set()
        self._news = Pipe()
        self._thread: ServerThread | None = None
        if join is not None:
            self._files = SiteFiles(own, join)
            self._thread = ServerThread("blackbox-sites", f"sites of {own.name!r}", self._serve)

    @property
    def relays(self) -> tuple[Relay, ...]:
        """Relays of the found sites' feeds."""
        return tuple(each.relay for each in list(self._found.values()))

    def start(self) -> None:
        """Begin with the sites that were found before. Raises ConfigError, EndpointError, LimitError."""
        if self._thread is None:
            return
        for feeds in self._files.load():
            if feeds.there.name not in self._names:
                self._begin(_site_of(feeds.there), feeds)
        self._thread.start()

    def close(self) -> None:
        """End. It may be called again."""
        if self._thread is not None:
            self._thread.end()
        for relay in self.relays:
            relay.close()

    # In the hub's thread.

    def answer(self, question: FindSites, key: str) -> FoundSites | Ended:
        """Return the known sites, and note the site that asks. `key`: its public key; empty: not encrypted."""
        if why := self._why_not or wrong_version("site", question.version):
            return Ended(why)
        if self._join is not None:
            try:
                self._note(question.asks, key)
            except ConfigError as error:
                return Ended(f"site was refused: {error}"[:_MOST_WHY])
            self._news.poke()
        return FoundSites(question.number, [*self._told, *self._recent.sites().values()], VERSION)

    def _note(self, site: Site, key: str) -> None:
        """Note that a site has sent a message itself, with a key. Raises ConfigError if it is not that site's."""
        feed = _feed_of(site)
        hub, known = feed.hub, self._found.get(feed.name)
        if key and key not in site.keys:
            raise ConfigError(f"feed {feed.name!r} had the keys {site.keys}, expected the sender's {key} among them")
        if known is not None and known.site.keys != site.keys:
            raise ConfigError(
                f"feed {feed.name!r} had the keys {site.keys}, expected {known.site.keys} as before: to accept new "
                "ones, delete its two files and restart the hub"
            )
        if not self._recent.note(site, hub):
            self._say(logging.ERROR, f"hub {hub} exceeds the maximum of {MOST_SITES}, and is not named to others")

    # In its own thread.

    def _serve(self) -> None:
        assert self._join is not None
        assert self._thread is not None
        every_s = self._join.every_ns / 1e9
        with ExitStack() as stack:
            self._context = stack.enter_context(new_context("sites", _NEEDS))
            stack.callback(self._close_asked)
            for place, hub in enumerate(self._join.ask):
                self._ask_from_now_on(hub, self._keys(self._join.key_of(place)))
            for found in self._found.values():
                self._ask_hubs(found)
            self._thread.begin()
            while True:
                now = time.monotonic()
                for asked in self._asked.values():
                    asked.ask(now, self._told[0], every_s)
                poller = self._thread.watch(*(each.socket for each in self._asked.values()))
                poller.register(self._news.reader, zmq.POLLIN)
                due = min((each.at for each in self._asked.values()), default=now + every_s)
                if self._thread.poll(poller, due - now) is None:
                    break
                self._hear()
                self._learn_all()
                self._look_at_relays()
            self._thread.begin_to_end()

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._news.reader, 4_096)

    def _learn_all(self) -> None:
        """Process news: first what sites say of themselves, then what others say of them."""
        others = list[Site]()
        for asked in list(self._asked.values()):
            sites = asked.answered()
            others += sites
            try:
                if sites:
                    self._note(sites[0], asked.key)
            except ConfigError as error:
                self._say(logging.ERROR, f"a site was not accepted: {error}")
        spoke = self._recent.take()
        for site, is_first_hand in (*((each, True) for each in spoke), *((each, False) for each in others)):
            try:
                self._learn(site, is_first_hand)
            except (BlackBoxError, OSError) as error:
                self._say(logging.ERROR, f"a site was not accepted: {error}")

    def _learn(self, site: Site, is_first_hand: bool) -> None:
        """Relay a site if it is new, or says itself that it has changed. Raises BlackBoxError or OSError."""
        feed = _feed_of(site)
        site = Site(msgspec.json.encode(feed), site.keys)
        known = self._found.get(feed.name)
        if feed.hub == self._own.hub or (known is not None and known.site == site):
            return
        at = known.hubs[0] if known is not None else self._names.get(feed.name, feed.hub)
        if at != feed.hub and (known is None or known.hubs[0] in self._recent.sites()):
            raise ConfigError(f"feed {feed.name!r} was of hub {feed.hub} and of hub {at}: give each its own name")
        if feed.name in self._names or (feed.name, feed.hub) in self._refused or (known and not is_first_hand):
            return
        if known is None and len(self._found) >= MOST_SITES:
            raise ConfigError(f"feed {feed.name!r} exceeds the maximum of {MOST_SITES} sites")
        if known is not None:
            known.relay.close()
            del self._found[feed.name]
        found = self._begin(site, self._files.write(site, feed))
        self._ask_hubs(found)
        self._ask_no_more()
        what = "found" if known is None else "has changed:"
        log.warning(
            "hub of feed %r: %s feed %r of hub %s; readers here load %s",
            self._own.name,
            what,
            feed.name,
            feed.hub,
            self._files.path(feed.name),
        )

    def _begin(self, site: Site, feeds: Feeds) -> _Found:
        relay = Relay(feeds.there, feeds.here, name=self._own.name).start()
        hubs = tuple(filter(None, (feeds.there.hub, feeds.there.hub_backup)))
        found = self._found[feeds.there.name] = _Found(site, hubs, relay)
        return found

    def _look_at_relays(self) -> None:
        """Drop sites that cannot be relayed here, as they would lead back."""
        for name, found in list(self._found.items()):
            try:
                found.relay.check()
            except BlackBoxError as error:
                self._say(logging.ERROR, f"feed {name!r} of hub {found.hubs[0]} is not relayed: {error}")
                found.relay.close()
                self._refused.add((name, found.hubs[0]))
                del self._found[name]
                self._ask_no_more()

    def _ask_hubs(self, found: _Found) -> None:
        """Ask a site's hubs from now on."""
        security = found.relay.upstream.security
        for line, hub in enumerate(found.hubs):
            self._ask_from_now_on(hub, self._keys(security.key_of_line(line) if security is not None else ""))

    def _ask_from_now_on(self, hub: str, keys: ClientKeys | None) -> None:
        if hub not in self._asked and hub not in (self._own.hub, self._own.hub_backup):
            try:
                self._asked[hub] = _Asked(self._own.name, hub, self._context, keys)
            except zmq.ZMQError as error:
                self._say(logging.ERROR, f"hub {hub!r} cannot be asked: {error.strerror}")

    def _ask_no_more(self) -> None:
        """Stop asking hubs that no site has any more."""
        assert self._join is not None
        wanted = {*self._join.ask, *(hub for found in self._found.values() for hub in found.hubs)}
        for hub in self._asked.keys() - wanted:
            self._asked.pop(hub).close()

    def _keys(self, server: str) -> ClientKeys | None:
        if self._own.security is None:
            return None
        if not server:
            raise ConfigError(f"ask_keys were missing, expected public key files, as feed {self._own.name!r} has keys")
        return ClientKeys(load_pair(self._own.security.key), load_public(server))

    def _say(self, level: int, text: str) -> None:
        """Log something, once."""
        text = text[: 2 * _MOST_WHY]
        if text not in self._said:
            if len(self._said) >= _MOST_SAID:
                self._said.clear()
            self._said.add(text)
            log.log(level, "hub of feed %r: %s", self._own.name, text)

    def _close_asked(self) -> None:
        for asked in self._asked.values():
            asked.close()


class _Asked:
    """A hub that is asked repeatedly, one question at a time."""

    def __init__(self, own: str, hub: str, context: zmq.Context[zmq.Socket[bytes]], keys: ClientKeys | None) -> None:
        """`own`: name of the feed of the hub that asks."""
        self._own, self._hub, self._keys = own, hub, keys
        self.at = 0.0
        """Time of the next question, by the monotonic clock."""
        self._number = self._unanswered = 0
        self._why, self._told = "", 0
        """Reason why it names no sites, and the number of the question that it answered with it."""
        self.socket = socket = context.socket(zmq.DEALER)
        self._connections = Connections(socket)
        socket.linger, socket.sndhwm, socket.rcvhwm = 0, 1, 1
        socket.setsockopt(zmq.MAXMSGSIZE, _MOST_ANSWER_BYTES)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing waits for a hub that is away
        keep_alive(socket)
        allow_ipv6(socket, hub)
        use_keys(socket, keys)
        try:
            socket.connect(hub)
        except zmq.ZMQError:
            self.close()
            raise

    @property
    def key(self) -> str:
        """Public key of the hub that answers; empty: not encrypted."""
        return "" if self._keys is None else self._keys.server.decode()

    def close(self) -> None:
        """Close its socket."""
        self._connections.close()
        self.socket.close()

    def ask(self, now: float, me: Site, every_s: float) -> None:
        """Ask if a question is due; log once that the hub is away."""
        if now < self.at:
            return
        self._connections.look()
        if self._unanswered and self._unanswered % _LATELY == 0:
            if self._unanswered == _LATELY:
                why = refusal_of(self._connections.failures.keys() - {Failure.LEFT}, self._keys)
                log.warning(
                    "hub of feed %r: hub %s does not answer which sites there are%s; it is asked again every %g s",
                    self._own,
                    self._hub,
                    f", as {why}" if why else "",
                    every_s,
                )
            with suppress(zmq.ZMQError):
                self.socket.disconnect(self._hub)
            self.socket.connect(self._hub)  # libzmq gives up a peer that refuses it
        self._unanswered += 1
        self._number += 1
        self.at = now + (every_s if self._is_asked(me) else min(every_s, _CONNECTING_S))

    def _is_asked(self, me: Site) -> bool:
        try:
            self.socket.send(ENCODER.encode(FindSites(self._number, me, VERSION)), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def answered(self) -> list[Site]:
        """Return the sites that the hub has named, if it has answered since."""
        found = list[Site]()
        with suppress(zmq.Again):
            for _ in range(_MOST_AT_ONCE):
                text = self.socket.recv(zmq.NOBLOCK)
                try:
                    answer = FOUND.decode(text)
                    if isinstance(answer, FoundSites) and (why := wrong_version("its", answer.version)):
                        answer = Ended(why)
                except DecodeError as error:
                    answer = Ended(f"its answer was not understood: {error}")
                if isinstance(answer, FoundSites) and answer.number != self._number:
                    continue
                if self._unanswered > _LATELY:
                    log.warning("hub of feed %r: hub %s answers again", self._own, self._hub)
                self._unanswered = 0
                if isinstance(answer, FoundSites):
                    found = answer.sites
                elif self._why != answer.why and self._told != self._number:
                    self._why, self._told = answer.why, self._number
                    log.error("hub of feed %r: hub %s names no sites: %s", self._own, self._hub, answer.why[:_MOST_WHY])
        return found


def _site_of(feed: Feed) -> Site:
    """Return a feed as other sites see it. Raises ConfigError for keys that cannot be read."""
    return Site(msgspec.json.encode(_told_of(feed)), keys_of(feed))


def _told_of(feed: Feed) -> Feed:
    """Return a feed without the settings that hold only at its own site."""
    feed = as_recorded(feed)
    slices = tuple(replace(part, cpus=(), io_cpus=(), interface="") for part in feed.slices)
    return replace(feed, slices=slices)


def _feed_of(site: Site) -> Feed:
    """Return a site's feed. Raises ConfigError naming what is wrong with it."""
    try:
        return feed_of_hub(_told_of(_FEED.decode(site.feed)))
    except DecodeError as error:
        raise ConfigError(f"its feed was not understood: {error}") from None
