"""The first message of TLS clients: real ones, cut in every way, and damaged."""

from __future__ import annotations

import random
import ssl

import pytest

from shellback.exec.proxy.hello import MOST_BYTES, Unreadable, server_name


def a_hello(name: str | None) -> bytes:
    """The first message that OpenSSL sends to a server of this name."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(into, out, server_hostname=name).do_handshake()
    return out.read()


def extended(hello: bytes, kind: int, body: bytes) -> bytes:
    """The message with one extension more."""
    more = kind.to_bytes(2) + len(body).to_bytes(2) + body
    at = 5 + 4 + 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2])
    at += 1 + hello[at]
    size = int.from_bytes(hello[at : at + 2]) + len(more)
    message = hello[9:at] + size.to_bytes(2) + hello[at + 2 :] + more
    handshake = hello[5:6] + len(message).to_bytes(3) + message
    return hello[:3] + len(handshake).to_bytes(2) + handshake


def test_the_name_is_found_once_the_message_is_complete() -> None:
    hello = a_hello("example.org")
    assert [server_name(hello[:size]) for size in range(len(hello))] == [None] * len(hello)
    assert server_name(hello) == "example.org"
    assert server_name(hello + b"what follows") == "example.org"
    assert server_name(a_hello(None)) == ""


def test_a_message_in_many_records_is_one_message() -> None:
    hello = a_hello("example.org")
    body = hello[5:]
    parts = [body[at : at + 7] for at in range(0, len(body), 7)]
    assert server_name(b"".join(hello[:3] + len(part).to_bytes(2) + part for part in parts)) == "example.org"


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (0xFE0D, b"\0" * 20, "encrypted"),
        (0, b"\0\x0e\0\0\x0bexample.net", "two servers"),
        (0, b"\0\xff\0\0\x0bexample.net", "damaged"),
        (0, b"\0\x0e\0\0\x0bexampl\xe9.net", "damaged"),
    ],
)
def test_a_name_that_is_hidden_or_given_twice_is_refused(kind: int, body: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        server_name(extended(a_hello("example.org"), kind, body))


def test_damage_is_refused_or_waited_for_and_never_another_error() -> None:
    chance = random.Random(5)
    for _ in range(3000):
        hello = bytearray(a_hello("example.org") if chance.random() < 0.02 else HELLO)
        for _ in range(chance.randrange(1, 6)):
            hello[chance.randrange(len(hello))] = chance.randrange(256)
        try:
            found = server_name(bytes(hello))
        except Unreadable:
            continue
        assert found is None or len(found) <= 255 * 255


def test_a_message_without_an_end_is_refused() -> None:
    with pytest.raises(Unreadable, match="too long"):
        server_name(b"\x16\x03\x01\xff\xff\x01\x00\xff\xff" + b"\0" * MOST_BYTES)


HELLO = a_hello("example.org")
