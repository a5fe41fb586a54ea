"""The certificate that a gRPC server shows, read again when its files change."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from service_kit.groups import TlsSettings
from upcycle.tls import Stamp, TlsFilesUnusable, check_pair, read, read_ca, stamp_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files in PEM form. certificate: with the ones between it and its CA. clients_ca: callers must show a
    certificate that one of these signed; None: they show none."""

    certificate: Path
    key: Path
    clients_ca: Path | None = None

    @classmethod
    def of(cls, settings: TlsSettings) -> "ServerTls | None":
        """None: the settings name no certificate."""
        if settings.certificate is None or settings.key is None:
            return None
        return cls(settings.certificate, settings.key, settings.ca if settings.clients else None)

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that are named."""
        return tuple(file for file in (self.certificate, self.key, self.clients_ca) if file is not None)


class ServerCertificates:
    """gRPC asks it at each handshake, so a replaced certificate holds for the next connection."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._stamp: Stamp = ()

    def credentials(self) -> grpc.ServerCredentials:
        """Raises TlsFilesUnusable."""
        first = self._read()
        changed: Any = self._changed  # None is among its answers, which the stub does not know
        return grpc.dynamic_ssl_server_credentials(
            first, changed, require_client_authentication=self._tls.clients_ca is not None
        )

    def _read(self) -> grpc.ServerCertificateConfiguration:
        tls, stamp = self._tls, stamp_of(self._tls.files)
        check_pair(tls.certificate, tls.key)
        clients = None if tls.clients_ca is None else read_ca(tls.clients_ca)
        found = grpc.ssl_server_certificate_configuration([(read(tls.key), read(tls.certificate))], clients)
        self._stamp = stamp
        return found

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """None: as before. Files that are being replaced, and do not fit for a moment, are read again at the
        next handshake."""
        try:
            return self._read() if stamp_of(self._tls.files) != self._stamp else None
        except TlsFilesUnusable as error:
            log.warning("tls_files_unusable", extra={"error": str(error)})
            return None
