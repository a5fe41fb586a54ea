"""A certificate authority of the test's own, and files with what it signed."""

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Pair:
    """Files with a certificate, and with its key."""

    certificate: Path
    key: Path

    @property
    def shown(self) -> bytes:
        """What a server with this pair shows, in DER form."""
        leaf, end, _ = self.certificate.read_text().partition("-----END CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(leaf + end)


@dataclass(frozen=True)
class Authority:
    """Signs; `ca` is the file with its own certificate."""

    folder: Path
    _ca: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ca.cert_pem.write_to_path(self.ca)

    @property
    def ca(self) -> Path:
        """Certificate of the authority."""
        return self.folder / "ca.pem"

    def issue(self, name: str, *identities: str, expired: bool = False) -> Pair:
        """For these hosts (default 127.0.0.1), into files of that name; those of before are replaced.
        expired: since yesterday."""
        end = datetime.now(UTC) - timedelta(days=1)
        issued = self._ca.issue_cert(
            *(identities or ("127.0.0.1",)),
            not_before=end - timedelta(days=1) if expired else None,
            not_after=end if expired else None,
        )
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        issued.private_key_pem.write_to_path(pair.key)
        pair.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return pair
