"""Which version a channel wants: the registry's answer, unless a fact named a newer one."""

from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from blob_store import BlobRef
from episodes import Channel
from identities import objects
from identities.objects import PolicyFolder
from policy_engine import wire
from policy_engine.adapters.versions import ChannelVersions
from policy_engine.domain import EngineTarget, FailureKind, PinRequests, VersionRefused
from policy_files import FalseAnnouncement
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.training.v1.events_pb2 import PolicyPublished
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteNotFound, RemoteRefused


def blob(version: int) -> common_pb2.BlobRef:
    return common_pb2.BlobRef(key=f"k{version}", sha256="0" * 64, size_bytes=1)


def published(version: int) -> registry_pb2.PublishedVersion:
    found = registry_pb2.PublishedVersion(version=version, digest=f"d{version}", manifest=blob(version))
    found.published_at.FromSeconds(1000 + version)
    return found


def checkpoint(version: int) -> registry_pb2.Checkpoint:
    return registry_pb2.Checkpoint(version=version, digest=f"d{version}", manifest=blob(version))


def target(version: int) -> EngineTarget:
    """A version as policy.published names it."""
    return EngineTarget(version, f"d{version}", BlobRef(f"k{version}", "0" * 64, 1))


@dataclass
class RegistryDouble:
    """Answers as the test says; `error` is raised instead while it is set."""

    latest: int = 0
    head: int = 0
    removed: set[int] = field(default_factory=set)
    error: Exception | None = None

    async def GetModel(self, request: pb.GetModelRequest) -> pb.GetModelResponse:
        if self.error is not None:
            raise self.error
        model = registry_pb2.Model(model=request.model, latest=published(self.latest))
        model.promoted_at.FromSeconds(500)
        head, base = (
            registry_pb2.Checkpoint(version=one, digest=f"d{one}", manifest=blob(one))
            for one in (self.head, 0)
        )
        return pb.GetModelResponse(model=model, head=head, base=base)

    async def GetVersion(self, request: pb.GetVersionRequest) -> pb.GetVersionResponse:
        if self.error is not None:
            raise self.error
        if request.version in self.removed:
            raise _remote(RemoteRefused, "it was removed")
        if request.version > self.latest:
            raise _remote(RemoteNotFound, "no such version")
        return pb.GetVersionResponse(version=published(request.version))


def _remote(kind: type[Any], message: str) -> Exception:
    error: Exception = kind("look it up", grpc.StatusCode.UNKNOWN, "REASON", message)
    return error


def of_channel(channel: Channel, registry: Any, pins: PinRequests | None = None) -> ChannelVersions:
    return ChannelVersions("m", channel, registry, pins or PinRequests())


async def wanted(versions: ChannelVersions) -> list[int]:
    return [one.version for one in await versions.current()]


async def test_latest_comes_from_the_registry_with_head_and_base_to_fall_back_to() -> None:
    versions = of_channel(Channel.LATEST, RegistryDouble(latest=7, head=4))
    assert await wanted(versions) == [7, 4, 0]
    newest = (await versions.current())[0]
    assert newest.announced_at is not None
    assert newest.announced_at.timestamp() == 1007


async def test_a_fact_that_is_newer_than_the_registrys_answer_is_followed() -> None:
    registry = RegistryDouble(latest=7, head=4)
    versions = of_channel(Channel.LATEST, registry)
    versions.note(target(8))
    assert await wanted(versions) == [8, 4, 0]
    registry.latest = 9
    assert await wanted(versions) == [9, 4, 0]


async def test_a_late_event_does_not_move_the_engine_back() -> None:
    registry = RegistryDouble(latest=7)
    versions = of_channel(Channel.LATEST, registry)
    versions.note(target(6))
    assert await wanted(versions) == [7, 0]
    versions.note(target(5))
    registry.error = Unavailable("the registry")
    assert await wanted(versions) == [7]


