"""The certificate of the public port, read again while it listens."""

import logging
import ssl
from pathlib import Path

from model_gateway.settings import ModelGatewaySettings
from service_kit.settings import SettingsError
from upcycle.tls import Stamp, TlsFilesUnusable, check_pair, load_pair, stamp_of

log = logging.getLogger(__name__)


class PublicCertificate:
    """A context whose certificate is replaced when its files change; open connections keep theirs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises TlsFilesUnusable."""
        self._files = (certificate, key)
        self._stamp: Stamp = stamp_of(self._files)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_pair(self.context, certificate, key)

    def refresh(self) -> None:
        """Take what the files hold now. A pair that does not fit is logged, and the one before stays."""
        try:
            if (stamp := stamp_of(self._files)) == self._stamp:
                return
            check_pair(*self._files)  # before the context in use, which would keep the half of a pair
            load_pair(self.context, *self._files)
        except TlsFilesUnusable as error:
            log.warning("public_certificate_unusable", extra={"error": str(error)})
            return
        self._stamp = stamp
        log.info("public_certificate_replaced", extra={"file": str(self._files[0])})


def public_certificate(settings: ModelGatewaySettings) -> PublicCertificate | None:
    """None: the port speaks http. Raises SettingsError."""
    certificate, key = settings.public_certificate, settings.public_certificate_key
    if certificate is None or key is None:
        return None
    try:
        return PublicCertificate(certificate, key)
    except TlsFilesUnusable as error:
        raise SettingsError("model_gateway", [f"MODEL_GATEWAY_PUBLIC_CERTIFICATE: {error}"]) from error
