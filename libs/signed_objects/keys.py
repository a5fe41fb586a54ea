"""Ed25519 keys of those who write signed objects, and the file with the public keys that readers trust.

A private key is a PEM file (PKCS #8) that its owner alone can read, a public one is a line as OpenSSH writes
it: `ssh-ed25519 AAAA… name`. `openssl genpkey` and `ssh-keygen -y` make and read the same.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
    ssh_key_fingerprint,
)

from identities import objects
from service_kit.private_files import read_private, write_private
from signed_objects.errors import SigningKeyRefused

OPERATOR: Final = "operator"
WRITERS: Final = ("grpo_trainer", "checkpoint_registry", OPERATOR)
"""Who signs: versions and training states; imports and forks; what was there before there were keys."""

SCOPES: Final = {
    "grpo_trainer": frozenset({"versions", "states"}),
    "checkpoint_registry": frozenset({"bases"}),
    OPERATOR: objects.SIGNED_KINDS,
}
"""Kinds of objects that a writer's key is trusted for."""

TRUSTED: Final = "trusted.pub"
_KINDS: Final = "kinds="
"""Begins the last part of a line that limits its key."""
_MAX_FILE_BYTES: Final = 1 << 20
_WAY_OUT: Final = "upcycle signing keys FOLDER makes one"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private key of one writer."""

    private: Ed25519PrivateKey

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises SigningKeyRefused."""
        data = read_private(path, "the signing key", SigningKeyRefused)
        try:
            found = load_pem_private_key(data, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise SigningKeyRefused(f"{path} holds no private key in PEM form", _WAY_OUT) from error
        if not isinstance(found, Ed25519PrivateKey):
            raise SigningKeyRefused(f"the key in {path} is not of ed25519", _WAY_OUT)
        return cls(found)

    @property
    def public(self) -> Ed25519PublicKey:
        """What readers need."""
        return self.private.public_key()

    @property
    def id(self) -> str:
        """See `key_id`."""
        return key_id(self.public)


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """The public keys whose signatures count, by id. names: whose they are said to be. kinds: of objects that
    they may sign; all for a key that is not named there."""

    keys: Mapping[str, Ed25519PublicKey]
    names: Mapping[str, str]
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises SigningKeyRefused."""
        try:
            with path.open("rb") as file:
                lines = file.read(_MAX_FILE_BYTES).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SigningKeyRefused(f"the trusted keys {path} cannot be read: {error}") from error
        found = [(_public(line, path), line) for line in map(str.strip, lines) if line and line[0] != "#"]
        if not found:
            raise SigningKeyRefused(f"{path} names no key, so nothing could be proven", _WAY_OUT)
        keys = {key_id(key): key for key, _ in found}
        kinds = {key_id(key): _kinds(line, path) for key, line in found}
        return cls(keys, {key_id(key): _name(line) for key, line in found}, kinds)

    def scope(self, identity: str) -> frozenset[str]:
        """Kinds of objects that a key may sign."""
        return self.kinds.get(identity, objects.SIGNED_KINDS)

    def refusal(self, identity: str, key: str) -> str:
        """Why a trusted key may not sign the object at `key`; empty where it may."""
        kind, scope = objects.signed_kind(key), self.scope(identity)
        if kind in scope:
            return ""
        allowed = ", ".join(sorted(scope))
        return f"the key {self.named(identity)}, which may sign {allowed}, and {key} is of the kind {kind}"

    def proves(self, identity: str, signature: bytes, statement: bytes) -> bool:
        """Whether the trusted key of this id made the signature; False for an unknown one, too."""
        if (key := self.keys.get(identity)) is None:
            return False
        try:
            key.verify(signature, statement)
        except InvalidSignature:
            return False
        return True

    def named(self, identity: str) -> str:
        """The id of a key with its name, for messages."""
        return f"{identity} ({name})" if (name := self.names.get(identity)) else identity


def key_id(key: Ed25519PublicKey) -> str:
    """What names a key in signatures and messages, as `ssh-keygen -l` shows it: SHA256:…"""
    digest = ssh_key_fingerprint(key, hashes.SHA256())
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def key_file(folder: Path, writer: str) -> Path:
    """Where the private key of a writer is: in a folder of its own, for its process alone."""
    return folder / writer / "signing.pem"


def trusted_file(folder: Path) -> Path:
    """Where the public keys are."""
    return folder / TRUSTED


def load_or_make(folder: Path, writers: Iterable[str] = WRITERS) -> dict[str, str]:
    """Ids of the writers' keys. A key is made where there is none, and each is among the trusted ones. Raises
    SigningKeyRefused."""
    keys = {name: _made(key_file(folder, name)) for name in writers}
    _trust(trusted_file(folder), keys)
    return {name: key.id for name, key in keys.items()}


def renew(folder: Path, writer: str) -> None:
    """Make a new key for a writer. The old one stays trusted, until its line is taken out of the file."""
    key_file(folder, writer).unlink(missing_ok=True)
    load_or_make(folder, [writer])


def limit(folder: Path) -> None:
    """Limit the trusted keys that are named as a writer to the kinds that this writer signs; other lines, and
    those that say kinds already, stay as they are. Raises SigningKeyRefused."""
    path = trusted_file(folder)
    TrustedKeys.read(path)
    lines = map(str.strip, path.read_text().splitlines())
    write_private(path, b"".join(_limited(line, path) for line in lines), 0o644)


def _limited(line: str, path: Path) -> bytes:
    is_limited = any(word.startswith(_KINDS) for word in line.split())
    if line.startswith("#") or is_limited or _name(line) not in SCOPES:
        return f"{line}\n".encode()
    return _line(_public(line, path), _name(line))


def _public(line: str, path: Path) -> Ed25519PublicKey:
    try:
        found = load_ssh_public_key(line.encode())
    except (ValueError, binascii.Error, UnsupportedAlgorithm) as error:
        raise SigningKeyRefused(
            f"{path}: {line[:60]!r} is no public key; a line is: ssh-ed25519 AAAA… name"
        ) from error
    if not isinstance(found, Ed25519PublicKey):
        raise SigningKeyRefused(f"{path}: the key {line[:60]!r} is not of ed25519", _WAY_OUT)
    return found


def _name(line: str) -> str:
    return " ".join(word for word in line.split()[2:] if not word.startswith(_KINDS))


def _kinds(line: str, path: Path) -> frozenset[str]:
    """Of a line of the trusted keys. Raises SigningKeyRefused."""
    said = [word.removeprefix(_KINDS) for word in line.split()[2:] if word.startswith(_KINDS)]
    if not said:
        return objects.SIGNED_KINDS
    kinds = frozenset(",".join(said).split(","))
    if not kinds <= objects.SIGNED_KINDS:
        raise SigningKeyRefused(
            f"{path}: {_KINDS}{','.join(said)} of {_name(line) or 'a key'} names no kinds of objects",
            f"there are: {', '.join(sorted(objects.SIGNED_KINDS))}",
        )
    return kinds


def _made(path: Path) -> SigningKey:
    if not path.exists():
        private = Ed25519PrivateKey.generate()
        write_private(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return SigningKey.read(path)


def _trust(path: Path, keys: Mapping[str, SigningKey]) -> None:
    """Add the lines that lack. Readable by all: it holds no secret, and processes of other users read it."""
    known = TrustedKeys.read(path).keys if path.exists() else {}
    missing = [_line(key.public, name) for name, key in keys.items() if key.id not in known]
    if missing:
        before = path.read_bytes() if path.exists() else b""
        ended = before if not before or before.endswith(b"\n") else before + b"\n"
        write_private(path, ended + b"".join(missing), 0o644)


def _line(key: Ed25519PublicKey, name: str) -> bytes:
    scope = SCOPES.get(name, objects.SIGNED_KINDS)
    limited = "" if scope == objects.SIGNED_KINDS else f" {_KINDS}{','.join(sorted(scope))}"
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}{limited}\n".encode()
