"""Packets of SoupBinTCP and IEX-TP, against bytes from their specifications."""

from __future__ import annotations

import pytest
from blackbox_feeds.iex.iextp import HEADER_BYTES, GapFillRequest, Stream
from blackbox_feeds.itch50.moldudp64 import HEADER
from blackbox_feeds.itch50.soupbintcp import CLIENT_HEARTBEAT, Accepted, Login, packet

# The example of IEX's specification: DEEP 1.0, channel 1, messages 12340 to 12350 and 56789 to 56799.
IEX_EXAMPLE = bytes.fromhex(
    "01 01 04 80 01 00 00 00 00 00 87 42 02 00 00 00"
    "34 30 00 00 00 00 00 00 3e 30 00 00 00 00 00 00"
    "d5 dd 00 00 00 00 00 00 df dd 00 00 00 00 00 00"
)


def test_gap_fill_request_of_the_specification() -> None:
    request = GapFillRequest(Stream(0x8004, 1, 0x42870000), ((12_340, 12_350), (56_789, 56_799)))
    assert request.pack() == IEX_EXAMPLE
    assert GapFillRequest.of(IEX_EXAMPLE) == request
    assert GapFillRequest.of(request._replace(ranges=()).pack()).ranges == ()
    assert (HEADER_BYTES, HEADER.size) == (40, 20)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data[:15], "had 15 bytes, expected 16 or more"),
        (lambda data: data[:-1], "differs from its 2 ranges"),
        (lambda data: b"\2" + data[1:], "version and type were 2 and 1"),
        (lambda data: data[:16] + data[32:48] + data[16:32], "was 12340 to 12350, expected one after 56799"),
        (lambda data: data[:16] + bytes(16) + data[32:], "was 0 to 0, expected one after 0"),
        (lambda data: data[:16] + data[24:32] + data[16:24] + data[32:], "was 12350 to 12340"),
    ],
)
def test_gap_fill_request_that_breaks_a_rule(change: object, error: str) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=error):
        GapFillRequest.of(change(IEX_EXAMPLE))


def test_login_packets_have_the_offsets_of_the_specification() -> None:
    login = Login("bob", "secret", "S1", 12)
    data = login.pack()
    assert data[:3] == b"\0\x2fL"
    assert (data[3:9], data[9:19], data[19:29], data[29:]) == (b"bob   ", b"secret    ", b" " * 8 + b"S1", b"%20d" % 12)
    assert Login.of(data[3:]) == login
    accepted = Accepted("0000000001", 7).pack()
    assert accepted == b"\0\x1fA0000000001" + b"7".rjust(20)
    assert Accepted.of(accepted[3:]) == ("0000000001", 7)
    assert packet(CLIENT_HEARTBEAT) == b"\0\1R"


@pytest.mark.parametrize("login", [Login("toolong", ""), Login("", "x" * 11), Login("", "", "y" * 11), Login("é", "")])
def test_login_that_does_not_fit(login: Login) -> None:
    with pytest.raises(ValueError, match="expected at most|ascii"):
        login.pack()


@pytest.mark.parametrize("payload", [b"", b"x" * 30, b" " * 30, b"\xff" * 10 + b"1".rjust(20), b" " * 29 + b"-1"])
def test_bad_answer_to_a_login(payload: bytes) -> None:
    with pytest.raises(ValueError, match="expected|ascii"):
        Accepted.of(payload)
