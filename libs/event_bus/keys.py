"""Keys of identities on the bus: ed25519 seeds, each in a file of its own that only its owner can read.

The library that reads them is imported where there is a key: a process without one needs none.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from service_kit.private_files import read_private, write_private
from upcycle.errors import UpcycleError

_SEED_BYTES: Final = 32

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

    seed = read_private(path, "the key", BusKeyRefused).strip()
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
        seed = nkeys.encode_seed(os.urandom(_SEED_BYTES), nkeys.PREFIX_BYTE_USER)
        write_private(path, bytes(seed) + b"\n")
    return path
