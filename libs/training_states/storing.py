"""Puts the files of a state into the object store."""

import asyncio
import hashlib
from pathlib import Path

from blob_store import BlobRef, BlobStore, ref_of_file


async def put_files(store: BlobStore, folder: str, directory: Path) -> tuple[BlobRef, ...]:
    """Store the files of a local directory below the folder of a step. The digest of them all is in the keys:
    no other state's files can replace these."""
    shas = await asyncio.to_thread(_hashed, directory)
    into = f"{folder}/{hashlib.sha256(''.join(shas.values()).encode()).hexdigest()[:16]}"
    return tuple([await store.put_file(f"{into}/{one.name}", one, sha256=sha) for one, sha in shas.items()])


def _hashed(directory: Path) -> dict[Path, str]:
    """The files of a directory, sorted, with their sha256."""
    return {file: ref_of_file(file.name, file).sha256 for file in sorted(directory.iterdir())}
