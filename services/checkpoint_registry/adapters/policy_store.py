"""Weights on their way into the object store: uploads through a private folder, forks by reference."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import policy_files
from blob_store import BlobRef, BlobStore
from checkpoint_registry.domain.errors import ModelExists
from checkpoint_registry.ports import Clock
from identities import objects
from service_kit.errors import InvalidRequest
from upcycle.api.training.v1.training_pb2 import PolicyManifest
from upcycle.moments import timestamp


class PolicyUploads:
    """Published weights."""

    def __init__(self, store: BlobStore, *, staging_dir: Path, max_import_bytes: int, now: Clock) -> None:
        self._store = store
        self._staging_dir = staging_dir
        self._max_import_bytes = max_import_bytes
        self._now = now

    @asynccontextmanager
    async def upload(self) -> AsyncIterator["DirectoryUpload"]:
        """A private staging area, removed on exit."""
        await asyncio.to_thread(self._staging_dir.mkdir, parents=True, exist_ok=True)
        directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="import-", dir=self._staging_dir))
        try:
            yield DirectoryUpload(self._store, directory, self._max_import_bytes, self._now)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def fork(self, manifest: BlobRef, model: str) -> tuple[BlobRef, str]:
        """Version 0 of `model` out of another model's files, without copying them."""
        origin = policy_files.manifest_from_bytes(await self._store.get(manifest))
        forked = PolicyManifest()
        forked.CopyFrom(origin)
        forked.model, forked.version, forked.run_id, forked.step = model, 0, "", 0
        forked.ClearField("parent_version")
        forked.created_at.CopyFrom(timestamp(self._now()))
        data = policy_files.manifest_bytes(forked)
        stored = await self._store.put_if_absent(objects.policy_manifest(model, 0), data)
        if stored is not None:
            return stored, forked.digest
        # A fork that crashed after its manifest was stored left the same files under another time.
        existing = await policy_files.load(self._store, model, 0)
        if existing.digest != forked.digest:
            raise ModelExists(f"model {model!r} is published with weights {existing.digest[:12]}")
        return policy_files.manifest_ref(existing), existing.digest


class DirectoryUpload:
    """Files of a policy on their way in, in one folder."""

    def __init__(self, store: BlobStore, directory: Path, max_bytes: int, now: Clock) -> None:
        self._store = store
        self._directory = directory
        self._max_bytes = max_bytes
        self._now = now
        self._received_bytes = 0
        self._current = ""
        self._finished: set[str] = set()

    async def add(self, name: str, data: bytes) -> None:
        """Append to the file. Raises InvalidRequest on a bad name or too many bytes."""
        self._received_bytes += len(data)
        if self._received_bytes > self._max_bytes:
            raise InvalidRequest(
                f"the policy is larger than {self._max_bytes} bytes; "
                "raise CHECKPOINT_REGISTRY_MAX_IMPORT_BYTES"
            )
        if name != self._current:
            self._begin(name)
        await asyncio.to_thread(_append, self._directory / name, data)

    def _begin(self, name: str) -> None:
        parts = name.split("/")
        if not name or name.startswith("/") or "\\" in name or "\0" in name or ".." in parts or "" in parts:
            raise InvalidRequest(f"file name {name!r} is not a plain relative path")
        if name in self._finished:
            raise InvalidRequest(f"file {name!r} was sent in two places; a file's chunks follow each other")
        self._finished.add(name)
        self._current = name

    async def finish(self, model: str) -> tuple[BlobRef, str]:
        """Store the files as version 0 of the model: manifest and digest. Raises InvalidRequest."""
        try:
            dtype = await asyncio.to_thread(_dtype, self._directory)
            facts = policy_files.PolicyFacts(model, 0, self._now(), dtype=dtype)
            manifest = await policy_files.upload(self._store, self._directory, facts)
        except (policy_files.InvalidPolicyDir, policy_files.InvalidManifest) as error:
            raise InvalidRequest(self._without_paths(str(error))) from error
        except policy_files.VersionTaken as error:
            raise ModelExists(str(error)) from error
        return policy_files.manifest_ref(manifest), manifest.digest

    def _without_paths(self, message: str) -> str:
        """Our staging folder means nothing to the caller."""
        return message.replace(f"{self._directory}/", "").replace(str(self._directory), "the upload")


def _dtype(directory: Path) -> str:
    """What most tensors are: it sets how closely an engine must agree with the trainer."""
    counts = Counter(tensor.dtype for tensor in policy_files.tensors_of_directory(directory).values())
    return "bfloat16" if counts.most_common(1)[0][0] == "BF16" else "float32"


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
