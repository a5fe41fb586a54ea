"""The certificate of the public port, as the settings name it."""

from model_gateway.settings import ModelGatewaySettings
from service_kit.port_certificate import PortCertificate
from service_kit.settings import SettingsError
from upcycle.tls import TlsFilesUnusable


def public_certificate(settings: ModelGatewaySettings) -> PortCertificate | None:
    """None: the port speaks http. Raises SettingsError."""
    certificate, key = settings.public_certificate, settings.public_certificate_key
    if certificate is None or key is None:
        return None
    try:
        return PortCertificate(certificate, key)
    except TlsFilesUnusable as error:
        raise SettingsError("model_gateway", [f"MODEL_GATEWAY_PUBLIC_CERTIFICATE: {error}"]) from error
