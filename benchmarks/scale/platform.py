"""Planner, store and registry over filled tables: their use cases, without the bus and the object store."""

import itertools
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from benchmarks.scale.filling import filler
from benchmarks.scale.size import Size, model_name, run_name
from benchmarks.scale.tables import FILLS, Names
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_references import SqlReferences
from episodes import Purpose
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain.peer_facts import DurableFact
from scenario_runner.usecases.explaining import ExplainRun
from scenario_runner.usecases.references import FindReferences
from scenario_runner.usecases.submitting import Runs, SubmitRun
from service_kit.clock import utc_now
from sql_store import Database, MigratedDatabase
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.sql_retention import SqlRetention
from trajectory_store.domain.ledger import Episode
from trajectory_store.usecases.reading import ExportTrajectories, ReadBody
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.run_config import PolicyChoice

_PAGE: Final = 200


class KnownModels:
    """A registry that knows every model."""

    async def check_policy(self, policy: PolicyChoice) -> None:
        """It is there."""

    async def head_version(self, model: str) -> int:
        """The base."""
        return 0


class SilentPeers:
    """Implements RunPeers: other services, of which none answers."""

    async def engines(self, model: str) -> None:
        """Not in time."""

    async def ledger(self, run_id: str) -> None:
        """Not in time."""

    async def session(self, run_id: str) -> None:
        """Not in time."""

    async def durables(self, purpose: Purpose, model: str) -> Mapping[str, DurableFact]:
        """None could be read."""
        return {}

    async def reward_alarms(self, run_id: str) -> Sequence[str]:
        """None could be read."""
        return ()

    async def waiting_candidates(self, model: str, run_id: str) -> Sequence[str]:
        """None could be read."""
        return ()

    async def num_confirmed(self, run_id: str, top: int) -> None:
        """Not in time."""


async def empty_body(episode: Episode) -> TrajectoryBody:
    """What an export reads where the object store is not what is measured."""
    return TrajectoryBody(answer=episode.identity.episode_id)


@dataclass
class Platform:
    """The use cases over three databases. rng: chooses what is asked for."""

    size: Size
    databases: dict[str, Database]
    rng: random.Random
    counter: "itertools.count[int]" = field(default_factory=itertools.count)
    open_runs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        planner, store, registry = (self.databases[name] for name in FILLS)
        self.plan = SqlPlan(planner, now=utc_now)
        self.episodes = SqlPlannedEpisodes(planner, now=utc_now)
        self.submit = SubmitRun(self.plan, KnownModels(), new_id=self._new_id, wake=lambda: None)
        self.runs = Runs(self.plan, wake=lambda: None)
        self.explain = ExplainRun(self.plan, SilentPeers(), fleet=lambda: (0, 0))
        self.planner_references = FindReferences(self.plan)
        self.index, self.retention = SqlIndex(store), SqlRetention(store)
        self.export = ExportTrajectories(
            self.index, cast(ReadBody, empty_body), page_size=_PAGE, parallel_reads=8
        )
        self.models, self.gates = SqlModelStore(registry), SqlGateStore(registry)
        self.leases, self.references = SqlLeaseStore(registry), SqlReferences(registry)

    def _new_id(self, kind: str) -> str:
        return f"{kind}-{self.rng.getrandbits(48):012x}"

    def a_run(self) -> str:
        """Any that is over."""
        return run_name(self.rng.randrange(self.size.runs))

    @property
    def standing_run(self) -> str:
        """The one that goes on since long before."""
        return run_name(self.size.runs)

    def a_model(self) -> str:
        """Any."""
        return model_name(self.rng.randrange(self.size.models))


@asynccontextmanager
async def platform(urls: dict[str, str], size: Size) -> AsyncIterator[Platform]:
    """Tables made, filled and opened. urls: of an empty database for each service."""
    began, now = time.monotonic(), int(time.time())
    for service, fill in FILLS.items():
        made = MigratedDatabase(urls[service], service)
        await made.start()
        await made.stop()
        with filler(urls[service]) as sql:
            fill(Names(sql, size, now - 3600))
        print(f"filled {service} with {size} after {time.monotonic() - began:.0f} s", flush=True)
    databases: dict[str, Database] = {name: MigratedDatabase(urls[name], name) for name in FILLS}
    for database in databases.values():
        await database.start()
    try:
        yield Platform(size, databases, random.Random(4))
    finally:
        for database in databases.values():
            await database.stop()


def sqlite_urls(folder: Path) -> dict[str, str]:
    """A file each, where a service started with this data folder looks for it."""
    folder.mkdir(parents=True)
    return {name: f"sqlite:///{folder / name}.sqlite" for name in FILLS}
