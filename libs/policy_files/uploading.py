"""Publishing a policy directory: files first, the manifest last, so a version exists whole or not at all.

Guarantees: a version is never overwritten; uploading the same bytes again is success and changes nothing;
files that the parent already stored are referenced, not stored twice.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from blob_store import BlobRef, BlobStore, ref_of_file
from identities import objects
from policy_files.errors import InvalidManifest, InvalidPolicyDir, UnknownPolicy, VersionTaken
from policy_files.manifest import check_manifest, manifest_bytes, manifest_from_bytes, policy_digest
from policy_files.weights import tensors_of_directory
from upcycle.api.common.v1.common_pb2 import BlobRef as BlobRefMessage
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyFile, PolicyManifest

_SUFFIXES = {".json", ".safetensors", ".jinja", ".txt", ".model"}


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What a manifest says about a version beside its files."""

    model: str
    version: int
    created_at: datetime
    parent: PolicyManifest | None = None
    """Manifest of the version it was trained from; None for a base model."""
    run_id: str = ""
    step: int = 0
    canary: tuple[CanaryRow, ...] = ()
    """Rows of token ids with the trainer's log-probabilities; a version with a parent must bring some."""
    training_config_digest: str = ""
    checkpoint_id: str = ""
    """Of the checkpoint that the version is; such a version is never removed."""
    dtype: str = "float32"
    """Of the weights: float32 or bfloat16; it sets the tolerance of the canary."""


async def upload(
    store: BlobStore, directory: Path, facts: PolicyFacts, *, check: Callable[[], object] = lambda: None
) -> PolicyManifest:
    """Store every file of a HF directory, then its manifest; returns the manifest that is stored.

    Uploaded before with the same digest: returns the stored manifest, first writer wins. check: called right
    before the manifest is stored, which makes the version exist; what it raises ends the upload.
    Raises InvalidPolicyDir, InvalidManifest, VersionTaken, and the store's errors.
    """
    shas = await asyncio.to_thread(_hash_directory, directory)
    manifest = _manifest(facts, policy_digest(shas))
    if (uploaded := await _already_uploaded(store, manifest)) is not None:
        return uploaded
    known = {} if facts.parent is None else {file.blob.sha256: file.blob for file in facts.parent.files}
    for name, sha256 in sorted(shas.items()):
        blob = known.get(sha256) or await _store_file(store, directory / name, manifest, name, sha256)
        manifest.files.append(PolicyFile(name=name, blob=blob))
    check_manifest(manifest)
    check()
    return await _commit(store, manifest)


def _manifest(facts: PolicyFacts, digest: str) -> PolicyManifest:
    manifest = PolicyManifest(
        model=facts.model,
        version=facts.version,
        run_id=facts.run_id,
        step=facts.step,
        digest=digest,
        canary=facts.canary,
        training_config_digest=facts.training_config_digest,
        checkpoint_id=facts.checkpoint_id,
        dtype=facts.dtype,
    )
    manifest.created_at.FromDatetime(facts.created_at)
    if facts.parent is not None:
        manifest.parent_version = facts.parent.version
        if not facts.canary:
            raise InvalidManifest(
                f"{facts.model!r} v{facts.version} has a parent but no canary rows: no reload could be proven"
            )
    return manifest


async def load(store: BlobStore, model: str, version: int) -> PolicyManifest:
    """The stored manifest of a version, checked. Raises UnknownPolicy, InvalidManifest."""
    key = objects.policy_manifest(model, version)
    data = await store.read(key)
    if data is None:
        raise UnknownPolicy(f"no policy {model!r} v{version} is uploaded ({key})")
    return manifest_from_bytes(data)


async def _store_file(
    store: BlobStore, path: Path, manifest: PolicyManifest, name: str, sha256: str
) -> BlobRefMessage:
    # The content is in the key: a half-uploaded attempt with other bytes cannot clobber this one.
    key = f"{objects.policy_version(manifest.model, manifest.version)}/{sha256[:16]}/{name}"
    ref = await store.put_file(key, path)
    if ref.sha256 != sha256:
        raise InvalidPolicyDir(f"{path} changed while it was being uploaded")
    return BlobRefMessage(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes)


async def _commit(store: BlobStore, manifest: PolicyManifest) -> PolicyManifest:
    key = objects.policy_manifest(manifest.model, manifest.version)
    ref: BlobRef | None = await store.put_if_absent(key, manifest_bytes(manifest))
    if ref is not None:
        return manifest
    uploaded = await _already_uploaded(store, manifest)
    if uploaded is None:
        raise UnknownPolicy(f"{key} was deleted while it was being uploaded; upload again")
    return uploaded


async def _already_uploaded(store: BlobStore, manifest: PolicyManifest) -> PolicyManifest | None:
    data = await store.read(objects.policy_manifest(manifest.model, manifest.version))
    if data is None:
        return None
    uploaded = manifest_from_bytes(data)
    if uploaded.digest != manifest.digest:
        raise VersionTaken(
            f"{manifest.model!r} v{manifest.version} is uploaded with digest {uploaded.digest}, "
            f"not {manifest.digest}; versions are never reused, upload as a newer one"
        )
    return uploaded


def _hash_directory(directory: Path) -> Mapping[str, str]:
    if not directory.is_dir():
        raise InvalidPolicyDir(f"{directory} is not a directory")
    tensors_of_directory(directory)
    shas: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and path.suffix in _SUFFIXES and name != objects.MANIFEST:
            shas[name] = ref_of_file(name, path).sha256
    return shas
