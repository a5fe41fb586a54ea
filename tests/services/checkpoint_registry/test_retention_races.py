"""A version that is pinned, loaded or made head while a sweep removes versions keeps all its files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness
from tests.services.checkpoint_registry.planner_double import PROFILE, evaluation_run
from tests.services.checkpoint_registry.running_registry import weights
from tests.services.checkpoint_registry.test_retention import Shelf, filled_shelf, lease

from checkpoint_registry.adapters.tables import published_version
from checkpoint_registry.adapters.version_files import VersionFiles
from checkpoint_registry.domain.models import EngineLease
from checkpoint_registry.usecases.retention import PruneVersions, RetentionDeps
from identities.objects import PolicyFolder, policy_manifest
from upcycle.api.registry.v1 import registry_pb2

OLD = 12
"""Neither checkpoint nor new: a sweep wants it gone."""
Naming = Callable[[RegistryHarness], Awaitable[None]]


async def pin(harness: RegistryHarness) -> None:
    """A run is pinned to it."""
    harness.planner.runs["run-late"] = evaluation_run("run-late", MODEL, OLD, PROFILE)


@pytest.fixture
def sql_url(tmp_path: Path) -> str:
    """One database: a script decides the order of the calls, so no transactions meet."""
    return f"sqlite:///{tmp_path / 'test.sqlite'}"


async def unpin(harness: RegistryHarness) -> None:
    harness.planner.runs.pop("run-late", None)


async def load(harness: RegistryHarness) -> None:
    """An engine says that it holds it."""
    await lease(harness, 20, OLD)


async def hold(harness: RegistryHarness) -> None:
    until = harness.clock.at + timedelta(minutes=10)
    roomy = registry_pb2.EngineLease(engine_id="roomy", model=MODEL, version=20, max_held=2)
    await harness.leases.renew(EngineLease("roomy", MODEL, 1, roomy.SerializeToString(), until))
    await harness.holds.hold(PolicyFolder(MODEL, OLD), "test", now=harness.clock.at, until=until)


async def release(harness: RegistryHarness) -> None:
    await harness.holds.release(PolicyFolder(MODEL, OLD), "test")


async def unload(harness: RegistryHarness) -> None:
    await lease(harness, 20)


async def make_head(harness: RegistryHarness) -> None:
    """It is recorded as a checkpoint, and becomes head."""
    await harness.save(OLD, digest=(await harness.versions.version(MODEL, OLD)).digest)
    target = await harness.models.version(MODEL, OLD)
    await harness.models.move_head(
        target, expected_revision=None, actor="a person", reason="looks better", at=START
    )


@dataclass
class Script:
    """What the dependencies of a sweep are asked, and what comes before one of the calls."""

    interrupt: Callable[[], Awaitable[None]]
    at: int | None = None
    calls: list[str] = field(default_factory=list)


class Interrupted:
    """A dependency under a script."""

    def __init__(self, inner: Any, script: Script) -> None:
        self._inner = inner
        self._script = script

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if len(self._script.calls) == self._script.at:
                await self._script.interrupt()
            self._script.calls.append(f"{name} {args[0]}" if args else name)
            return await attribute(*args, **kwargs)

        return call


async def nothing(harness: RegistryHarness) -> None:
    """No row names it."""


async def swept(shelf: Shelf, at: int | None = None, naming: Naming = nothing) -> tuple[list[int], list[str]]:
    """What the removing sweep removed, and the calls that it made; `naming` came before call `at`."""
    harness = shelf.harness
    script = Script(lambda: naming(harness))
    store: Any = Interrupted(shelf.store, script)
    asked = {
        "models": harness.models,
        "leases": harness.leases,
        "holds": harness.holds,
        "tasksets": harness.planner,
    }
    deps: dict[str, Any] = {
        name: Interrupted(one, script) for name, one in {**asked, "versions": harness.versions}.items()
    }
    prune = PruneVersions(
        RetentionDeps(**deps, files=VersionFiles(store)), shelf.pruner().policy, now=harness.clock
    )
    assert await prune.sweep() == {}
    script.calls.clear()
    script.at = at
    return (await prune.sweep())[MODEL], script.calls


async def restore(shelf: Shelf, whole: dict[str, bytes]) -> None:
    """As if no sweep had taken place."""
    shelf.store.objects.update(whole)
    unmark = update(published_version).values(removed_at=None)
    await shelf.harness.database.run(lambda connection: connection.execute(unmark))


async def last_moment(shelf: Shelf, question: str) -> int:
    """Index of the call with which the sweep asks the last time before the manifest of OLD goes."""
    whole = dict(shelf.store.objects)
    gone, calls = await swept(shelf)
    assert OLD in gone
    await restore(shelf, whole)
    end = calls.index(f"delete {policy_manifest(MODEL, OLD)}")
    asked, listed = (
        max(index for index, call in enumerate(calls[:end]) if call.startswith(word))
        for word in (question, "list default/policies/")
    )
    assert asked > listed, "no dependency is asked after the removal has begun"
    return asked


async def assert_whole(shelf: Shelf, name: str) -> None:
    assert await shelf.whole(shelf.manifests[OLD], name) == weights(OLD)


@pytest.mark.parametrize("naming", [pin, load, make_head, hold])
async def test_what_is_named_between_two_sweeps_stays(
    harness: RegistryHarness, tmp_path: Path, naming: Naming
) -> None:
    shelf = await filled_shelf(harness, tmp_path)
    prune = shelf.pruner()
    assert await prune.sweep() == {}
    await naming(harness)
    assert OLD not in (await prune.sweep())[MODEL]
    await assert_whole(shelf, "old")


@pytest.mark.parametrize(
    ("naming", "undo", "question"),
    [
        (pin, unpin, "pinned_versions"),
        (load, unload, "held_versions"),
        (hold, release, "mark_removed"),  # the row of the version decides, so up to the last moment
    ],
)
async def test_what_is_named_at_any_moment_until_it_is_asked_for_stays(
    harness: RegistryHarness, tmp_path: Path, naming: Naming, undo: Naming, question: str
) -> None:
    shelf = await filled_shelf(harness, tmp_path)
    last = await last_moment(shelf, question)
    whole = dict(shelf.store.objects)
    for at in range(0, last + 1, 3):
        await restore(shelf, whole)
        await undo(harness)
        gone, _ = await swept(shelf, last - at, naming)
        assert OLD not in gone, f"named before call {last - at}"
        await assert_whole(shelf, f"old-{at}")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 1.0])
async def test_what_becomes_head_at_any_moment_until_it_is_asked_for_stays(
    harness: RegistryHarness, tmp_path: Path, share: float
) -> None:
    shelf = await filled_shelf(harness, tmp_path)
    last = await last_moment(shelf, "unsaved")
    gone, _ = await swept(shelf, round(share * last), make_head)
    assert OLD not in gone
    await assert_whole(shelf, "old")
    assert await harness.head() == OLD
