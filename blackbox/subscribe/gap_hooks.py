"""Choose what to call where messages of a key are missing, between those before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from blackbox.block.gap import Gap
from blackbox.subscribe.callbacks import Callback

_MOST_KEYS: Final = 4_096
"""Keys for which the choice is kept; with more it is made anew."""


class GapHook(NamedTuple):
    """A function of the user that is told of gaps."""

    starts: Sequence[tuple[bytes, bool]]
    """Starts of the topics that it hears of. True: only the topic that is equal to the start."""
    function: Callable[[Gap], object]
    group: str | None
    owner: object
    """Of the subscriber whose callbacks may miss something."""


class GapHooks:
    """The callbacks of one worker of a slice, and the hooks that are told there of what they may miss."""

    def __init__(self, callbacks: Sequence[Callback], hooks: Sequence[GapHook], hears_live: bool = False) -> None:
        """`hears_live`: a hook wants to hear when the slice goes over to live, between the callbacks' messages."""
        self.callbacks = callbacks
        self._hears_live = hears_live and bool(callbacks)
        self._hooks = [hook for hook in hooks if any(_is_of(hook, callback) for callback in callbacks)]
        self._told: dict[bytes, list[Callable[[Gap], object]]] = {}

    @property
    def listens(self) -> bool:
        """Whether Python is to hear of notices: for hooks, or callbacks that keep more than compiled code knows of."""
        return self._hears_live or bool(self._hooks) or any(callback.kind == "book" for callback in self.callbacks)

    def told(self, key: bytes) -> list[Callable[[Gap], object]]:
        """Return what is to be called when messages of a key are lost: callbacks' own, then hooks."""
        found = self._told.get(key)
        if found is None:
            concerned = [callback for callback in self.callbacks if may_share_topics(callback.prefix, key)]
            hooks = [
                hook.function
                for hook in self._hooks
                if _is_told_of(hook, key) and any(_is_of(hook, callback) for callback in concerned)
            ]
            found = [*(callback.lose for callback in concerned if callback.kind == "book"), *hooks]
            if len(self._told) == _MOST_KEYS:
                self._told.clear()
            self._told[key] = found
        return found


def may_share_topics(prefix: bytes, other: bytes) -> bool:
    """Return whether there are topics that start with both."""
    return prefix.startswith(other) or other.startswith(prefix)


def _is_of(hook: GapHook, callback: Callback) -> bool:
    is_of = hook.owner is callback.owner and hook.group in (None, callback.group)
    return is_of and any(_is_told_of(hook, start) for start in callback.starts)


def _is_told_of(hook: GapHook, start: bytes) -> bool:
    """Return whether topics that start so may be those of a hook."""
    return any(text.startswith(start) if whole else may_share_topics(text, start) for text, whole in hook.starts)
