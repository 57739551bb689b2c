"""The libraries of connections to and from Binance's protocol."""

from __future__ import annotations

from blackbox.errors import ConfigError


def check_libraries(what: str) -> None:
    """Import the libraries. Raises ConfigError, which says `what` needs them, if one is not installed."""
    try:
        import uvloop  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{what} needs websockets and uvloop: pip install 'blackbox-md[live]' ({error})") from error
