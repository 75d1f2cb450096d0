"""The list of hosts: what an entry means, and which texts are none."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellback.exec.wire.credentials import Credential
from shellback.exec.wire.hosts import Hosts, canonical, entry, is_public


@pytest.mark.parametrize(
    ("text", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "example.org.evil.example", 443, False),
        ("Example.ORG.", "example.org", 443, True),
        ("example.org:22", "example.org", 22, True),
        ("example.org:22", "example.org", 443, False),
        ("example.org:*", "example.org", 9, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("*", "anything.example", 443, True),
        ("*", "93.184.216.34", 443, False),
        ("192.0.2.7:5432", "192.0.2.7", 5432, True),
        ("[2001:DB8:0::1]:443", "2001:db8::1", 443, True),
        ("*.0.2.7", "192.0.2.7", 443, False),
    ],
)
def test_an_entry_allows_exactly_what_it_says(text: str, host: str, port: int, *, allowed: bool) -> None:
    try:
        hosts = Hosts([text])
    except ValueError:
        assert not allowed
        return
    assert (hosts.allowing(host, port) is not None) is allowed


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "*.", "**", "a*.example.org", "https://example.org", "example.org/path", "user@example.org",
        "example.org:0", "example.org:65536", "example.org:https", "example.org:", "2001:db8::1", "[2001:db8::1",
        "[2001:db8::1]x", "exa mple.org", "b\u00fccher.example", "example.org\0.evil.example",
        "-a.example", "a..example",
        "2130706433", "0x7f.1", "127.1", "0177.0.0.1", "1.2.3.4.5", "fe80::1%eth0", "a" * 64 + ".example", "@set",
        "[::ffff:10.0.0.1]:80", "*.1.2.3.4",
    ],
)  # fmt: skip
def test_what_programs_could_read_differently_is_no_entry(text: str) -> None:
    with pytest.raises(ValueError, match=r".+: .+|range"):
        entry(text)


def test_a_star_does_not_stand_beside_others() -> None:
    with pytest.raises(ValueError, match="beside others"):
        Hosts(["*", "example.org"])


@given(st.text(max_size=40))
def test_what_is_canonical_stays_as_it_is_and_is_read_by_the_system_in_the_same_way(text: str) -> None:
    try:
        found = canonical(text)
    except ValueError:
        return
    assert canonical(found) == found
    assert found.isascii()
    try:
        address = socket.inet_aton(found)
    except OSError:
        return
    assert str(ipaddress.ip_address(address)) == found


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("127.0.0.1", False), ("10.0.0.1", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False),
        ("255.255.255.255", False), ("::1", False), ("fe80::1", False), ("fd00::1", False), ("ff02::1", False),
        ("::ffff:127.0.0.1", False), ("::ffff:93.184.216.34", False), ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("::127.0.0.1", False), ("::ffff:0:a00:1", False), ("fec0::1", False), ("4000::1", False), ("3fff::1", False),
        ("168.63.129.16", False), ("192.88.99.1", False), ("2001:0:7f00:1::", False),
    ],
)  # fmt: skip
def test_only_an_address_of_the_internet_is_public(address: str, *, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


def test_a_list_fits_into_a_message_however_it_is_written() -> None:
    assert Hosts(["*:80", "*:443"]).allowing("example.org", 80)
    with pytest.raises(ValueError, match="use wildcards"):
        Hosts([f"a{number}" for number in range(3000)])


def test_a_name_has_a_private_address_only_in_a_range_that_was_named() -> None:
    hosts = Hosts(["db.example.org", "10.9.9.9"], ["10.1.0.0/16"])
    name, address = hosts.entries
    assert hosts.reachable("10.1.2.3", name)
    assert not hosts.reachable("10.2.2.3", name)
    assert not hosts.reachable("10.9.9.9", name)
    assert hosts.reachable("10.9.9.9", address)


def test_a_credential_is_for_listed_ports_only_also_where_a_person_may_allow_others() -> None:
    hub = Credential(name="hub", hosts=("a.example:*", "*.b.example"))
    hosts = Hosts(["a.example:443", "*.b.example:443"], credentials=[hub], ask_s=60.0)
    for name in ("a.example", "x.b.example"):
        assert hosts.credential(name, 443) is hub
        assert hosts.credential(name, 8443) is None
        assert hosts.credential(name, 80) is None
