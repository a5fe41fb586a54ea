"""What a backup says about itself. It is written last: a folder without it is no backup."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blob_store.ref import ref_of_file
from identities.tenants import ONLY_TENANT
from platform_backup.errors import BackupDamaged, BackupRefused

FILE: Final = "backup.json"
BEGUN: Final = "unfinished"
"""In a folder of a backup that was begun and not finished."""
FORMAT: Final = 1
SQLITE: Final = "sqlite"
OBJECTS: Final = "objects"
INDEX: Final = "objects.jsonl"
DATABASES: Final = "databases"
SNAPSHOTS: Final = "streams"
_UNCHANGED: Final = "nothing was changed; use another backup"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileDigest(_Part):
    """Content of one file."""

    sha256: str
    size_bytes: int


class StreamPart(_Part):
    """One stream of the bus, as the server describes it."""

    created: datetime
    config: dict[str, Any]
    state: dict[str, Any]


class DatabasePart(_Part):
    """The tables of one service."""

    backend: str
    """`sqlite` or `postgresql`."""
    revision: str
    """Of its migrations."""
    rows: dict[str, int]
    """Table -> number of rows."""
    columns: dict[str, list[str]] = {}
    """Table -> columns in the order of its file; Postgres only."""
    sequences: dict[str, int] = {}
    """Sequence -> the last number it gave; Postgres only."""

    def files(self, service: str) -> list[str]:
        """Paths in the backup."""
        if self.backend == SQLITE:
            return [f"{DATABASES}/{service}.sqlite"]
        return [f"{DATABASES}/{service}/{table}.copy.zst" for table in self.columns]


class Manifest(_Part):
    """A whole backup."""

    format: int = FORMAT
    made_at: str
    version: str
    """Of the platform that wrote it."""
    tenant: str = Field(default=ONLY_TENANT, exclude_if=lambda name: name == ONLY_TENANT)
    """Whose platform it is; left out where it has no name, as in backups that know no tenants."""
    files: dict[str, FileDigest]
    """Path in the backup -> content; objects have an index of their own."""
    streams: dict[str, StreamPart]
    """In the order in which they are restored."""
    databases: dict[str, DatabasePart]
    num_objects: int
    object_bytes: int

    @property
    def id(self) -> str:
        """Digest of everything in it: two backups with one id are the same backup."""
        return hashlib.sha256(_canonical(self.model_dump(mode="json"))).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of the bucket; its content is the file of its digest, once for all keys that share it."""

    key: str
    sha256: str
    size_bytes: int

    def path_in(self, folder: Path) -> Path:
        """Where its content is."""
        return folder / OBJECTS / self.sha256[:2] / self.sha256


def write(folder: Path, manifest: Manifest) -> None:
    """Make a backup of the files in a folder, in one step."""
    text = json.dumps({"id": manifest.id, **manifest.model_dump(mode="json")}, indent=1)
    partial = folder / f"{FILE}.partial"
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / FILE)
    (folder / BEGUN).unlink(missing_ok=True)


def read(folder: Path) -> Manifest:
    """The manifest of a backup. Raises BackupRefused for a folder that is none, BackupDamaged."""
    path = folder / FILE
    if not path.is_file():
        unfinished = (folder / BEGUN).exists()
        raise BackupRefused(
            f"{folder} holds a backup that was not finished" if unfinished else f"{folder} holds no backup",
            "repeat `upcycle backup` to the same folder" if unfinished else f"it has no {FILE}",
        )
    try:
        fields = json.loads(path.read_bytes())
        if isinstance(fields, dict) and fields.get("format", FORMAT) != FORMAT:
            raise BackupRefused(
                f"{folder} has format {fields['format']!r}, this version reads {FORMAT}",
                "restore it with the version that made it",
            )
        said = fields.pop("id")
        manifest = Manifest.model_validate(fields)
    except (ValueError, KeyError, AttributeError, TypeError, ValidationError) as error:
        raise BackupDamaged(f"{path} cannot be read: {type(error).__name__}", "use another backup") from error
    if manifest.id != said:
        raise BackupDamaged(f"{path} is not what was written: its digest differs", "use another backup")
    return manifest


def objects_of(folder: Path) -> Iterator[StoredObject]:
    """The objects of a backup. Raises BackupDamaged for a line that is none."""
    with (folder / INDEX).open() as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield StoredObject(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise BackupDamaged(
                    f"line {number} of {INDEX} in {folder} is no object", _UNCHANGED
                ) from error


def verify(folder: Path, manifest: Manifest) -> None:
    """Read every file of a backup. Raises BackupDamaged, which names the first that is not listed, is missing
    or differs."""
    for name in _needed(manifest):
        if name not in manifest.files:
            raise BackupDamaged(f"{FILE} of {folder} does not list {name}", _UNCHANGED)
    for name, wanted in manifest.files.items():
        _compare(folder, folder / name, wanted)
    seen: set[str] = set()
    number = size_bytes = 0
    for one in objects_of(folder):
        number, size_bytes = number + 1, size_bytes + one.size_bytes
        if one.sha256 not in seen:
            seen.add(one.sha256)
            wanted = FileDigest(sha256=one.sha256, size_bytes=one.size_bytes)
            _compare(folder, one.path_in(folder), wanted, f" (object {one.key})")
    if (number, size_bytes) != (manifest.num_objects, manifest.object_bytes):
        raise BackupDamaged(
            f"{INDEX} of {folder} has {number} objects of {size_bytes} bytes, {FILE} says "
            f"{manifest.num_objects} of {manifest.object_bytes}",
            _UNCHANGED,
        )


def _needed(manifest: Manifest) -> Iterator[str]:
    """What a restore reads."""
    yield INDEX
    yield from (f"{SNAPSHOTS}/{stream}" for stream in manifest.streams)
    for service, part in manifest.databases.items():
        yield from part.files(service)


def _compare(folder: Path, path: Path, wanted: FileDigest, what: str = "") -> None:
    name = f"{path.relative_to(folder)}{what}"
    if not path.is_file():
        raise BackupDamaged(f"{folder} lacks {name}", _UNCHANGED)
    found = ref_of_file(name, path)
    if (found.sha256, found.size_bytes) != (wanted.sha256, wanted.size_bytes):
        raise BackupDamaged(
            f"{name} of {folder} is damaged: {found.size_bytes} bytes with sha256 {found.sha256}, "
            f"{wanted.size_bytes} with {wanted.sha256} were written",
            _UNCHANGED,
        )


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()
