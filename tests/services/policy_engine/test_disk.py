"""What an engine supervisor keeps is bounded, whatever its channel does: a head that no candidate
beats stays for days, while each candidate is fetched for its evaluation."""

import gc
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakSet

import pytest
from tests.services.policy_engine.doubles import EngineDouble, target
from tests.services.policy_engine.policies import make_policy
from tests.services.policy_engine.supervisor_bench import SupervisorBench
from tests.support.waiting import until

from blob_store import MemoryBlobStore
from engine_client import EngineRejected
from identities.objects import PolicyFolder
from policy_engine.adapters.policy_store import PolicyDownloads
from policy_engine.domain import EngineTarget, FailureKind, VersionRefused
from policy_engine.usecases.supervisor import RefusedVersions, SupervisorTimings
from policy_files import PolicyFacts, manifest_ref, upload

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
VERSIONS = 14
MAX_HELD = 2
QUICK_RETURN = 4
"""Versions that are kept beside those in use."""


class Disk:
    """A supervisor over a real cache on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = MemoryBlobStore()
        self._cache = folder / "cache"

    async def bench(self) -> SupervisorBench:
        bench = SupervisorBench(max_held=MAX_HELD, store=PolicyDownloads(self._store, self._cache))
        for version in range(VERSIONS):
            directory = make_policy(self._folder / f"v{version}", seed=version)
            manifest = await upload(self._store, directory, PolicyFacts("m", version, NOW))
            target = EngineTarget(version, manifest.digest, manifest_ref(manifest))
            bench.platform.published[version] = target
        return bench

    def kept(self) -> list[str]:
        """Digests of the versions on disk."""
        return [path.name for path in (self._cache / "policies").glob("*")]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


async def test_pinned_versions_of_ended_runs_leave_the_disk_though_the_channel_never_moves(
    disk: Disk,
) -> None:
    async with await disk.bench() as bench:
        await bench.until("ready 0")
        for version in range(1, VERSIONS):
            bench.requests.pin(f"run-{version}", version)
            wanted = PolicyFolder("m", version)
            await until(lambda now=wanted: now in bench.facts().beside.held, f"v{version} to be held")  # type: ignore[misc]
            bench.requests.unpin(f"run-{version}")
        await bench.rounds(2)
        assert len(disk.kept()) <= 1 + MAX_HELD + QUICK_RETURN
        held = {
            bench.platform.published[version].digest
            for version in (0, *(one.version for one in bench.facts().beside.held))
        }
        assert held <= set(disk.kept())


async def test_versions_that_the_engine_refuses_leave_the_disk(disk: Disk) -> None:
    bench = await disk.bench()
    bench.host.engine.fails["hold"] = EngineRejected(400, "no")
    async with bench:
        await bench.until("ready 0")
        for version in range(1, VERSIONS):
            bench.requests.pin(f"run-{version}", version)
            await bench.until(f"failed {version} engine_error")
            bench.requests.unpin(f"run-{version}")
        await bench.rounds(2)
        assert len(disk.kept()) <= 1 + QUICK_RETURN


async def test_refusals_do_not_keep_what_was_loaded_when_they_arose(disk: Disk) -> None:
    refused = RefusedVersions(SupervisorTimings(), lambda: 0.0)
    loaded: WeakSet[EngineDouble] = WeakSet()
    for version in range(200):
        refused.add(target(version), refusal_while_loaded(loaded))
    gc.collect()
    assert not loaded
    assert refused.why_not_now(target(199)) is not None
    assert refused.why_not_now(target(0)) is None, "only the newest are remembered"


def refusal_while_loaded(loaded: WeakSet[EngineDouble]) -> VersionRefused:
    engine = EngineDouble()
    loaded.add(engine)
    try:
        raise VersionRefused(FailureKind.ENGINE_ERROR, "no", may_pass_later=False)
    except VersionRefused as error:
        return error
