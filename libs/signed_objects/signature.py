"""A detached signature: what it is over, and how it is stored.

It is over the object's key and the digest of its bytes. The key says tenant, model and version, or run and
step, so what was signed for one place proves nothing in another.
"""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import Final, Self

from identities import objects
from signed_objects.keys import SigningKey

_PURPOSE: Final = "upcycle signed object 1"
"""A key that signs other things, too, cannot be made to sign one of these."""


@dataclass(frozen=True, slots=True)
class Signature:
    """key: id of the key that made it, see `keys.key_id`."""

    key: str
    value: bytes

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """What `to_bytes` wrote. Raises ValueError."""
        plain = json.loads(data)
        if not isinstance(plain, dict) or not all(isinstance(plain.get(k), str) for k in ("key", "value")):
            raise ValueError("a signature is a JSON object with the texts `key` and `value`")
        try:
            return cls(plain["key"], base64.b64decode(plain["value"], validate=True))
        except binascii.Error as error:
            raise ValueError(f"its value is no base64: {error}") from error

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps({"key": self.key, "value": base64.b64encode(self.value).decode()}).encode()


def statement(key: str, data: bytes) -> bytes:
    """What is signed of an object."""
    return f"{_PURPOSE}\n{key}\n{hashlib.sha256(data).hexdigest()}\n".encode()


def sign(signer: SigningKey, key: str, data: bytes) -> Signature:
    """The signature of these bytes at this key."""
    return Signature(signer.id, signer.private.sign(statement(key, data)))


def place(key: str, data: bytes) -> str:
    """Where the signature of these bytes at this key lies."""
    return objects.signature(key, hashlib.sha256(data).hexdigest())
