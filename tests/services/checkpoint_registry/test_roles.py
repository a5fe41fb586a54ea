"""What the registry lets each role do within an rpc that is for several."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, judge

from blob_store import MemoryBlobStore
from checkpoint_registry.adapters.policy_store import PolicyUploads
from checkpoint_registry.adapters.sql_canary_releases import SqlCanaryReleases
from checkpoint_registry.domain.errors import GateDecides
from checkpoint_registry.domain.models import EngineLease
from checkpoint_registry.servicer import Context, RegistryServicer
from checkpoint_registry.usecases.canary_releases import CanaryReleases
from checkpoint_registry.usecases.holds import HoldPolicies
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.models import ManageModels
from grpc_edge.access import Caller, set_caller
from identities.entities import checkpoint_id
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb

ADA, BOB = Caller("ada", Role.ROLE_USER), Caller("bob", Role.ROLE_USER)
OPERATOR, SERVICE = Caller("operator", Role.ROLE_OPERATOR), Caller("service", Role.ROLE_SERVICE)
CALL = cast(Context, None)


@pytest.fixture
def registry(harness: RegistryHarness, tmp_path: Path) -> RegistryServicer:
    """What answers the calls, over the tables of the harness."""
    now = harness.clock
    uploads = PolicyUploads(MemoryBlobStore(), staging_dir=tmp_path, max_import_bytes=1, now=now)
    models = ManageModels(harness.models, uploads, lambda _: None, now=now)
    leases, holds = (
        EngineLeases(harness.leases, now=now),
        HoldPolicies(harness.holds, harness.models, now=now),
    )
    releases = CanaryReleases(SqlCanaryReleases(harness.database), now=now)
    return RegistryServicer(
        models, harness.models, harness.versions, leases, holds, releases, harness.reports
    )


async def as_caller(caller: Caller, call: Coroutine[Any, Any, Any]) -> Any:
    """What a call with this caller's key comes to."""
    context = copy_context()
    context.run(set_caller, caller, "/registry/Test")
    return await asyncio.create_task(call, context=context)


async def test_with_the_key_of_the_services_no_head_is_moved_past_its_gate(
    harness: RegistryHarness, registry: RegistryServicer
) -> None:
    """The supervisor of an engine has it, and each sampler."""
    await judge(harness, 1, 0.9, head_rate=0.3)
    assert await harness.head() == 1
    back = pb.SetHeadRequest(
        model=MODEL, checkpoint_id=checkpoint_id(MODEL, 0), actor="ada", reason="regression"
    )

    with pytest.raises(GateDecides):
        await as_caller(SERVICE, registry.SetHead(back, CALL))
    assert await harness.head() == 1

    await as_caller(OPERATOR, registry.SetHead(back, CALL))
    assert await harness.head() == 0


async def test_a_user_releases_no_hold_of_another_user_or_of_a_service(
    harness: RegistryHarness, registry: RegistryServicer
) -> None:
    lease = registry_pb2.EngineLease(engine_id="e", model=MODEL, max_held=3)
    until = harness.clock.at + timedelta(seconds=60)
    await harness.leases.renew(EngineLease("e", MODEL, 1, lease.SerializeToString(), until))
    await harness.save(1)

    for caller, holder in ((SERVICE, "model_gateway"), (ADA, "tests")):
        wanted = pb.HoldPolicyRequest(model=MODEL, version=1, ttl_s=50, holder=holder)
        await as_caller(caller, registry.HoldPolicy(wanted, CALL))

    async def release(caller: Caller, holder: str) -> bool:
        named = pb.ReleasePolicyRequest(model=MODEL, version=1, holder=holder)
        return bool((await as_caller(caller, registry.ReleasePolicy(named, CALL))).released)

    assert [await release(BOB, name) for name in ("model_gateway", "tests", "tests (ada)")] == [False] * 3
    held = (await registry.ListHolds(pb.ListHoldsRequest(model=MODEL), CALL)).holds
    assert [one.holder for one in held] == ["model_gateway", "tests (ada)"]
    assert await release(ADA, "tests")
    assert await release(OPERATOR, "model_gateway")
