"""Published versions from the object store, through the local cache."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from blob_store import BlobError, BlobStore, CorruptBlob, MissingBlob
from policy_engine import wire
from policy_engine.domain import EngineTarget, FailureKind, Policy, VersionRefused
from policy_files import ADAPTER_FOLDER, CorruptPolicy, PolicyFilesError, fetch, manifest_from_bytes, prune
from upcycle.api.training.v1.training_pb2 import PolicyManifest
from upcycle.errors import Unavailable as StoreAway

log = logging.getLogger(__name__)

_KEPT_FOR_A_QUICK_RETURN = 4


class PolicyDownloads:
    """Fetches by manifest; every digest is checked on the way in."""

    def __init__(self, store: BlobStore, cache_dir: Path, objects_dir: Path | None = None) -> None:
        """cache_dir: of this supervisor alone. objects_dir: of the files of all supervisors of this host."""
        self._store = store
        self._cache_dir = cache_dir
        self._objects_dir = objects_dir
        self._is_pruned = False
        """Nothing was fetched since. False at first: an earlier process may have left versions."""

    async def fetch(self, target: EngineTarget) -> Policy:
        """All files of a version on local disk, each digest checked. Raises VersionRefused."""
        what = f"v{target.version}"
        self._is_pruned = False
        try:
            manifest = manifest_from_bytes(await self._store.get(target.manifest))
            if manifest.digest != target.digest:
                raise _mismatch(f"{what}: announced as {target.digest}, its manifest says {manifest.digest}")
            directory = await fetch(self._store, manifest, self._cache_dir, objects=self._objects_dir)
        except (CorruptBlob, CorruptPolicy) as error:
            # The bytes may have been corrupted on the way, and the stored copy may be repaired.
            raise VersionRefused(
                FailureKind.DIGEST_MISMATCH, f"{what}: {error}", may_pass_later=True
            ) from error
        except PolicyFilesError as error:
            raise _mismatch(f"{what}: {error}") from error
        except (MissingBlob, BlobError, StoreAway, OSError) as error:
            raise VersionRefused(FailureKind.FETCH_FAILED, f"{what}: {error}", may_pass_later=True) from error
        return _policy(target, manifest, directory)

    async def prune(self, keep: Sequence[Policy]) -> None:
        """Free disk from versions that are used no more, where any was fetched since the last time; a disk
        that refuses costs no engine."""
        if self._is_pruned:
            return
        digests = {policy.target.digest for policy in keep}
        try:
            await prune(
                self._cache_dir, keep=digests, newest=_KEPT_FOR_A_QUICK_RETURN, objects=self._objects_dir
            )
            self._is_pruned = True
        except OSError as error:
            log.warning("cache_not_pruned", extra={"why": str(error)})


def _policy(target: EngineTarget, manifest: PolicyManifest, directory: Path) -> Policy:
    weights = sorted(f.blob.sha256 for f in manifest.files if _is_whole_weights(f.name))
    return Policy(
        target=target,
        directory=directory.absolute(),
        canary=wire.canary_of(manifest),
        dtype=manifest.dtype or "float32",
        weights_digest=hashlib.sha256("\n".join(weights).encode()).hexdigest(),
    )


def _is_whole_weights(name: str) -> bool:
    return name.endswith(".safetensors") and not name.startswith(f"{ADAPTER_FOLDER}/")


def _mismatch(detail: str) -> VersionRefused:
    return VersionRefused(FailureKind.DIGEST_MISMATCH, detail, may_pass_later=False)
