"""Options shared by several commands: topic prefixes, JSON, and the log. A name means the same everywhere."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, cleandoc
from typing import Annotated, Any, Final

import typer

from blackbox.arguments import LONGEST_S
from blackbox.cli.ui.log import Format, Level, set_log

LEVEL_VARIABLE: Final = "BLACKBOX_LOG_LEVEL"
FORMAT_VARIABLE: Final = "BLACKBOX_LOG_FORMAT"
_PANEL: Final = "Log"
_LEVEL_HELP: Final = "Least level of log lines on stderr."
_FORMAT_HELP: Final = "Lines on stderr as text, or as JSON objects."

LevelOption = Annotated[
    Level | None,
    typer.Option(
        "--log-level", envvar=LEVEL_VARIABLE, rich_help_panel=_PANEL, help=_LEVEL_HELP, show_default="warning"
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--log-format", envvar=FORMAT_VARIABLE, rich_help_panel=_PANEL, help=_FORMAT_HELP, show_default="text"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts: one document on one line.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts: one object per line.")]


def choice_of(name: str, metavar: str, what: str, *, default: str, minimum: int | None = None) -> Any:
    """Return an option that can be repeated; `default` describes its absence."""
    text = f"{what} Can be repeated. Default: {default}."
    return typer.Option(name, metavar=metavar, help=text, show_default=False, min=minimum)


PrefixOption = Annotated[
    list[str] | None, choice_of("--prefix", "TEXT", "Only topics that start with this.", default="all topics")
]
SymbolOption = Annotated[
    list[str] | None, choice_of("--symbol", "SYMBOL", "Only topics of exactly this symbol.", default="all symbols")
]
CountOption = Annotated[int, typer.Option("--count", metavar="N", min=0, help="End after N messages; 0: no limit.")]
WaitTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Time limit of that wait. Default: no limit.",
        show_default=False,
    ),
]
SliceOption = Annotated[
    list[int] | None,
    choice_of("--slice", "N", "Only this slice of the recording.", default="all slices", minimum=0),
]
# After a command's name, log options come from the command line only; the environment was read before.
_OWN: Final = (
    Parameter(
        "log_level",
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Level | None, typer.Option("--log-level", rich_help_panel=_PANEL, help=_LEVEL_HELP, show_default=False)
        ],
    ),
    Parameter(
        "log_format",
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Format | None, typer.Option("--log-format", rich_help_panel=_PANEL, help=_FORMAT_HELP, show_default=False)
        ],
    ),
)


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that also takes `--log-level` and `--log-format`, and rejects numbers above `LONGEST_S`."""

    @wraps(command)
    def logged(*, log_level: Level | None, log_format: Format | None, **arguments: Any) -> None:
        set_log(log_level, log_format)
        for name, value in arguments.items():
            if isinstance(value, float) and not value <= LONGEST_S:  # NaN is not
                raise typer.BadParameter(
                    f"was {value:g}, expected at most {LONGEST_S:g}", param_hint=f"--{name.replace('_', '-')}"
                )
        command(**arguments)

    own = inspect.signature(command, eval_str=True)
    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own.parameters.values()]
    logged.__signature__ = own.replace(parameters=[*parameters, *_OWN])  # type: ignore[attr-defined]  # typer reads it
    return logged


def prefixes_of(texts: Iterable[str] | None) -> tuple[bytes, ...]:
    """Return the topic prefixes of `--prefix`, each once, in order; by default the prefix of all topics."""
    return tuple(dict.fromkeys(map(os.fsencode, texts or ("",))))


def symbols_of(texts: Iterable[str] | None) -> list[bytes] | None:
    """Return the symbols of `--symbol`, each once, in order; by default None, for all symbols."""
    return list(dict.fromkeys(map(os.fsencode, texts))) if texts else None


def help_of(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line, for the terminal to wrap."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.__doc__ or ""))
