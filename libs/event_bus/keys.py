"""Keys of identities on the bus: ed25519 seeds, each in a file of its own that only its owner can read.

The library that reads them is imported where there is a key: a process without one needs none.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from upcycle.errors import UpcycleError

_SEED_BYTES: Final = 32

_STRANGERS: Final = 0o007
"""A group may read it: secrets that are mounted into a container often belong to one."""
_OF_A_USER: Final = "U"
_WAY_OUT: Final = "upcycle bus keys FOLDER makes one"


class BusKeyRefused(UpcycleError):
    """A file with a key of the bus cannot be used."""

    kind = "bus_key_refused"


def seed_file(folder: Path, identity: str) -> Path:
    """Where the seed of an identity is: in a folder of its own, which can be given to its process alone."""
    return folder / identity / "bus.nk"


def load_or_make(folder: Path, identities: Iterable[str]) -> dict[str, str]:
    """Public keys by identity; a seed is made where there is none. Raises BusKeyRefused."""
    return {name: public_key(_made(seed_file(folder, name))) for name in identities}


def renew(folder: Path, identity: str) -> None:
    """Make a new seed for an identity. What runs with the old one goes on until the server is told."""
    seed_file(folder, identity).unlink(missing_ok=True)
    load_or_make(folder, [identity])


def public_key(path: Path) -> str:
    """Of the seed in a file. Raises BusKeyRefused."""
    import nkeys

    try:
        is_open = path.stat().st_mode & _STRANGERS
        seed = path.read_bytes().strip()
    except OSError as error:
        raise BusKeyRefused(f"the key {path} cannot be read: {error.strerror}") from error
    if is_open:
        raise BusKeyRefused(f"other users can open the key {path}", f"chmod 600 {path}")
    try:
        key = str(nkeys.from_seed(bytearray(seed)).public_key.decode())
    except (nkeys.NkeysError, ValueError, IndexError) as error:
        raise BusKeyRefused(f"{path} holds no seed", _WAY_OUT) from error
    if not key.startswith(_OF_A_USER):
        raise BusKeyRefused(
            f"the seed in {path} is of no user: its public key begins with {key[0]}", _WAY_OUT
        )
    return key


def _made(path: Path) -> Path:
    import nkeys

    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        seed = nkeys.encode_seed(os.urandom(_SEED_BYTES), nkeys.PREFIX_BYTE_USER)
        partial = path.with_name(f"{path.name}.partial")
        partial.unlink(missing_ok=True)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(bytes(seed) + b"\n")
        partial.replace(path)
    return path
