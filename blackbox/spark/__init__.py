"""Recorded days in PySpark: a session that is set up for them, the data source, analysis. Needs the extra `spark`.

What analyses is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from blackbox.spark.session import session

if TYPE_CHECKING:

__all__ = [
    "session",
]

_MODULE_OF = {
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'blackbox.spark' has no attribute {name!r}")
    value: object = getattr(import_module(f"blackbox.spark.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
