"""Canary releases: what begins, changes and ends one, what is refused, and that its version stays held."""

from datetime import timedelta
from typing import Any

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness
from tests.services.checkpoint_registry.running_registry import Stack, policy, upload

from checkpoint_registry.adapters.canary_rows import HOLDER
from checkpoint_registry.adapters.sql_canary_releases import SqlCanaryReleases
from checkpoint_registry.domain.errors import (
    AlreadyHead,
    HeadMoved,
    NoCanaryRelease,
    NoEngine,
    NoRoom,
    UnknownCheckpoint,
    UnknownModel,
)
from checkpoint_registry.domain.models import CanaryRelease, EngineLease
from checkpoint_registry.usecases.canary_releases import CanaryReleases, ReleaseOrder
from identities.entities import checkpoint_id
from identities.objects import PolicyFolder
from sql_store.audit import entries
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.rpc import RemoteNotFound, RemoteRefused, remote_errors


@pytest.fixture
def releases(harness: RegistryHarness) -> CanaryReleases:
    """Over the harness' tables."""
    return CanaryReleases(SqlCanaryReleases(harness.database), now=harness.clock)


async def with_engine(harness: RegistryHarness, engine: str = "e", *, max_held: int = 3) -> None:
    """A live engine of MODEL."""
    until = harness.clock.at + timedelta(seconds=60)
    lease = registry_pb2.EngineLease(engine_id=engine, model=MODEL, max_held=max_held)
    await harness.leases.renew(EngineLease(engine, MODEL, 1, lease.SerializeToString(), until))


async def begin(
    releases: CanaryReleases,
    version: int,
    share: float = 0.1,
    *,
    shadow: float = 0.0,
    head_revision: int | None = None,
) -> tuple[CanaryRelease, EngineLease]:
    order = ReleaseOrder(MODEL, checkpoint_id(MODEL, version), share, shadow, "ann", "try it", "operator")
    return await releases.set_release(order, head_revision=head_revision)


async def held(harness: RegistryHarness) -> list[tuple[int, str, str]]:
    live = await harness.holds.live(harness.clock.at)
    return [(one.version, one.holder, one.engine_id) for one in live]


def lines(changes: list[CanaryRelease]) -> list[tuple[int, int, float, str, str]]:
    return [(one.revision, one.version, one.share, one.actor, one.reason) for one in changes]


async def test_a_release_begins_changes_and_ends_with_an_audit_a_fact_and_a_hold(
    harness: RegistryHarness, releases: CanaryReleases
) -> None:
    await with_engine(harness)
    for version in (1, 2):
        await harness.save(version)
    begun, lease = await begin(releases, 1, head_revision=1)
    assert (begun.version, lease.engine_id) == (1, "e")
    assert (await harness.models.model(MODEL)).canary_release == begun
    assert await held(harness) == [(1, HOLDER, "e")]
    await begin(releases, 2, 0.0, shadow=1.0)
    under_way = (await harness.models.model(MODEL)).canary_release
    assert under_way is not None
    assert (under_way.version, under_way.share, under_way.shadow_share) == (2, 0.0, 1.0)
    assert await held(harness) == [(2, HOLDER, "e")]
    await releases.end(MODEL, actor="bob", reason="seen enough", caller="operator")
    assert (await harness.models.model(MODEL)).canary_release is None
    assert await held(harness) == []
    assert lines(await releases.changes(MODEL)) == [
        (1, 1, 0.1, "ann (operator)", "try it"),
        (2, 2, 0.0, "ann (operator)", "try it"),
        (3, 2, 0.0, "bob (operator)", "seen enough"),
    ]
    facts = [one for one in await harness.events() if one.startswith("canary_release")]
    assert facts == [f"canary_release.changed/default/{MODEL}/{number}" for number in (1, 2, 3)]
    with pytest.raises(NoCanaryRelease, match="no canary release of 'incident' is under way"):
        await releases.end(MODEL, actor="bob", reason="again", caller="operator")
    logged = await entries(harness.database, since=None, who="", after=0, limit=100)
    assert [one.outcome for one in logged if one.object == f"canary release of {MODEL}"] == [
        f"{checkpoint_id(MODEL, 1)}, share 0.1, shadow 0: try it",
        f"{checkpoint_id(MODEL, 2)}, share 0, shadow 1: try it",
        "ended: seen enough",
    ]


@pytest.mark.parametrize("head", [1, 2])
async def test_a_move_of_head_ends_a_release_by_promotion_and_by_another_checkpoint(
    harness: RegistryHarness, releases: CanaryReleases, head: int
) -> None:
    await with_engine(harness)
    for version in (1, 2):
        await harness.save(version)
    await begin(releases, 1)
    target = await harness.models.version(MODEL, head)
    moved: dict[str, Any] = {"actor": "cem (operator)", "reason": "it is better", "at": harness.clock()}
    await harness.models.move_head(target, expected_revision=1, **moved)
    assert (await harness.models.model(MODEL)).canary_release is None
    assert await held(harness) == []
    last = (await releases.changes(MODEL))[-1]
    assert (last.share, last.actor) == (0.0, "cem (operator)")
    assert last.reason == f"head moved to {checkpoint_id(MODEL, head)}: it is better"
    await harness.models.move_head(target, expected_revision=None, **moved)
    assert len(await releases.changes(MODEL)) == 2
    back = await harness.models.version(MODEL, 0)
    await begin(releases, 3 - head)
    await harness.models.move_head(back, expected_revision=None, **moved)
    assert [one.share for one in await releases.changes(MODEL)] == [0.1, 0.0, 0.1, 0.0]


