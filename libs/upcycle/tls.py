"""How this process proves itself in TLS, and whom it trusts: one choice for all of its gRPC channels."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upcycle.errors import UpcycleError

_VARIABLES: Final = ("UPCYCLE_TLS_CA", "UPCYCLE_TLS_CERTIFICATE", "UPCYCLE_TLS_KEY")

Stamp = tuple[tuple[int, int, int], ...]


class TlsFilesUnusable(UpcycleError):
    """A file with a certificate or a key cannot be read, or the two do not belong together."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Files in PEM form. ca: certificates that sign those of servers. certificate (with the ones between it
    and the CA) and key: what is shown to a server that asks for one; both or neither."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        """Raises TlsFilesUnusable for half of a pair."""
        if (self.certificate is None) != (self.key is None):
            raise TlsFilesUnusable(
                "UPCYCLE_TLS_CERTIFICATE and UPCYCLE_TLS_KEY go together: set both or neither"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "ClientTls | None":
        """As UPCYCLE_TLS_CA, _CERTIFICATE and _KEY say; None: none of them is set, nothing is encrypted.
        Raises TlsFilesUnusable for the others without the first."""
        given = os.environ if environ is None else environ
        ca, certificate, key = (Path(value) if (value := given.get(name)) else None for name in _VARIABLES)
        if ca is not None:
            return cls(ca, certificate, key)
        if certificate is not None or key is not None:
            raise TlsFilesUnusable(
                "UPCYCLE_TLS_CA is not set beside UPCYCLE_TLS_CERTIFICATE or UPCYCLE_TLS_KEY, so calls would "
                "go in the clear: name the CA, or unset both"
            )
        return None

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that are named."""
        return tuple(file for file in (self.ca, self.certificate, self.key) if file is not None)


def stamp_of(files: tuple[Path, ...]) -> Stamp:
    """Changes when a file is replaced or written. Raises TlsFilesUnusable."""
    try:
        found = [file.stat() for file in files]
    except OSError as error:
        raise TlsFilesUnusable(f"{error.filename}: {error.strerror}") from error
    return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)


def read(file: Path) -> bytes:
    """The PEM text. Raises TlsFilesUnusable."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise TlsFilesUnusable(f"{file}: {error.strerror}") from error


def read_ca(file: Path) -> bytes:
    """Certificates of authorities. Raises TlsFilesUnusable, also for a file that is half written."""
    text = read(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise TlsFilesUnusable(f"{file} holds no certificates, or not all of one: {error}") from error
    return text


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Into a context; of a pair that does not fit it keeps the half. Raises TlsFilesUnusable."""

    def passphrase() -> str:  # without it OpenSSL asks for one at the terminal, and the process stands still
        raise TlsFilesUnusable(f"{key} is encrypted; write it without a passphrase (`openssl pkey`)")

    try:
        context.load_cert_chain(certificate, key, password=passphrase)
    except (OSError, ssl.SSLError) as error:
        raise TlsFilesUnusable(f"{certificate} and {key} are no certificate with its key: {error}") from error


def check_pair(certificate: Path, key: Path) -> None:
    """Raises TlsFilesUnusable where they do not belong together."""
    load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)


_chosen: list[ClientTls | None] = []


def use(tls: ClientTls | None) -> None:
    """Let channels that this process opens from now on speak TLS so; None: in the clear."""
    _chosen[:] = [tls]


def current() -> ClientTls | None:
    """What `use` chose; else what the environment says."""
    return _chosen[0] if _chosen else ClientTls.from_environ()
