"""The key and certificate of a machine, by which hosts and workers elsewhere know each other.

Certificates are self-signed and known by their fingerprints: the database says which are trusted.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
from pathlib import Path
from typing import Final

from shellback.exec.wire import linux

_FILE: Final = "machine.pem"
_LASTS: Final = datetime.timedelta(days=3650)
_CLOCKS: Final = datetime.timedelta(days=1)
"""How far the clocks of two machines may differ."""


def of_machine(home: Path) -> tuple[Path, str]:
    """The file with key and certificate of this state directory, and the certificate (PEM). Made once; blocks.

    Raises:
        OSError: It cannot be read or written.
    """
    path = home / _FILE
    if not path.exists():
        _make(path)
    text = path.read_text(encoding="ascii")
    return path, text[text.index("-----BEGIN CERTIFICATE-----") :]


def fingerprint_of(certificate: str) -> str:
    """The SHA-256 of a certificate (PEM)."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def fingerprint_of_peer(peer: ssl.SSLObject) -> str:
    """The SHA-256 of the certificate by which the other side of a connection has proved who it is."""
    return hashlib.sha256(peer.getpeercert(binary_form=True) or b"").hexdigest()


def towards_workers(own: Path) -> ssl.SSLContext:
    """The context of a host, which trusts nobody yet."""
    return _context(ssl.PROTOCOL_TLS_SERVER, own)


def towards_host(own: Path, certificate: str) -> ssl.SSLContext:
    """The context of a worker elsewhere, for the host with this certificate (PEM)."""
    made = _context(ssl.PROTOCOL_TLS_CLIENT, own)
    made.load_verify_locations(cadata=certificate)
    return made


def _context(protocol: int, own: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(protocol)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # by its certificate, not by its name
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(own)
    return made


def _make(path: Path) -> None:
    # It loads cryptography, which a start without a certificate to make does not need.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"shellback {os.urandom(8).hex()}")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + _LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with linux.opened(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            os.write(fd, private + made.public_bytes(pem))
            os.fsync(fd)
        os.link(aside, path)  # another process may do the same: the first one counts
    except FileExistsError:
        pass
    finally:
        aside.unlink(missing_ok=True)
