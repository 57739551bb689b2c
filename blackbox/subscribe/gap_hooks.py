"""Choose what to call where messages of a key are missing, between those before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from blackbox.block.gap import Gap
from blackbox.feed.key_rule import may_have_key
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

    def __init__(
        self, callbacks: Sequence[Callback], hooks: Sequence[GapHook], key_rule: int, hears_live: bool = False
    ) -> None:
        """`hears_live`: a hook wants to hear when the slice goes over to live, between the callbacks' messages."""
        self.callbacks, self._key_rule = callbacks, key_rule
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
    """Return whether topics that start so may be those of a hook."""
    return any(text.startswith(start) or (not whole and start.startswith(text)) for text, whole in hook.starts)
