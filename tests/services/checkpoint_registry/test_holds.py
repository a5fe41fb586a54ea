"""Holds: which engine takes one, what is refused and how, and that granted ones last as promised."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness
from tests.services.checkpoint_registry.running_registry import Stack, policy, upload

from checkpoint_registry.domain.errors import (
    NoEngine,
    NoRoom,
    OtherBase,
    UnknownModel,
    UnknownVersion,
    VersionRemoved,
)
from checkpoint_registry.domain.holds import EngineRoom, PolicyHold, base_of, choose_engine
from checkpoint_registry.domain.models import EngineLease
from identities.objects import PolicyFolder
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.rpc import RemoteNotFound, RemoteRefused, remote_errors

AT = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
V4, V5, V6 = (PolicyFolder("m", version) for version in (4, 5, 6))


def room(name: str, **changes: Any) -> EngineRoom:
    """An engine of model m with two places for holds."""
    values: dict[str, Any] = {"base": "m", "follows_head": False, "max_held": 3, "pinned": frozenset()}
    return EngineRoom(name, **(values | changes))


def held(policy: PolicyFolder, engine: str, holder: str = "ann") -> PolicyHold:
    return PolicyHold(*policy, holder, engine, AT)


def test_the_base_is_where_a_chain_of_forks_began() -> None:
    origins = {"a": "", "b": "ckpt-a-v00000003", "c": "ckpt-b-v00000000", "other": ""}
    assert [base_of(model, origins) for model in ("a", "b", "c", "other")] == ["a", "a", "a", "other"]


def test_a_policy_goes_where_it_is_held_then_where_most_places_are_left_and_to_production_last() -> None:
    engines = [room("a"), room("b"), room("head", follows_head=True, max_held=9)]
    assert choose_engine(V4, "m", engines, []) == "a"
    assert choose_engine(V5, "m", engines, [held(V4, "a")]) == "b"
    assert choose_engine(V4, "m", engines, [held(V5, "b"), held(V4, "head")]) == "head"
    full = [held(V4, "a"), held(V5, "a"), held(V4, "b"), held(V5, "b")]
    assert choose_engine(V6, "m", engines, full) == "head"


def test_one_place_is_left_to_evaluation_runs_and_what_they_pin_counts() -> None:
    pinned = room("a", pinned=frozenset({V5}))
    assert choose_engine(V4, "m", [pinned], []) == "a"
    with pytest.raises(NoRoom, match="m@v5 for an evaluation run"):
        choose_engine(V6, "m", [pinned], [held(V4, "a")])
    assert choose_engine(V5, "m", [pinned], [held(V4, "a"), held(V5, "a", "bob")]) == "a"
    assert choose_engine(V4, "m", [room("a", max_held=1)], []) == "a"


def test_no_room_names_what_is_held_by_which_holder_until_when() -> None:
    says = "a has 2 for holds: m@v4 for 'ann' until 2026-05-01 12:00:00 UTC, m@v5 for 'bob' until"
    with pytest.raises(NoRoom, match=says):
        choose_engine(V6, "m", [room("a")], [held(V4, "a"), held(V5, "a", "bob")])
    with pytest.raises(NoEngine, match="no engine supervisor runs"):
        choose_engine(V6, "m", [], [])
    with pytest.raises(NoRoom, match="the 1 that run hold no policy"):
        choose_engine(V6, "m", [room("vllm", max_held=0)], [])


def test_another_base_is_refused_by_name() -> None:
    with pytest.raises(OtherBase, match=r"m@v4 is of base 'm', and .* are of base 'n'"):
        choose_engine(V4, "m", [room("a", base="n")], [])


async def with_engine(harness: RegistryHarness, *, max_held: int = 3) -> None:
    """A live engine of MODEL, and its versions 1 to 3."""
    until = harness.clock.at + timedelta(seconds=60)
    lease = registry_pb2.EngineLease(engine_id="e", model=MODEL, max_held=max_held)
    await harness.leases.renew(EngineLease("e", MODEL, 1, lease.SerializeToString(), until))
    for version in (1, 2, 3):
        await harness.save(version)


async def hold(
    harness: RegistryHarness, version: int, holder: str = "ann", ttl_s: float = 30.0
) -> PolicyHold:
    now = harness.clock.at
    until = now + timedelta(seconds=ttl_s)
    granted, _ = await harness.holds.hold(PolicyFolder(MODEL, version), holder, now=now, until=until)
    return granted


async def test_a_hold_is_extended_and_ends(harness: RegistryHarness) -> None:
    await with_engine(harness)
    await hold(harness, 1)
    await hold(harness, 2, ttl_s=10)
    with pytest.raises(NoRoom, match="for 'ann'"):
        await hold(harness, 3)
    assert (await hold(harness, 1, holder="bob")).engine_id == "e"
    harness.clock.forward(9)
    await hold(harness, 1, ttl_s=100)
    harness.clock.forward(2)
    live = await harness.holds.live(harness.clock.at, engine_id="e")
    assert [(one.version, one.holder) for one in live] == [(1, "ann"), (1, "bob")]
    assert (await hold(harness, 3)).version == 3
    assert await harness.holds.release(PolicyFolder(MODEL, 3), "ann")
    assert not await harness.holds.release(PolicyFolder(MODEL, 3), "ann")
    harness.clock.forward(60)  # the lease of the engine has lapsed: what it holds is held no more
    with pytest.raises(NoEngine, match="no engine supervisor runs"):
        await hold(harness, 1)


async def test_what_does_not_exist_or_was_removed_is_not_held(harness: RegistryHarness) -> None:
    await with_engine(harness)
    with pytest.raises(UnknownVersion):
        await hold(harness, 9)
    until = harness.clock.at + timedelta(seconds=9)
    with pytest.raises(UnknownModel, match="nowhere"):
        await harness.holds.hold(PolicyFolder("nowhere", 0), "ann", now=harness.clock.at, until=until)
    assert await harness.versions.mark_removed(MODEL, 2, harness.clock.at)
    with pytest.raises(VersionRemoved, match=r"version 2 .* no engine, run or hold needed it"):
        await hold(harness, 2)
    await hold(harness, 3)
    assert not await harness.versions.mark_removed(MODEL, 3, harness.clock.at)
    assert (await harness.versions.version(MODEL, 3)).version == 3
    harness.clock.forward(31)
    assert await harness.versions.mark_removed(MODEL, 3, harness.clock.at)


async def test_holds_that_are_asked_for_at_once_do_not_take_one_place(harness: RegistryHarness) -> None:
    await with_engine(harness, max_held=2)
    asked = await asyncio.gather(*(hold(harness, version) for version in (1, 2, 3)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in asked) == ["NoRoom", "NoRoom", "PolicyHold"]


async def test_a_supervisor_gets_its_holds_with_its_lease_also_after_a_restart(stack: Stack) -> None:
    lease = registry_pb2.EngineLease(
        engine_id="e",
        base_url="http://127.0.0.1:1",
        model="held",
        channel=common_pb2.CHANNEL_LATEST,
        max_held=2,
    )
    renewal = pb.RenewEngineLeaseRequest(lease=lease, ttl_s=60)
    async with stack.registry() as stub:
        await upload(stub, "held", policy())
        await stub.RenewEngineLease(renewal)
        fork = await stub.ForkModel(pb.ForkModelRequest(source_model="held", model="held-fork"))
        answer = await stub.HoldPolicy(pb.HoldPolicyRequest(model="held-fork", ttl_s=600, holder="ann"))
        assert (answer.hold.model, answer.hold.version, answer.engine.engine_id) == ("held-fork", 0, "e")
        assert answer.engine.base_url == lease.base_url
        assert fork.base.version == 0
        await upload(stub, "stranger", policy(7))
        with pytest.raises(RemoteRefused, match="base 'stranger'") as refused, remote_errors("hold"):
            await stub.HoldPolicy(pb.HoldPolicyRequest(model="stranger", ttl_s=600, holder="ann"))
        assert refused.value.reason == "OTHER_BASE"
        with (
            pytest.raises(RemoteRefused, match="held-fork@v0 for 'ann' until") as full,
            remote_errors("hold"),
        ):
            await stub.HoldPolicy(pb.HoldPolicyRequest(model="held", version=0, ttl_s=600, holder="bob"))
        assert full.value.reason == "NO_ROOM"
    async with stack.registry() as stub:
        holds = (await stub.RenewEngineLease(renewal)).holds
        assert [(one.model, one.version, one.holder) for one in holds] == [("held-fork", 0, "ann")]
        assert list((await stub.ListHolds(pb.ListHoldsRequest())).holds) == list(holds)
        released = pb.ReleasePolicyRequest(model="held-fork", version=0, holder="ann")
        assert (await stub.ReleasePolicy(released)).released
        assert not (await stub.RenewEngineLease(renewal)).holds


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ttl_s": 0}, "ttl_s 0 is not in"),
        ({"ttl_s": 86_401}, "ttl_s 86401 is not in"),
        ({"ttl_s": float("nan")}, "ttl_s nan"),
        ({"holder": " "}, "holder ' ' must say"),
        ({"holder": "x" * 65}, "in 1 to 64 characters"),
        ({"version": -1}, "version -1 is below 0"),
        ({"model": "no@slug"}, "not a slug"),
    ],
)
async def test_a_wrong_hold_is_refused(stack: Stack, changes: dict[str, Any], why: str) -> None:
    async with stack.registry() as stub:
        values: dict[str, Any] = {"model": "m", "ttl_s": 5, "holder": "ann"}
        with pytest.raises(RemoteRefused, match=why), remote_errors("hold"):
            await stub.HoldPolicy(pb.HoldPolicyRequest(**(values | changes)))
        with pytest.raises(RemoteNotFound, match="UNKNOWN_MODEL"), remote_errors("hold"):
            await stub.HoldPolicy(pb.HoldPolicyRequest(model="nowhere", version=1, ttl_s=5, holder="ann"))
