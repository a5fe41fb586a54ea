"""What closes SeaweedFS's inner ports: those of its filer, volumes and master, which know no keys of S3.

Without it a program that reaches the filer's port reads, replaces and deletes every object. Requests to
volumes carry a token that only the server's parts can make; gRPC has mutual TLS with a certificate of theirs.
HTTP of master and filer is switched off where the server is started, with `-disableHttp`.
"""

import secrets
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from service_kit.private_files import write_private

SECURITY: Final = "security.toml"
FILES: Final = (SECURITY, "inner-ca.pem", "inner-cert.pem", "inner-key.pem")
"""All that `write_security` writes."""
_SEEN_AT: Final = "# The server finds this folder at "
_TOKENS: Final = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
_PARTS: Final = ("master", "volume", "filer", "s3", "admin", "worker", "client")
_TOKEN_BYTES: Final = 32
_LASTS: Final = timedelta(days=3650)
_RENEWED_BEFORE: Final = timedelta(days=365)
_AUTHORITY: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of one object store")])
_SERVER: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "object store")])


def write_security(folder: Path, seen_at: Path | None = None) -> Path:
    """Write what is missing into `folder`, or ends within a year; returns the path of its `security.toml`,
    which belongs into a folder `.seaweedfs` of the server's home. seen_at: where the server finds `folder`,
    if elsewhere; said once, it holds: a server that does not find its files does not start.
    """
    seen_at = seen_at or _said_before(folder)
    said = "" if seen_at is None else f"{_SEEN_AT}{seen_at}\n"
    place = seen_at or folder.absolute()
    if not _lasts(folder, place, said):
        _write_certificate(folder)
        write_private(folder / SECURITY, f"{said}{_security(place)}".encode())
    return folder / SECURITY


def _said_before(folder: Path) -> Path | None:
    if not (folder / SECURITY).exists():
        return None
    first = (folder / SECURITY).read_text().partition("\n")[0]
    return Path(first.removeprefix(_SEEN_AT)) if first.startswith(_SEEN_AT) else None


def _lasts(folder: Path, place: Path, said: str) -> bool:
    if not all((folder / name).exists() for name in FILES):
        return False
    written = (folder / SECURITY).read_text()
    if not written.startswith(said) or f'"{place / "inner-ca.pem"}"' not in written:
        return False  # the folder was moved
    return _is_pair(folder / "inner-cert.pem", folder / "inner-key.pem")


def _is_pair(certificate: Path, key: Path) -> bool:
    """For more than a year. Not after a crash between the two, or what it left of a file."""
    try:
        held = x509.load_pem_x509_certificate(certificate.read_bytes())
        public = load_pem_private_key(key.read_bytes(), None).public_key()
    except ValueError:
        return False
    return held.public_key() == public and held.not_valid_after_utc - datetime.now(UTC) > _RENEWED_BEFORE


def _security(seen_at: Path) -> str:
    tokens = [f'[{name}]\nkey = "{secrets.token_urlsafe(_TOKEN_BYTES)}"\n' for name in _TOKENS]
    pair = f'cert = "{seen_at / "inner-cert.pem"}"\nkey = "{seen_at / "inner-key.pem"}"\n'
    parts = [f"[grpc.{name}]\n{pair}" for name in _PARTS]
    return "\n".join((*tokens, f'[grpc]\nca = "{seen_at / "inner-ca.pem"}"\n', *parts))


def _write_certificate(folder: Path) -> None:
    """Of an authority whose key is forgotten at once: no other certificate of it will ever be."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    issuer = _builder(_AUTHORITY, authority.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    ours = _builder(_SERVER, key.public_key()).add_extension(names, critical=False)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, data in (
        ("inner-ca.pem", issuer.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)),
        ("inner-cert.pem", ours.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)),
        ("inner-key.pem", secret),
    ):
        write_private(folder / name, data)


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LASTS)
    )
