"""The public port in https: a client that trusts the authority is served, before and after a replacement."""

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.certificates import Authority
from tests.services.model_gateway.conftest import KEY, Gateway

from model_gateway.settings import ModelGatewaySettings
from service_kit.port_certificate import PortCertificate
from upcycle.tls import TlsFilesUnusable


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs what the gateway shows."""
    return Authority(tmp_path / "tls")


@pytest.fixture
def changes(authority: Authority) -> dict[str, Any]:
    """Settings of an https port."""
    pair = authority.issue("gateway")
    return {"public_certificate": pair.certificate, "public_certificate_key": pair.key}


async def models(gateway: Gateway, trusted: Authority | None) -> int:
    """The status of the list. trusted: None for a request in the clear."""
    context = None if trusted is None else ssl.create_default_context(cafile=str(trusted.ca))
    url = f"{'http' if context is None else 'https'}://127.0.0.1:{gateway.port}/v1/models"
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(url, ssl=context or True) as answer,
    ):
        return answer.status


async def test_only_https_is_served(gateway: Gateway, authority: Authority, tmp_path: Path) -> None:
    assert await models(gateway, authority) == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await models(gateway, Authority(tmp_path / "another"))
    with pytest.raises(aiohttp.ClientError):
        await models(gateway, None)


def test_a_replaced_pair_is_taken_and_half_of_one_is_not(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("gateway")
    certificate = PortCertificate(pair.certificate, pair.key)
    other = Authority(tmp_path / "another").issue("gateway")
    whole = pair.key.read_bytes()
    pair.key.write_bytes(other.key.read_bytes())
    certificate.refresh()
    assert shown(certificate.context, authority) == pair.shown, "half of a pair is left alone"
    pair.key.write_bytes(whole)
    before = pair.shown
    after = authority.issue("gateway").shown
    certificate.refresh()
    assert shown(certificate.context, authority) == after != before


def shown(server: ssl.SSLContext, authority: Authority) -> bytes:
    """The certificate of a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(authority.ca))
    asking = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (asking, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return asking.getpeercert(binary_form=True) or b""


def test_what_cannot_be_used_is_refused(authority: Authority) -> None:
    pair, other = authority.issue("gateway"), authority.issue("other")
    with pytest.raises(TlsFilesUnusable, match="are no certificate with its key"):
        PortCertificate(pair.certificate, other.key)
    with pytest.raises(ValueError, match="go together"):
        ModelGatewaySettings(public_certificate=pair.certificate)
