"""Keys of identities at the object store, each in a file of its own that only its owner can read."""

import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blob_store.errors import StoreKeyRefused
from service_kit.groups import S3Settings
from service_kit.private_files import read_private, write_private

_ID_BYTES: Final = 10
_SECRET_BYTES: Final = 30
_WAY_OUT: Final = 'write {"access_key": "…", "secret_key": "…"}, or let upcycle store keys FOLDER make one'


@dataclass(frozen=True, slots=True)
class StoreKey:
    """What requests are signed with."""

    access_key: str
    secret_key: str = field(repr=False)


def key_file(folder: Path, identity: str) -> Path:
    """Where the key of an identity is: in a folder of its own, which can be given to its process alone."""
    return folder / identity / "s3.json"


def load_or_make(folder: Path, identities: Collection[str]) -> dict[str, StoreKey]:
    """Keys by identity; one is made where there is none. Raises StoreKeyRefused."""
    for name in identities:
        if not key_file(folder, name).exists():
            access_key = f"{name}-{secrets.token_hex(_ID_BYTES)}"
            write_key(folder, name, StoreKey(access_key, secrets.token_urlsafe(_SECRET_BYTES)))
    return {name: read_key(key_file(folder, name)) for name in identities}


def renew(folder: Path, identity: str) -> None:
    """Make a new key for an identity. What runs with the old one goes on until the server is told."""
    key_file(folder, identity).unlink(missing_ok=True)
    load_or_make(folder, [identity])


def write_key(folder: Path, identity: str, key: StoreKey) -> None:
    """In the place of what an identity had."""
    text = json.dumps({"access_key": key.access_key, "secret_key": key.secret_key})
    write_private(key_file(folder, identity), f"{text}\n".encode())


def read_key(path: Path) -> StoreKey:
    """The key in a file. Raises StoreKeyRefused."""
    text = read_private(path, "the key", StoreKeyRefused)
    try:
        held = json.loads(text)
        key = StoreKey(held["access_key"], held["secret_key"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreKeyRefused(f"{path} holds no key of an object store", _WAY_OUT) from error
    if not all(isinstance(part, str) and part for part in (key.access_key, key.secret_key)):
        raise StoreKeyRefused(f"{path} holds no key of an object store", _WAY_OUT)
    return key


def key_of(settings: S3Settings) -> StoreKey:
    """That of the file which settings name, else the one in them. Raises StoreKeyRefused."""
    if settings.key_file is not None:
        return read_key(settings.key_file)
    return StoreKey(settings.access_key.get_secret_value(), settings.secret_key.get_secret_value())
