"""Policy versions: where a session begins, and what it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

from blob_store import BlobRef, BlobStore
from blob_store import ref as blob_ref
from grpc_edge import Peer
from grpo_trainer import wire
from grpo_trainer.adapters.boundaries import lookup, object_store, peer
from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.domain.offers import Ancestor
from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.states import BasePolicy, SessionState
from identities import objects
from identities.entities import checkpoint_id, parse_checkpoint_id
from policy_files import (
    InvalidManifest,
    PolicyFacts,
    UnknownPolicy,
    fetch,
    load,
    manifest_from_bytes,
    manifest_ref,
    prune,
    tokenizer_files,
    upload,
)
from upcycle.api.registry.v1 import service_pb2 as registry_pb2
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.taskset.v1 import service_pb2 as taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.api.training.v1.training_pb2 import PolicyManifest
from upcycle.rpc import RemoteNotFound, RemoteRefused

_KEPT: Final = 4
"""Policies that stay on disk after the session that used them was closed."""


class PolicyCache:
    """Weights on the local disk: of the sessions that are open, and the newest few."""

    def __init__(self, store: BlobStore, folder: Path, in_use: Callable[[], Collection[str]]) -> None:
        """in_use: names of the directories that open sessions were loaded from."""
        self._store = store
        self._folder = folder
        self._in_use = in_use
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, manifest: PolicyManifest) -> Path:
        """The directory of a policy; the caller loads it before it awaits anything else, else the next fetch
        may remove it."""
        async with self._one_at_a_time:
            directory = await fetch(self._store, manifest, self._folder)
            await prune(self._folder, keep={directory.name, *self._in_use()}, newest=_KEPT)
        return directory


class RegistryPolicies:
    """Published policy versions, and the heads that sessions begin from."""

    IDEMPOTENT = ("GetModel", "GetVersion")

    def __init__(
        self,
        registry: Peer,
        store: BlobStore,
        cache: PolicyCache,
        *,
        check: Callable[[str], object] = lambda _: None,
    ) -> None:
        """check: raises Unavailable unless this process surely holds the model."""
        self._check = check
        self._stub = RegistryServiceStub(registry.channel)
        self._address = registry.address
        self._store = store
        self.cache = cache

    async def head(self, model: str) -> BasePolicy:
        """The promoted version. Raises InvalidTrainingSpec for an unknown model; Unavailable."""
        with lookup(f"the registry at {self._address}", f"model {model!r} is not registered"):
            reply = await self._stub.GetModel(registry_pb2.GetModelRequest(model=model))
        return wire.base_from_wire(reply.head)

    async def recorded_state(self, model: str, version: int) -> BlobRef | None:
        """The marker of the training state that the registry recorded with a version; None where it knows
        none, or has removed the version. Raises Unavailable."""
        request = registry_pb2.GetVersionRequest(model=model, version=version)
        try:
            with peer(f"the registry at {self._address}", passing=(RemoteNotFound, RemoteRefused)):
                reply = await self._stub.GetVersion(request)
        except (RemoteNotFound, RemoteRefused):
            return None
        found = reply.version
        return blob_ref.from_wire(found.training_state) if found.HasField("training_state") else None

    async def newest_uploaded(self, model: str) -> int:
        """Largest version of which every file is stored. The registry knows fewer: no fact names the version
        of a void step. Retention keeps the newest versions, so no number is used twice."""
        with object_store(f"versions of {model}"):
            keys = await self._store.list(objects.policy_versions(model))
        uploaded = filter(None, map(objects.parse_policy_manifest, keys))
        return max((folder.version for folder in uploaded), default=0)

    async def ancestors(self, base: BasePolicy, limit: int) -> tuple[Ancestor, ...]:
        """The versions that the base was trained from, newest first, at most `limit`, as far as their
        manifests are kept. Raises Unavailable."""
        found: list[Ancestor] = []
        with object_store(f"ancestors of base policy v{base.version}"):
            manifest = await self._manifest(base.manifest)
            tokenizer = tokenizer_files(manifest)
            while len(found) < limit and (parent := await self._kept_parent(manifest)) is not None:
                manifest = parent
                found.append(Ancestor(parent.version, tokenizer_files(parent) == tokenizer))
        return tuple(found)

    async def _kept_parent(self, manifest: PolicyManifest) -> PolicyManifest | None:
        """The manifest of the parent; None for a base model, and where the parent was pruned."""
        if not manifest.HasField("parent_version") or manifest.parent_version >= manifest.version:
            return None
        try:
            return await load(self._store, manifest.model, manifest.parent_version)
        except (UnknownPolicy, InvalidManifest):
            return None

    async def fetch(self, base: BasePolicy) -> Path:
        """A HF directory with exactly these weights. See PolicyCache.fetch."""
        with object_store(f"base policy v{base.version}"):
            return await self.cache.fetch(await self._manifest(base.manifest))

    async def upload(self, state: SessionState, directory: Path) -> PublishedPolicy:
        """Store the version of `state` from a HF directory; the same bytes again are success. Raises
        LineageTaken; Unavailable, also where another trainer may have taken the model during the upload."""
        with object_store(f"policy {state.spec.model} v{state.version}"):
            parent = await self._parent(state)
            record = state.last_step
            is_checkpoint = record is not None and record.saves_checkpoint
            facts = PolicyFacts(
                model=state.spec.model,
                version=state.version,
                created_at=state.completed_at,
                parent=parent,
                run_id=state.spec.run_id,
                step=state.step,
                canary=wire.canary_rows(state.canary),
                training_config_digest=state.spec.digest(),
                checkpoint_id=checkpoint_id(state.spec.model, state.version) if is_checkpoint else "",
            )
            return _published(
                await upload(self._store, directory, facts, check=partial(self._check, facts.model))
            )

    async def stored(self, model: str, version: int) -> PublishedPolicy:
        """A version that was uploaded before. Raises UnknownPolicy, Unavailable."""
        with object_store(f"policy {model} v{version}"):
            return _published(await load(self._store, model, version))

    async def _parent(self, state: SessionState) -> PolicyManifest:
        """The base, for the version that repeats its weights or is trained from them; else the version
        before."""
        if state.step == 0 or state.version - 1 == state.base.version:
            return await self._manifest(state.base.manifest)
        return await load(self._store, state.spec.model, state.version - 1)

    async def _manifest(self, ref: BlobRef) -> PolicyManifest:
        return manifest_from_bytes(await self._store.get(ref))


def _published(manifest: PolicyManifest) -> PublishedPolicy:
    return PublishedPolicy(manifest.version, manifest.digest, manifest_ref(manifest))


class BranchPolicies(RegistryPolicies):
    """Versions of interactive sessions: the parent of each is the checkpoint that it was trained from."""

    async def _parent(self, state: SessionState) -> PolicyManifest:
        return await load(self._store, state.spec.model, _version_of(state.parent_checkpoint_id))


class HeldOutTasks:
    """Tasks that must never train."""

    IDEMPOTENT = ("GetTaskset",)

    def __init__(self, tasksets: Peer) -> None:
        self._stub = TasksetServiceStub(tasksets.channel)
        self._address = tasksets.address

    async def digests(self, taskset: str) -> tuple[str, ...]:
        """Digests of a taskset's tasks, sorted. Raises InvalidTrainingSpec, Unavailable."""
        with lookup(f"the planner at {self._address}", f"the gate's taskset {taskset!r} is not registered"):
            reply = await self._stub.GetTaskset(taskset_pb2.GetTasksetRequest(name=taskset))
        return tuple(sorted(task.digest for task in reply.taskset.tasks))


def _version_of(identity: str) -> int:
    """The version that a checkpoint id names. Raises BrokenArtifact."""
    found = parse_checkpoint_id(identity)
    if found is None:
        raise BrokenArtifact(f"{identity!r} is no checkpoint id, so it names no parent version")
    return found.version
