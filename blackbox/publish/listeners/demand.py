"""Topic prefixes requested by a publisher's subscribers, directly or through relays."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from blackbox.errors import RightsError
from blackbox.native.system.limits import start_thread

log = logging.getLogger("blackbox")

_WARN_S: Final = 3.0

Listener = Callable[[bytes, bool], object]
"""Called with a prefix, and True if it is now wanted."""


class Demand:
    """Count the prefixes that are wanted on any line of any slice, and call listeners when the set changes.

    `wants` takes no lock, although sender threads change what it reads. Listeners are called in a thread of their own,
    one at a time, from `start` to `end`.

    Attributes: `version`, number of changes; `told`, the version up to which all listeners were called; `refused`,
    prefixes for which a listener raised RightsError.
    """

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._sizes: Counter[int] = Counter()
        self._lengths: tuple[int, ...] = ()
        self.version = self.told = 0
        self.refused: frozenset[bytes] = frozenset()
        self._changed = threading.Condition()
        self._news: OrderedDict[bytes, int] = OrderedDict()
        """Prefixes added or removed since listeners were last called for them, with the version of the change; oldest
        first.
        """
        self._listeners: list[tuple[Listener, set[bytes], set[bytes]]] = []
        """Each with the prefixes reported to it as wanted, and those that it refuses."""
        self._has_begun = self._is_over = self._has_warned = False
        self._called_at = 0.0
        """Monotonic time since which a listener has been running; 0: none is."""
        self._thread = threading.Thread(target=self._run, name="blackbox-demand", daemon=True)

    def wants(self, topic: bytes) -> bool:
        """Return True if a subscriber wants a topic."""
        counts = self._counts
        return any(topic[:length] in counts for length in self._lengths)

    def change(self, prefix: bytes, by: int) -> None:
        """Count a prefix as wanted on one more line of a slice (`by` 1), or on one fewer (-1)."""
        with self._changed:
            count = self._counts[prefix] + by
            if count:
                self._counts[prefix] = count
            else:
                del self._counts[prefix]
            if count == max(by, 0):  # the first was added, or the last removed
                self._sizes[len(prefix)] += by
                if self._sizes[len(prefix)] == max(by, 0):
                    self._lengths = tuple(sorted(size for size, count in self._sizes.items() if count))
                self._note(prefix)

    def _note(self, prefix: bytes) -> None:
        self.version += 1
        if self._listeners and not self._is_over:
            self._news[prefix] = self.version
            self._news.move_to_end(prefix)
            self._changed.notify_all()
        else:
            self.told = self.version

    def listen(self, listener: Listener) -> None:
        """Call a function with each wanted prefix, then with each one added or removed. Raises LimitError."""
        with self._changed:
            self._listeners.append((listener, set(), set()))
            for prefix in self._counts:
                self._note(prefix)
            self._begin()

    def start(self) -> None:
        """Start calling listeners. Raises LimitError."""
        with self._changed:
            self._has_begun = True
            self._begin()

    def _begin(self) -> None:
        if self._has_begun and self._listeners and self._thread.ident is None and not self._is_over:
            start_thread(self._thread)

    def end(self) -> None:
        """Stop calling listeners."""
        with self._changed:
            self._is_over = True
            self.told = self.version
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for a running listener, unless called from it. Log a warning if it is still running at the timeout."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
            if self._thread.is_alive():
                log.warning("an on_demand function has not returned %.1f s after its publisher was closed", timeout)

    def is_told(self, version: int) -> bool:
        """Return True if listeners were called for all changes up to `version`. Logs a slow listener once."""
        if self.told >= version:
            return True
        called = self._called_at
        if called and not self._has_warned and time.monotonic() - called > _WARN_S:
            self._has_warned = True
            log.warning("an on_demand function has not returned for %.0f s: subscribers await confirmation", _WARN_S)
        return False

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._news and not self._is_over:
                    self._changed.wait()
                if self._is_over:
                    return
                prefix, version = self._news.popitem(last=False)
                is_wanted, listeners = prefix in self._counts, tuple(self._listeners)
            for listener, told_of, refuses in listeners:
                if is_wanted != (prefix in told_of):
                    (told_of.add if is_wanted else told_of.discard)(prefix)
                    (refuses.discard if self._accepts(listener, prefix, is_wanted) else refuses.add)(prefix)
            is_refused = any(prefix in refuses for _, _, refuses in listeners)
            self.refused = self.refused | {prefix} if is_refused else self.refused - {prefix}
            with self._changed:
                self.told = max(self.told, version)

    def _accepts(self, listener: Listener, prefix: bytes, is_wanted: bool) -> bool:
        """Call a listener. Return False if it refuses the prefix."""
        self._called_at = time.monotonic()
        try:
            listener(prefix, is_wanted)
        except RightsError as error:
            log.warning("on_demand refused %r: %s", prefix, error)
            return False
        except BaseException:  # an error must not hold up other listeners or subscribers
            log.exception("on_demand raised when it was called with %r, %s", prefix, is_wanted)
        finally:
            self._called_at = 0.0
        return True
