"""Encrypts secrets with the key of a file: AES-256-GCM, bound to tenant and name, so that a row cannot
stand in another's place.
"""

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from upcycle.errors import UpcycleError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_STRANGERS: Final = 0o007
"""A group may read it: secrets that are mounted into a container often belong to one."""
_WAY_OUT: Final = "`openssl rand -base64 32` writes one"


class SecretsKeyRefused(UpcycleError):
    """The file with the key of secrets cannot be used, or it is another than that which sealed one."""

    kind = "secrets_key_refused"


class Sealer:
    """With the key of one file, read once. key_id: names it without telling it."""

    def __init__(self, path: Path) -> None:
        """Raises SecretsKeyRefused."""
        key = _key_in(path)
        self.key_id = hashlib.sha256(b"upcycle secrets key " + key).hexdigest()[:16]
        self._path = path
        self._cipher = AESGCM(key)

    def seal(self, value: str, *, tenant: str, name: str) -> bytes:
        """Another each time."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value.encode(), _bound_to(tenant, name))

    def unseal(self, sealed: bytes, *, tenant: str, name: str, key_id: str) -> str:
        """The value. Raises SecretsKeyRefused."""
        try:
            value = self._cipher.decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound_to(tenant, name)
            )
        except (InvalidTag, ValueError) as error:
            why = "was changed" if key_id == self.key_id else f"was sealed with another key ({key_id})"
            raise SecretsKeyRefused(
                f"secret {name!r} {why}, {self._path} holds {self.key_id}",
                f"`upcycle set secret {name}` again",
            ) from error
        return value.decode()


def _bound_to(tenant: str, name: str) -> bytes:
    return f"{tenant}\0{name}".encode()


def _key_in(path: Path) -> bytes:
    try:
        is_open, text = path.stat().st_mode & _STRANGERS, path.read_bytes()
    except OSError as error:
        raise SecretsKeyRefused(f"the key of secrets {path} cannot be read: {error.strerror}") from error
    if is_open:
        raise SecretsKeyRefused(f"other users can open the key of secrets {path}", f"chmod 600 {path}")
    try:
        key = base64.b64decode(text.strip(), altchars=b"-_" if b"-" in text or b"_" in text else None)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise SecretsKeyRefused(f"{path} does not hold {KEY_BYTES} bytes in base64", _WAY_OUT)
    return key