async def test_a_version_that_was_refused_gives_way_to_what_the_registry_says() -> None:
    """A false fact may name a version that is nowhere; all that come are older than it."""
    registry = RegistryDouble(latest=7)
    versions = of_channel(Channel.LATEST, registry)
    versions.note(target(1_000_000))
    assert await wanted(versions) == [1_000_000, 0]
    versions.refused_target(target(6))  # another one
    assert await wanted(versions) == [1_000_000, 0]
    versions.refused_target(target(1_000_000))
    assert await wanted(versions) == [7, 0]
    versions.note(target(8))
    assert await wanted(versions) == [8, 0]
    registry.error = Unavailable("the registry")
    versions.refused_target(target(8))
    assert await wanted(versions) == [8]  # nothing else is known
    versions.note(target(6))
    assert await wanted(versions) == [6]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"digest": "d9"},
        {"version": 10},
        {"manifest": common_pb2.BlobRef(key="k9", sha256="a" * 64)},
    ],
)
def test_a_published_version_that_contradicts_itself_is_not_followed(change: dict[str, Any]) -> None:
    manifest = common_pb2.BlobRef(key=objects.policy_manifest("m", 9), sha256="a" * 64, size_bytes=1)
    fields: dict[str, Any] = {"model": "m", "version": 9, "digest": "d" * 64, "manifest": manifest}
    assert wire.target_of_published(PolicyPublished(**fields), "m").version == 9
    with pytest.raises(FalseAnnouncement):
        wire.target_of_published(PolicyPublished(**(fields | change)), "m")


async def test_while_the_registry_is_down_engines_follow_the_facts() -> None:
    registry = RegistryDouble(error=Unavailable("the registry"))
    versions = of_channel(Channel.LATEST, registry)
    with pytest.raises(Unavailable, match="registry"):
        await versions.current()
    versions.note(target(3))
    assert await wanted(versions) == [3]
    registry.error = None
    registry.latest = 3
    assert await wanted(versions) == [3, 0]


async def test_an_unknown_model_is_waited_for_even_if_a_version_was_published() -> None:
    versions = of_channel(Channel.LATEST, RegistryDouble(error=_remote(RemoteNotFound, "no such model")))
    versions.note(target(3))
    with pytest.raises(Unavailable, match="to be imported"):
        await versions.current()


async def test_head_comes_with_the_time_of_its_promotion_and_ignores_what_is_published() -> None:
    versions = of_channel(Channel.HEAD, RegistryDouble(latest=7, head=4))
    versions.note(target(8))
    assert await wanted(versions) == [4, 0]
    head = (await versions.current())[0]
    assert head.announced_at is not None
    assert head.announced_at.timestamp() == 500


async def test_a_pin_on_a_removed_version_is_refused_for_good() -> None:
    versions = of_channel(Channel.LATEST, RegistryDouble(latest=7, removed={3}))
    with pytest.raises(VersionRefused) as caught:
        await versions.of_pin(PolicyFolder("m", 3))
    assert (caught.value.kind, caught.value.may_pass_later) == (FailureKind.VERSION_REMOVED, False)
    assert (await versions.of_pin(PolicyFolder("m", 4))).digest == "d4"
    with pytest.raises(Unavailable, match="v8 to be published"):
        await versions.of_pin(PolicyFolder("m", 8))


async def test_a_candidate_engine_passes_over_pins_on_removed_versions() -> None:
    pins = PinRequests()
    pins.pin("run-a", 3)
    pins.pin("run-b", 5)
    versions = of_channel(Channel.CANDIDATE, RegistryDouble(latest=7, head=4, removed={3}), pins)
    assert await wanted(versions) == [5, 4, 0]


async def test_a_candidate_engine_serves_the_pinned_base_also_after_head_moved() -> None:
    pins = PinRequests()
    pins.pin("run-a", 0)
    versions = of_channel(Channel.CANDIDATE, RegistryDouble(latest=7, head=5), pins)
    assert await wanted(versions) == [0, 5]
