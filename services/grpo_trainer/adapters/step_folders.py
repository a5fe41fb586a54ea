"""Folders of steps in the object store: where a durable state lies, of runs and of interactive sessions.

`<line>/step-<n>/` holds the files of tensors under the digest of them all and, written last and only if
absent, the marker `state.json`: a state exists once its marker does, and only one trainer can write it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from blob_store import BlobRef, BlobStore, ref_of_bytes, ref_of_file
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.domain.errors import BrokenArtifact, LineageTaken

State = TypeVar("State")

MARKER: Final = "state.json"
_FOLDER: Final = re.compile(r"(.*/step-\d{8})/")


def step_folder(line: str, step: int) -> str:
    """The folder of a step. line: what precedes it, of one run or one model."""
    return f"{line}/step-{step:08d}"


def step_of(key: str) -> int:
    """The step whose folder is named in a key."""
    return int(key.rpartition("step-")[2].partition("/")[0])


def by_folder(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys below step folders, by folder. keys: as a store lists them, sorted, and so are the folders."""
    folders: dict[str, list[str]] = {}
    for key in keys:
        if (match := _FOLDER.match(key)) is not None:
            folders.setdefault(match[1], []).append(key)
    return folders


async def put_tensors(store: BlobStore, folder: str, tensors: Path) -> tuple[BlobRef, ...]:
    """Store every file of a local folder. The content is in the keys: another trainer's files cannot clobber
    these."""
    shas = await asyncio.to_thread(_hashed, tensors)
    whole = hashlib.sha256("".join(shas.values()).encode()).hexdigest()[:16]
    refs = [
        await store.put_file(f"{folder}/{whole}/{file.name}", file, sha256=sha) for file, sha in shas.items()
    ]
    return tuple(refs)


async def get_tensors(store: BlobStore, files: Iterable[BlobRef], directory: Path) -> None:
    """Fetch the files of a state into an empty local folder."""
    for file in files:
        await store.get_file(file, directory / file.key.rpartition("/")[2])


def marker_of(folder: str, plain: Mapping[str, Any]) -> BlobRef:
    """Claim check of the marker that holds these plain values."""
    return ref_of_bytes(f"{folder}/{MARKER}", _bytes(plain))


async def put_marker(store: BlobStore, folder: str, plain: Mapping[str, Any]) -> None:
    """The state exists from now on. Raises LineageTaken where another marker is there."""
    if await store.put_if_absent(f"{folder}/{MARKER}", _bytes(plain)) is None:
        raise LineageTaken(
            f"{folder} is already written with another content: two trainers take the steps of one run, or "
            "of one model; stop one of them"
        )


async def read_marker(store: BlobStore, key: str, parse: Callable[[Any], State]) -> State:
    """The state of a marker that was listed. Raises BrokenArtifact."""
    with object_store(key):
        data = await store.read(key)
    if data is None:
        raise BrokenArtifact(f"{key} was listed and is gone: who deletes training states?")
    try:
        return parse(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenArtifact(f"{key} is no training state that this trainer reads: {error}") from error


async def delete(store: BlobStore, keys: Iterable[str]) -> None:
    """Delete objects of one folder. The marker goes first: a state is whole or it is not there."""
    for key in sorted(keys, key=lambda key: (not key.endswith(f"/{MARKER}"), key)):
        await store.delete(key)


def _bytes(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _hashed(directory: Path) -> dict[Path, str]:
    """The files of a folder, sorted, with their sha256."""
    return {file: ref_of_file(file.name, file).sha256 for file in sorted(directory.iterdir())}
