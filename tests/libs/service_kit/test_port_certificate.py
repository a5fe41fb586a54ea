"""What a file with authorities of callers may hold beside certificates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.certificates import Authority
from tests.services.model_gateway.test_public_tls import shown

from service_kit.port_certificate import PortCertificate
from upcycle.tls import TlsFilesUnusable, check_pair


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_comment_in_another_language_does_not_end_the_rotation(tmp_path: Path, encoding: str) -> None:
    authority, added = Authority(tmp_path / "ours"), Authority(tmp_path / "added")
    pair = authority.issue("engine")
    certificate = PortCertificate(pair.certificate, pair.key, authority.ca)
    before = certificate.context.cert_store_stats()["x509"]
    comment = "# Főtanúsítvány\n" if encoding == "utf-8" else "# Autorité\n"
    whole = authority.ca.read_bytes() + comment.encode(encoding) + added.ca.read_bytes()
    authority.ca.write_bytes(whole)
    certificate.refresh()
    assert certificate.context.cert_store_stats()["x509"] == before + 1


def test_a_file_of_authorities_without_one_is_refused_by_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    pair = authority.issue("engine")
    authority.ca.write_bytes(revocations())
    with pytest.raises(TlsFilesUnusable, match=r"ca\.pem holds no certificates"):
        PortCertificate(pair.certificate, pair.key, authority.ca)


def test_files_that_are_replaced_while_they_are_read_leave_a_whole_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ours")
    pair, other = authority.issue("engine"), authority.issue("other")
    certificate = PortCertificate(pair.certificate, pair.key)

    def replaced(*files: Path) -> None:
        check_pair(*files)
        pair.key.write_bytes(other.key.read_bytes())

    monkeypatch.setattr("service_kit.port_certificate.check_pair", replaced)
    before = pair.shown
    authority.issue("engine")
    certificate.refresh()
    assert shown(certificate.context, authority) in (before, pair.shown)


def revocations() -> bytes:
    """A list of none, in PEM form."""
    at, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    builder = x509.CertificateRevocationListBuilder(name, at, at + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
