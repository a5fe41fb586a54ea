"""Holds of policies: granted to a named holder, on an engine that the registry picks, for a while."""

from datetime import timedelta

from checkpoint_registry.adapters.sql_holds import SqlHoldStore
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.domain.holds import HoldRequest, PolicyHold, validate_holder
from checkpoint_registry.domain.models import EngineLease, validate_slug
from checkpoint_registry.ports import Clock
from identities.objects import PolicyFolder


class HoldPolicies:
    """Grants, releases and lists holds. They are in SQL, so a restart loses none."""

    def __init__(self, holds: SqlHoldStore, models: SqlModelStore, *, now: Clock) -> None:
        self._holds = holds
        self._models = models
        self._now = now

    async def hold(self, request: HoldRequest) -> tuple[PolicyHold, EngineLease]:
        """Raises InvalidRequest, UnknownModel, UnknownVersion, VersionRemoved, NoEngine,
        OtherBase, NoRoom."""
        request.validate()
        version = request.version
        if version is None:
            version = (await self._models.model(request.model)).head_version
        now = self._now()
        until = now + timedelta(seconds=request.ttl_s)
        policy = PolicyFolder(request.model, version)
        return await self._holds.hold(policy, request.holder, now=now, until=until)

    async def release(self, model: str, version: int, holder: str) -> bool:
        """False: there was no such hold. Raises InvalidRequest."""
        validate_slug(model)
        validate_holder(holder)
        return await self._holds.release(PolicyFolder(model, version), holder)

    async def of_model(self, model: str) -> list[PolicyHold]:
        """Live holds; empty model: all."""
        return await self._holds.live(self._now(), model=model)

    async def of_engine(self, engine_id: str) -> list[PolicyHold]:
        """What an engine is to serve."""
        return await self._holds.live(self._now(), engine_id=engine_id)
