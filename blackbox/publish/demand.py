"""What is wanted of a publisher, anywhere behind it: prefixes of topics, as subscribers and relays ask for them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

from blackbox.native.limits import start_thread

log = logging.getLogger("blackbox")

Listener = Callable[[bytes, bool], object]
"""Called with a prefix, and whether it is wanted now."""


class Demand:
    """The prefixes that are wanted on any line of any slice, and who is told when that changes.

    `wants` takes no lock: it looks into what the senders' threads change. Listeners are called in a thread of their
    own, one at a time; it begins with the first listener and ends with `close`.

    Attributes: `version`, how many changes there were; `told`, how many of these every listener has heard of.
    """

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._sizes: Counter[int] = Counter()
        self._lengths: tuple[int, ...] = ()
        self.version = self.told = 0
        self._changed = threading.Condition()
        self._news: dict[bytes, None] = {}
        """Prefixes that have come or gone since listeners were called, the first one first."""
        self._listeners: list[tuple[Listener, set[bytes]]] = []
        """Each with the prefixes that it was told are wanted."""
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="blackbox-demand", daemon=True)

    def wants(self, topic: bytes) -> bool:
        """Whether somebody wants a topic."""
        counts = self._counts
        return any(topic[:length] in counts for length in self._lengths)

    def change(self, prefix: bytes, by: int) -> None:
        """Note that a prefix is wanted on one more line of a slice (`by` 1), or on one less (-1)."""
        with self._changed:
            count = self._counts[prefix] + by
            if count:
                self._counts[prefix] = count
            else:
                del self._counts[prefix]
            if count == max(by, 0):  # the first one came, or the last one went
                self._sizes[len(prefix)] += by
                if self._sizes[len(prefix)] == max(by, 0):
                    self._lengths = tuple(sorted(size for size, count in self._sizes.items() if count))
                self._note(prefix)

    def _note(self, prefix: bytes) -> None:
        self.version += 1
        if self._listeners:
            self._news[prefix] = None
            self._changed.notify_all()
        else:
            self.told = self.version

    def listen(self, listener: Listener) -> None:
        """Call a function with each prefix that is wanted now, then with each that comes or goes. Raises LimitError."""
        with self._changed:
            if self._thread.ident is None and not self._is_over:
                start_thread(self._thread)
            self._listeners.append((listener, set()))
            for prefix in self._counts:
                self._note(prefix)

    def close(self) -> None:
        """Call listeners no more, and wait for one that is being called."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._news and not self._is_over:
                    self._changed.wait()
                if self._is_over:
                    self.told = self.version
                    return
                news, self._news = self._news, {}
                version, listeners = self.version, tuple(self._listeners)
            for prefix in news:
                is_wanted = prefix in self._counts
                for listener, told_of in listeners:
                    if is_wanted != (prefix in told_of):
                        (told_of.add if is_wanted else told_of.discard)(prefix)
                        try:
                            listener(prefix, is_wanted)
                        except Exception:  # it may not keep the others, or subscribers, waiting
                            log.exception("on_demand raised when it was called with %r, %s", prefix, is_wanted)
            self.told = version
