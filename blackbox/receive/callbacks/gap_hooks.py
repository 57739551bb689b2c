"""Select the functions to call for missing messages of a key, between the messages around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from blackbox.block.gap import Gap
from blackbox.feed.routing.key_rule import may_have_key
from blackbox.receive.callbacks.callbacks import Callback

_MOST_KEYS: Final = 4_096
"""Most keys for which the selection is cached; then the cache is cleared."""


class GapHook(NamedTuple):
    """A user's function that is called for gaps."""

    starts: Sequence[tuple[bytes, bool]]
    """Starts of its topics. True: only the topic equal to the start."""
    function: Callable[[Gap], object]
    group: str | None
    owner: object
    """The subscriber whose callbacks may miss messages."""


class GapRules(NamedTuple):
    """Reports of missing messages in a slice, for all its workers."""

    hooks: Sequence[GapHook] = ()
    hears_live: bool = False
    """True if a hook is called when the slice switches to live, between the callbacks' messages."""
    key_rule: int = 0
    """The feed's key rule: it limits which callbacks a gap of a key concerns."""


NO_RULES: Final = GapRules()


class GapHooks:
    """Callbacks of one worker of a slice, and the hooks called there for messages that they miss."""

    def __init__(self, callbacks: Sequence[Callback], rules: GapRules) -> None:
        self.callbacks, self._key_rule = callbacks, rules.key_rule
        self._hears_live = rules.hears_live and bool(callbacks)
        self._hooks = [hook for hook in rules.hooks if any(_is_of(hook, callback) for callback in callbacks)]
        self._told: dict[bytes, list[Callable[[Gap], object]]] = {}

    @property
    def listens(self) -> bool:
        """True if Python must process notices: for hooks, or for callbacks with state unknown to compiled code."""
        return self._hears_live or bool(self._hooks) or any(callback.kind == "book" for callback in self.callbacks)

    def told(self, key: bytes) -> list[Callable[[Gap], object]]:
        """Return the functions to call when messages of a key are lost: callbacks' own, then hooks."""
        found = self._told.get(key)
        if found is None:
            rule = self._key_rule
            concerned = [callback for callback in self.callbacks if may_have_key(rule, callback.prefix, key)]
            hooks = [
                hook.function
                for hook in self._hooks
                if any(may_have_key(rule, text, key, whole=whole) for text, whole in hook.starts)
                and any(_is_of(hook, callback) for callback in concerned)
            ]
            found = [*(callback.lose for callback in concerned if callback.kind == "book"), *hooks]
            if len(self._told) == _MOST_KEYS:
                self._told.clear()
            self._told[key] = found
        return found


def _is_of(hook: GapHook, callback: Callback) -> bool:
    is_of = hook.owner is callback.owner and hook.group in (None, callback.group)
    return is_of and any(_is_told_of(hook, start) for start, _ in callback.starts)


def _is_told_of(hook: GapHook, start: bytes) -> bool:
    """Return True if topics with this start may be a hook's."""
    return any(text.startswith(start) or (not whole and start.startswith(text)) for text, whole in hook.starts)
