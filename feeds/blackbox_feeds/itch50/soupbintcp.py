"""SoupBinTCP: a TCP connection that carries the numbered messages of one session, and can be resumed.

Source: "SoupBinTCP" 3.00 of NASDAQ. Integers are big-endian; numbers in logins are ASCII, padded with spaces.

    length 2 | type 1 | payload            the length counts the type, not itself

    login request  L   user 6 | password 10 | session 10 | sequence 20
    login accepted A   session 10 | sequence 20
    login rejected J   code 1

Texts of a user and a password are padded on the right, sessions and numbers on the left. A blank session is the current
one; the sequence is that of the next message, 1 in a new session, or 0 for the most recent one.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from blackbox.transport.security.hidden import hides

LENGTH: Final = Struct(">H")
MOST_SEQUENCE: Final = 1 << 62
"""A larger number is no sequence."""

DEBUG: Final = b"+"
LOGIN_ACCEPTED: Final = b"A"
LOGIN_REJECTED: Final = b"J"
SEQUENCED: Final = b"S"
SERVER_HEARTBEAT: Final = b"H"
END_OF_SESSION: Final = b"Z"
LOGIN_REQUEST: Final = b"L"
UNSEQUENCED: Final = b"U"
CLIENT_HEARTBEAT: Final = b"R"
LOGOUT_REQUEST: Final = b"O"

NOT_AUTHORIZED: Final = b"A"
NO_SESSION: Final = b"S"

HEARTBEAT_S: Final = 1.0
"""Each side sends a heartbeat after this time without other packets."""
SILENCE_S: Final = 15.0
"""A connection without any packet for this time is lost."""

_LOGIN_REQUEST: Final = Struct("6s10s10s20s")
_LOGIN_ACCEPTED: Final = Struct("10s20s")


@hides("password")
class Login(NamedTuple):
    """A login request."""

    user: str
    password: str
    session: str = ""
    """Session to resume; "" is the current one."""
    sequence: int = 1
    """Sequence of the next message wanted; 0: the most recent one."""

    def pack(self) -> bytes:
        """Return the packet. Texts that are too long, or not ASCII, raise ValueError."""
        user, password, session = (text.encode("ascii") for text in self[:3])
        for name, text, most in (("user", user, 6), ("password", password, 10), ("session", session, 10)):
            if len(text) > most:
                raise ValueError(f"{name} had {len(text)} bytes, expected at most {most}")
        number = b"%d" % self.sequence
        return packet(
            LOGIN_REQUEST,
            _LOGIN_REQUEST.pack(user.ljust(6), password.ljust(10), session.rjust(10), number.rjust(20)),
        )

    @classmethod
    def of(cls, payload: bytes) -> Login:
        """Read the payload of a login request. Raises ValueError."""
        if len(payload) != _LOGIN_REQUEST.size:
            raise ValueError(f"login request had {len(payload)} bytes, expected {_LOGIN_REQUEST.size}")
        user, password, session, sequence = _LOGIN_REQUEST.unpack(payload)
        return cls(_text(user), _text(password), _text(session), _number(sequence))


class Accepted(NamedTuple):
    """A login that was accepted."""

    session: str
    sequence: int
    """Sequence of the next sequenced message of this connection."""

    def pack(self) -> bytes:
        """Return the packet."""
        return packet(
            LOGIN_ACCEPTED,
            _LOGIN_ACCEPTED.pack(self.session.encode("ascii").rjust(10), (b"%d" % self.sequence).rjust(20)),
        )

    @classmethod
    def of(cls, payload: bytes) -> Accepted:
        """Read the payload. Raises ValueError."""
        if len(payload) != _LOGIN_ACCEPTED.size:
            raise ValueError(f"accepted login had {len(payload)} bytes, expected {_LOGIN_ACCEPTED.size}")
        session, sequence = _LOGIN_ACCEPTED.unpack(payload)
        return cls(_text(session), _number(sequence))


def packet(kind: bytes, payload: bytes = b"") -> bytes:
    """Return a packet of one of the types above."""
    return LENGTH.pack(len(payload) + 1) + kind + payload


def _text(field: bytes) -> str:
    return field.decode("ascii").strip(" ")


def _number(field: bytes) -> int:
    digits = field.strip(b" ")
    if not digits.isdigit():
        raise ValueError(f"sequence was {field!r}, expected ASCII digits")
    return int(digits)
