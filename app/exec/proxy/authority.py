"""The authority by which the proxy is a server for hosts that have a credential; sandboxes trust it, nobody else.

Its key never leaves the state directory. Other certificates are those of this machine.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import ipaddress
import os
import shutil
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shellback.exec.wire import linux
from shellback.exec.wire.credentials import BUNDLE
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.hosts import is_address

KEY: Final = "key.pem"
CERTIFICATE: Final = "certificate.pem"
SYSTEM: Final = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip
"""Where distributions keep the certificates that a machine trusts: Debian, Fedora, SUSE, Alpine."""
_NAME: Final = "Shellback, for sandboxes of this machine"
_AGE: Final = datetime.timedelta(days=3650)
_LEAF_AGE: Final = datetime.timedelta(days=7)
_EARLIER: Final = datetime.timedelta(days=1)
"""Clocks differ, and a certificate that is made today has to be good at once."""
_HOSTS: Final = 256
_PROTOCOLS: Final = ["http/1.1"]


class NoTrust(Exception):
    """Raised where this machine has no certificates by which a server could be verified."""


def ensure(directory: Path) -> Path:
    """Make the authority unless it is there, and its bundle as it has to be now; the path of the bundle. Blocks.

    Raises NoTrust, and OSError if the directory cannot be written.
    """
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not directory.exists():
        made = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            _make(made)
            # Another worker may do the same: key and certificate have to be of one making.
            made.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    wanted = trusted().read_bytes().rstrip() + b"\n" + (directory / CERTIFICATE).read_bytes()
    bundle = directory / BUNDLE
    if not bundle.exists() or bundle.read_bytes() != wanted:
        # What was left of a process that was killed, by the same number in another container, is in nobody's way.
        aside = directory / f".{BUNDLE}.{os.urandom(8).hex()}"
        try:
            _write(aside, wanted, 0o644)
            aside.replace(bundle)
        finally:
            aside.unlink(missing_ok=True)
    return bundle


def trusted() -> Path:
    """The certificates that this machine trusts; raises NoTrust."""
    found = next((Path(path) for path in SYSTEM if os.path.isfile(path)), None)
    if found is None:
        raise NoTrust("this machine has no certificates of authorities: install the package ca-certificates")
    return found


def sealed(directory: Path, value: str) -> str:
    """A value that is to be lent, as text that only the proxy can read; blocks, and raises OSError.

    The supervisor passes it on, and its memory is also that of each process that has yet to become a command.
    """
    return _box(directory).encrypt(value.encode()).decode()


class Authority:
    """Contexts of TLS for the proxy. What it reads is read when it is first needed; that blocks for milliseconds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._contexts = functools.lru_cache(_HOSTS)(self._context)
        self._outside = functools.lru_cache(1)(_towards_servers)

    def towards_clients(self, host: str) -> ssl.SSLContext:
        """For a client that asks for `host`; raises OSError or ValueError if the authority cannot be read."""
        return self._contexts(host, _now().date())

    @property
    def towards_servers(self) -> ssl.SSLContext:
        """For a server, which has to be one that this machine trusts now, under its name; raises NoTrust, OSError."""
        path = trusted()
        found = path.stat()
        return self._outside(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def opened(self, text: str) -> str:
        """What was sealed as this text; raises OSError or ValueError if it was not, or for another authority."""
        try:
            return _box(self._directory).decrypt(text).decode()
        except InvalidToken:
            raise ValueError("sealed for another authority") from None

    @functools.cached_property
    def _own(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = serialization.load_pem_private_key((self._directory / KEY).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate((self._directory / CERTIFICATE).read_bytes()), key

    @functools.cached_property
    def _leaf_key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    def _context(self, host: str, _day: datetime.date) -> ssl.SSLContext:
        certificate, key = self._own
        name = x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)
        made = _signed(
            # A common name has at most 64 characters; the other name is the one that counts.
            x509.Name([]), certificate.subject, self._leaf_key, key, _LEAF_AGE,
            [
                (x509.SubjectAlternativeName([name]), True),
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (_usage(signs=False), True),
                (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            ],
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(_PROTOCOLS)
        # OpenSSL reads files only.
        with closing(linux.text_in_memory("certificate", _pem(made) + _pem_of_key(self._leaf_key))) as descriptor:
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        return context


def _towards_servers(path: Path, *_version: int) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    context.set_alpn_protocols(_PROTOCOLS)
    return context


def _box(directory: Path) -> Fernet:
    secret = hashlib.sha256(b"lend\0" + (directory / KEY).read_bytes()).digest()
    return Fernet(base64.urlsafe_b64encode(secret))


def _make(directory: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=True, path_length=0), True), (_usage(signs=True), True),
    ]  # fmt: skip
    _write(directory / KEY, _pem_of_key(key), 0o600)
    _write(directory / CERTIFICATE, _pem(_signed(name, name, key, key, _AGE, extensions)), 0o644)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    age: datetime.timedelta,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=_now() - _EARLIER,
        not_valid_after=_now() + age,
    )
    for extension, critical in (
        *extensions,
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(by, hashes.SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(path: Path, data: bytes, mode: int) -> None:
    with closing(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)) as descriptor:
        os.fchmod(descriptor, mode)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
