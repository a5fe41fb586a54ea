"""Encrypts secrets with the key of a file: AES-256-GCM, bound to tenant, name and the environments that may
name it, so that a row cannot stand in another's place, and none is opened to others in the database.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service_kit.private_files import read_private
from upcycle.errors import UpcycleError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_WAY_OUT: Final = "`openssl rand -base64 32` writes one"


class SecretsKeyRefused(UpcycleError):
    """The file with the key of secrets cannot be used, or it is another than that which sealed one."""

    kind = "secrets_key_refused"


class Sealer:
    """Seals with the key of one file, and unseals what that one or an older one sealed; all are read once.
    key_id: names the key that seals, without telling it."""

    def __init__(self, path: Path, old: Sequence[Path] = ()) -> None:
        """old: files of keys that were used before. Raises SecretsKeyRefused."""
        keys = [_key_in(one) for one in (path, *old)]
        self.key_id = _key_id(keys[0])
        self._path = path
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}

    def seal(self, value: str, *, tenant: str, name: str, environments: Sequence[str]) -> bytes:
        """Another each time."""
        nonce = os.urandom(_NONCE_BYTES)
        bound = _bound_to(tenant, name, environments)
        return nonce + self._ciphers[self.key_id].encrypt(nonce, value.encode(), bound)

    def unseal(
        self, sealed: bytes, *, tenant: str, name: str, environments: Sequence[str], key_id: str
    ) -> str:
        """The value. Raises SecretsKeyRefused."""
        if (cipher := self._ciphers.get(key_id)) is None:
            raise SecretsKeyRefused(
                f"secret {name!r} was sealed with another key ({key_id}), {self._path} holds {self.key_id}",
                f"name the file of that key in SCENARIO_RUNNER_SECRETS_OLD_KEY_FILES, or `upcycle set secret "
                f"{name}` again",
            )
        bound = _bound_to(tenant, name, environments)
        try:
            value = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError) as error:
            raise SecretsKeyRefused(
                f"secret {name!r} was changed since key {key_id} sealed it",
                f"`upcycle set secret {name}` again",
            ) from error
        return value.decode()


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"upcycle secrets key " + key).hexdigest()[:16]


def _bound_to(tenant: str, name: str, environments: Sequence[str]) -> bytes:
    """No name of an environment has a NUL: they are printable."""
    return "\0".join([tenant, name, *environments]).encode()


def _key_in(path: Path) -> bytes:
    text = read_private(path, "the key of secrets", SecretsKeyRefused)
    try:
        key = base64.b64decode(text.strip(), altchars=b"-_" if b"-" in text or b"_" in text else None)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise SecretsKeyRefused(f"{path} does not hold {KEY_BYTES} bytes in base64", _WAY_OUT)
    return key
