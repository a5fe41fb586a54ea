"""Import, fork, and manual moves of head."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from blob_store import BlobRef
from checkpoint_registry.adapters.policy_store import PolicyUploads
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.domain.errors import GateDecides, ModelExists, UnknownCheckpoint, UnknownModel
from checkpoint_registry.domain.models import (
    Checkpoint,
    CheckpointState,
    HeadMove,
    Model,
    validate_author,
    validate_slug,
)
from checkpoint_registry.ports import Clock
from identities import entities
from upcycle.errors import Unavailable


@dataclass(frozen=True, slots=True)
class FilePart:
    """A piece of one file; pieces of a file follow each other."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Imported:
    """The model as it is now; created is False when the same weights were there already."""

    model: Model
    base: Checkpoint
    created: bool


@dataclass(frozen=True, slots=True)
class HeadOrder:
    """Which checkpoint becomes head, who says so and why. `actor` is not checked; `caller` is whose key it
    came with."""

    model: str
    checkpoint_id: str
    actor: str
    reason: str
    caller: str

    def validate(self) -> None:
        """Raises InvalidRequest."""
        validate_author(self.actor, self.reason, "moves head")

    @property
    def recorded_actor(self) -> str:
        """As the audit keeps it."""
        return f"{self.actor} ({self.caller})"


class ManageModels:
    """Adds models, and moves their heads when a person asks for it."""

    def __init__(
        self,
        store: SqlModelStore,
        policies: PolicyUploads,
        wake_gate: Callable[[list[str]], None],
        *,
        now: Clock,
    ) -> None:
        self._store = store
        self._policies = policies
        self._wake_gate = wake_gate
        self._now = now

    async def import_model(
        self, model: str, parts: AsyncIterator[FilePart], *, if_not_exists: bool
    ) -> Imported:
        """Stores the files and makes them version 0 and head.

        Raises InvalidRequest, ModelExists (with `if_not_exists` only for other weights).
        """
        validate_slug(model)
        async with self._policies.upload() as upload:
            async for part in parts:
                await upload.add(part.name, part.data)
            if not if_not_exists:
                await self._refuse_existing(model)
            manifest, digest = await upload.finish(model)
        created = await self._store.create_model(self._base(model, manifest, digest, ""), forked_from="")
        return await self._imported(model, created)

    async def fork(self, source_model: str, source_checkpoint_id: str, model: str) -> Imported:
        """Makes a checkpoint (empty: the source's head) version 0 of a new model. Raises ModelExists."""
        validate_slug(model)
        source = await self._store.model(source_model)
        origin = await self._store.checkpoint(source_checkpoint_id or source.head_checkpoint_id)
        if origin.model != source_model:
            raise UnknownCheckpoint(f"checkpoint {origin.checkpoint_id!r} is not one of {source_model!r}")
        await self._refuse_existing(model)
        manifest, digest = await self._policies.fork(origin.manifest, model)
        base = self._base(model, manifest, digest, origin.checkpoint_id)
        created = await self._store.create_model(base, forked_from=origin.checkpoint_id)
        return await self._imported(model, created)

    async def set_head(
        self, order: HeadOrder, *, expected_revision: int | None = None, unless_gated: bool = False
    ) -> tuple[Model, HeadMove]:
        """Moves head to any checkpoint of the model.

        unless_gated: training asks; only a person moves the head of a model that has a gate. Raises
        HeadMoved, UnknownCheckpoint, InvalidRequest, GateDecides; Unavailable until it is known whether the
        model has one.
        """
        order.validate()
        # Read before the model: what is known by then, the model shows.
        unread = await self._store.unread_gate(order.model) if unless_gated else None
        target = await self._store.checkpoint(order.checkpoint_id)
        before = await self._store.model(order.model)
        if target.model != order.model:
            raise UnknownCheckpoint(f"checkpoint {order.checkpoint_id!r} is not one of {order.model!r}")
        if unless_gated and before.gate_taskset and before.head_checkpoint_id != order.checkpoint_id:
            raise GateDecides(order.model, before.gate_taskset)
        if unread is not None and before.head_checkpoint_id != order.checkpoint_id:
            raise Unavailable(f"the planner to say if the run of {order.model}@v{unread} has a gate")
        move = await self._store.move_head(
            target,
            expected_revision=expected_revision,
            actor=order.recorded_actor,
            reason=order.reason,
            at=self._now(),
        )
        self._wake_gate([order.model])
        return await self._store.model(order.model), move

    def _base(self, model: str, manifest: BlobRef, digest: str, parent: str) -> Checkpoint:
        return Checkpoint(
            checkpoint_id=entities.checkpoint_id(model, 0),
            model=model,
            version=0,
            parent_checkpoint_id=parent,
            digest=digest,
            manifest=manifest,
            state=CheckpointState.BASE,
            created_at=self._now(),
        )

    async def _refuse_existing(self, model: str) -> None:
        """Early and for a clear message; create_model is what decides."""
        try:
            existing = await self._store.version(model, 0)
        except UnknownModel:
            return
        raise ModelExists(f"model {model!r} exists with weights {existing.digest[:12]}; choose another slug")

    async def _imported(self, model: str, created: bool) -> Imported:
        return Imported(await self._store.model(model), await self._store.version(model, 0), created)