async def test_what_is_refused_changes_nothing(harness: RegistryHarness, releases: CanaryReleases) -> None:
    await harness.save(1)
    await harness.save(2)
    with pytest.raises(NoEngine, match="no engine supervisor runs"):
        await begin(releases, 1)
    await with_engine(harness, max_held=2)
    with pytest.raises(AlreadyHead, match="is head of 'incident'"):
        await begin(releases, 0)
    with pytest.raises(UnknownCheckpoint):
        await begin(releases, 9)
    with pytest.raises(HeadMoved, match="at revision 1, not 7"):
        await begin(releases, 1, head_revision=7)
    now = harness.clock()
    await harness.holds.hold(PolicyFolder(MODEL, 2), "bob", now=now, until=now + timedelta(seconds=9))
    with pytest.raises(NoRoom, match=r"no engine has room for incident@v1: .*incident@v2 for 'bob' until"):
        await begin(releases, 1)
    assert await releases.changes(MODEL) == []
    assert (await harness.models.model(MODEL)).canary_release is None
    begun, _ = await begin(releases, 2)
    with pytest.raises(NoRoom):
        await begin(releases, 1, 0.9)
    assert (await harness.models.model(MODEL)).canary_release == begun
    assert await held(harness) == [(2, "bob", "e"), (2, HOLDER, "e")]
    with pytest.raises(UnknownModel):
        await releases.changes("nowhere")


async def test_the_hold_lasts_as_long_as_the_release_and_goes_to_another_engine(
    harness: RegistryHarness, releases: CanaryReleases, caplog: pytest.LogCaptureFixture
) -> None:
    await with_engine(harness)
    await harness.save(1)
    await begin(releases, 1)
    for _ in range(3):
        harness.clock.forward(3000)
        await with_engine(harness)
        await releases.keep_held()
    assert await held(harness) == [(1, HOLDER, "e")]
    harness.clock.forward(61)
    await releases.keep_held()
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "canary_release_not_held"
    ]
    await with_engine(harness, "other")
    await releases.keep_held()
    assert await held(harness) == [(1, HOLDER, "other")]
    await releases.end(MODEL, actor="ann", reason="done", caller="operator")
    await releases.keep_held()
    assert await held(harness) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"share": 0.0}, "share and shadow_share are 0, so the checkpoint would answer nothing"),
        ({"share": 1.0}, "share 1 is not below 1 and at least 0"),
        ({"shadow_share": 1.1}, r"shadow_share 1.1 is not in 0\.\.1"),
        ({"shadow_share": float("nan")}, "shadow_share nan"),
        ({"share": -0.1}, "share -0.1"),
        ({"share": float("nan")}, "share nan"),
        ({"actor": " "}, "actor and reason must say who releases it and why"),
        ({"reason": ""}, "actor and reason must say"),
        ({"actor": "x" * 65}, "at most 64 are kept"),
        ({"model": "no@slug"}, "not a slug"),
    ],
)
async def test_a_wrong_release_is_refused_over_the_wire(
    stack: Stack, changes: dict[str, Any], why: str
) -> None:
    async with stack.registry() as stub:
        values: dict[str, Any] = {
            "model": "m",
            "checkpoint_id": "c",
            "share": 0.5,
            "actor": "ann",
            "reason": "try",
        }
        with pytest.raises(RemoteRefused, match=why), remote_errors("release"):
            await stub.SetCanaryRelease(pb.SetCanaryReleaseRequest(**(values | changes)))


async def test_the_audit_is_served_also_after_a_restart(stack: Stack) -> None:
    async with stack.registry() as stub:
        await upload(stub, "audited", policy())
        for call in (
            stub.EndCanaryRelease(pb.EndCanaryReleaseRequest(model="audited", actor="a", reason="r")),
            stub.SetCanaryRelease(
                pb.SetCanaryReleaseRequest(
                    model="audited",
                    checkpoint_id=checkpoint_id("audited", 0),
                    share=0.5,
                    actor="a",
                    reason="r",
                )
            ),
        ):
            with pytest.raises(RemoteRefused) as refused, remote_errors("release"):
                await call
            assert refused.value.reason in ("NO_CANARY_RELEASE", "ALREADY_HEAD")
        with pytest.raises(RemoteNotFound, match="UNKNOWN_MODEL"), remote_errors("release"):
            await stub.ListCanaryReleases(pb.ListCanaryReleasesRequest(model="nowhere"))
        listed = await stub.ListCanaryReleases(pb.ListCanaryReleasesRequest(model="audited"))
        assert not listed.changes
        assert not (await stub.GetModel(pb.GetModelRequest(model="audited"))).model.HasField("canary_release")
