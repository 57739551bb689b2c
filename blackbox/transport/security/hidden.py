"""Hide secrets in the repr of named tuples and structs, which logs and tracebacks show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Kind = TypeVar("_Kind", bound=type[Any])


def hides(*secret: str) -> Callable[[_Kind], _Kind]:
    """Return a decorator of a named tuple or struct: its repr has `...` as the values of these fields."""

    def decorated(kind: _Kind) -> _Kind:
        names: tuple[str, ...] = getattr(kind, "_fields", None) or kind.__struct_fields__
        assert set(secret) <= set(names)

        def shown(self: Any) -> str:
            values = (f"{name}={'...' if name in secret else repr(getattr(self, name))}" for name in names)
            return f"{kind.__name__}({', '.join(values)})"

        kind.__repr__ = shown  # type: ignore[assignment]
        return kind

    return decorated
