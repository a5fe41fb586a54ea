"""Passwords of one local stack: made at its first start, kept in a file that only its owner can read."""

import base64
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from service_kit.private_files import write_private

_FILE: Final = "credentials.json"
_GATEWAY_KEY_FILE: Final = "gateway.key"
_OPERATOR_KEY_FILE: Final = "operator.key"
_SERVICE_KEY_FILE: Final = "service.key"
_SECRETS_KEY_FILE: Final = "secrets.key"
_KEY_BYTES: Final = 24
_SECRETS_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    """Every secret that the processes of a stack share."""

    bus_user: str
    bus_password: str
    s3_access_key: str
    s3_secret_key: str


def load_or_make(folder: Path) -> Credentials:
    """The stack's credentials; written to `<folder>/credentials.json` when there are none yet."""
    path = folder / _FILE
    if path.exists():
        return Credentials(**json.loads(path.read_text()))
    made = Credentials(
        bus_user="upcycle",
        bus_password=secrets.token_urlsafe(_KEY_BYTES),
        s3_access_key="upcycle",
        s3_secret_key=secrets.token_urlsafe(_KEY_BYTES),
    )
    write_private(path, json.dumps(asdict(made), indent=2).encode())
    return made


def credentials_file(folder: Path) -> Path:
    """Where the credentials of the stack in `folder` are."""
    return folder / _FILE


def gateway_key_file(folder: Path) -> Path:
    """Where the gateway puts the key that exists from its first start, alone, for `$(cat ...)`."""
    return folder / _GATEWAY_KEY_FILE


def operator_key_file(folder: Path) -> Path:
    """Where the operator's key of the stack in `folder` is, alone: commands send it."""
    return folder / _OPERATOR_KEY_FILE


def load_or_make_operator_key(folder: Path) -> str:
    """The operator's key of the stack; written at its first start."""
    return _load_or_make(operator_key_file(folder))


def load_or_make_service_key(folder: Path) -> str:
    """The key that the services of the stack send each other; written at its first start."""
    return _load_or_make(folder / _SERVICE_KEY_FILE)


def secrets_key_file(folder: Path) -> Path:
    """Where the key is that secrets of MCP servers are encrypted with; made at the stack's first start."""
    path = folder / _SECRETS_KEY_FILE
    if not path.exists():
        write_private(path, base64.b64encode(secrets.token_bytes(_SECRETS_KEY_BYTES)) + b"\n")
    return path


def old_secrets_key_files(folder: Path) -> list[Path]:
    """Keys that a person replaced, as `secrets.key.old` or with more behind it."""
    return sorted(folder.glob(f"{_SECRETS_KEY_FILE}.old*"))


def _load_or_make(path: Path) -> str:
    if not path.exists():
        write_private(path, f"{secrets.token_urlsafe(_KEY_BYTES)}\n".encode())
    return path.read_text().strip()
