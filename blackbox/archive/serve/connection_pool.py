"""Connections to the archives of a feed, in the order in which they are asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from blackbox.archive.serve.connection import Connection, SilentArchiveError
from blackbox.archive.serve.protocol import About, AskAbout
from blackbox.errors import ArchiveError, ConfigError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.routing.key_rule import rule_text
from blackbox.native.system.awake_clock import awake_s, spread
from blackbox.transport.security.curve import keys_of_archive

log = logging.getLogger("blackbox")
_AnswerT = TypeVar("_AnswerT")

RETRY_S: Final = 0.32
"""Pause before all archives are asked again. Unit: s."""
_MOST_WAIT_S: Final = 60.0
"""Time for which a connected archive that does not answer is asked again, with growing timeouts. Unit: s."""
_MOST_ANSWER_S: Final = 32.0
_NOTICE_S: Final = 10.0
"""Minimum time between two warnings about archives that do not answer. Unit: s."""


class ConnectionPool:
    """Opens connections to the archives of a feed, and notes which archives are silent.

    Attributes: `order`, the endpoints as they are asked: in the order of the feed file, but those that failed come
    last; `silent`, by endpoint the time since which an archive has not answered, by `awake_s`.
    """

    def __init__(self, feed: Feed, timeout: float, *, keeps: bool) -> None:
        """`timeout`: see `ArchiveClient`. With `keeps`, connections stay open for later requests of the same thread.

        Raises ConfigError if the feed has no archive, or a key of `[security]` is missing or malformed.
        """
        check_is_feed(feed)
        if not feed.archives:
            raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
        if not timeout > 0:
            raise ValueError(f"timeout was {timeout}, expected more than 0 s")
        self.feed, self.timeout = feed, timeout
        self.order: tuple[str, ...] = feed.archives
        self.silent: dict[str, float] = {}
        self._keys = {endpoint: keys_of_archive(feed, endpoint) for endpoint in feed.archives}
        self._waited: dict[str, float] = {}
        """Seconds spent waiting for each connected archive since its last answer."""
        self._warned_at = -_NOTICE_S
        self._idle: dict[str, Connection] | None = {} if keeps else None

    def close(self) -> None:
        """Close the idle connections."""
        for connection in (self._idle or {}).values():
            connection.close()

    @contextmanager
    def connection(
        self,
        endpoint: str,
        is_over: Callable[[], bool] | None = None,
        timeout: float = 0.0,
        *,
        is_hasty: bool = False,
    ) -> Iterator[Connection]:
        """Yield a connection to an archive of this feed; `timeout` applies if it is longer than the pool's.

        With `is_over`, an archive that did not answer before gets a longer timeout. `is_hasty`: see `Connection`.
        """
        began, timeout = awake_s(), max(timeout, self.timeout)
        if is_over is not None and self.may_answer([endpoint]):
            timeout = max(timeout, min(self._waited[endpoint], _MOST_ANSWER_S))
        asking = (self._idle or {}).pop(endpoint, None) or Connection(endpoint, timeout, self._keys[endpoint])
        asking.is_over, asking.heard, asking.timeout, asking.is_hasty = is_over or _never, 0.0, timeout, is_hasty
        try:
            if not asking.is_known:
                self.about(asking, AskAbout())
                asking.is_known = True
            yield asking
        except GeneratorExit:  # its late answer must not be taken for that to the next request
            self._keep(asking)
            raise
        except BaseException as error:
            try:
                if isinstance(error, ArchiveError):
                    self.silent[endpoint] = asking.heard or self.silent.get(endpoint, began)
                    self._note_silence(asking, error)
            finally:
                asking.close()
            raise
        self._keep(asking)

    def about(self, asking: Connection, request: AskAbout) -> About:
        """Return the answer of an archive. Raises ArchiveError if it is not an archive of this feed."""
        about, ours = asking.ask(request)[0], (self.feed.name, self.feed.key_rule)
        if isinstance(about, About) and (about.feed, about.key_rule) == ours:
            return about
        what = f"feed {about.feed!r}, {rule_text(about.key_rule)}" if isinstance(about, About) else repr(about)
        expected = f"feed {self.feed.name!r}, {rule_text(self.feed.key_rule)}"
        raise ArchiveError(f"{asking.endpoint}: archive was of {what}, expected {expected}")

    def first_answer(self, until: float, ask: Callable[[Connection], _AnswerT]) -> _AnswerT:
        """Return the answer of the first archive that gives one. Ask all again until a time, by `time.monotonic`.

        Each attempt doubles the timeout, for busy hosts. Raises ArchiveError with the failure of each archive.
        """
        patience_s = self.timeout
        while True:
            failures: list[str] = []
            for endpoint in self.order:
                try:
                    with self.connection(endpoint, timeout=min(patience_s, until - time.monotonic())) as asking:
                        return ask(asking)
                except ArchiveError as error:
                    self.put_last(endpoint)
                    failures.append(str(error))
            if time.monotonic() >= until:
                raise self.no_answer(failures)
            patience_s *= 2
            time.sleep(spread(RETRY_S))

    def may_answer(self, endpoints: Collection[str]) -> bool:
        """Return True if one of them missed its deadline but is connected and was waited for less than a minute."""
        return any(self._waited.get(each, _MOST_WAIT_S) < _MOST_WAIT_S for each in endpoints)

    def put_last(self, endpoint: str) -> None:
        """Move an archive that failed to the end of the order."""
        self.order = (*(each for each in self.order if each != endpoint), endpoint)

    def no_answer(self, failures: Collection[str]) -> ArchiveError:
        """Return the error for a request that no archive answered."""
        return ArchiveError(f"no archive of feed {self.feed.name!r} answered: {'; '.join(failures)}")

    def _keep(self, asking: Connection) -> None:
        """Keep a connection for the next request, or close it."""
        self.silent.pop(asking.endpoint, None)
        self._waited.pop(asking.endpoint, None)
        if self._idle is None or asking.endpoint in self._idle:  # a nested request has kept its own connection
            asking.close()
        else:
            self._idle[asking.endpoint] = asking

    def _note_silence(self, asking: Connection, error: ArchiveError) -> None:
        """Note that an archive did not answer in time. Warn if it is connected, because it is asked again."""
        if asking.is_over():
            return
        if not isinstance(error, SilentArchiveError) or not asking.is_connected():
            self._waited.pop(asking.endpoint, None)
            return
        before_s = 0.0 if asking.heard else self._waited.get(asking.endpoint, 0.0)
        self._waited[asking.endpoint] = before_s + asking.timeout
        if time.monotonic() - self._warned_at >= _NOTICE_S:
            self._warned_at = time.monotonic()
            log.warning(
                "%s but is connected: it is asked again, for up to %g s, with more patience", error, _MOST_WAIT_S
            )


def _never() -> bool:
    return False
