"""TLS for connections to other systems: certificates, and errors that no retry fixes."""

from __future__ import annotations

import ssl
from typing import Final

from blackbox.errors import ConfigError

_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""Errors of a host that does not encrypt."""


def check_certificates(scheme: str, ca: str | None, *, is_encrypted: bool) -> None:
    """Raise ConfigError unless `ca`, if given, is a file of certificates and connections are encrypted."""
    if not is_encrypted:
        if ca is not None:
            head, plus, rest = scheme.partition("+")
            secure = f"{head}s{plus}{rest}"
            raise ConfigError(
                f"option was ca={ca}, expected none with {scheme}://, which is not encrypted: {secure}:// is"
            )
        return
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConfigError(f"option was ca={ca}, expected a file of certificates in PEM: {error}") from error


def is_untrusted(error: BaseException | None) -> bool:
    """Return True if a connection failed because the host is not certified or does not encrypt."""
    return isinstance(error, ssl.SSLError) and (
        isinstance(error, ssl.SSLCertVerificationError) or error.reason in _NOT_TLS
    )
