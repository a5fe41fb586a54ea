"""A fleet of environments over real forked processes."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from blob_store import BlobRef, MemoryBlobStore
from identities.entities import trajectory_id
from scenario_runner.adapters.cell import CellRules
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.stored_transcripts import ScenarioTranscripts
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.domain.environments import EpisodeTimeouts, EpisodeToPlay, Opened, PythonEnvironment
from scenario_runner.usecases.leases import LeaseRules, Leases
from trajectory_body import pack
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody, Turn

ENVIRONMENTS = Path(__file__).parent / "environments"
TIMEOUTS = EpisodeTimeouts(start_s=30.0, tool_s=30.0, grade_s=30.0, tool_result_bytes=4096)
"""A paused machine exceeds none; `Fleet.hasty` is for what never answers."""
HOSTILE = PythonEnvironment("hostile", str(ENVIRONMENTS / "hostile.py"))
ARITH = PythonEnvironment("arith", str(ENVIRONMENTS / "arith.py"))

Open = Callable[..., Any]


class OpenEpisodes:
    """Implements ports.PlannedEpisodes with the episodes of a test."""

    def __init__(self) -> None:
        self.rows: dict[str, EpisodeToPlay] = {}

    async def to_play(self, episode_id: str) -> EpisodeToPlay:
        return self.rows[episode_id]

    async def opened(self, episode_ids: Sequence[str]) -> None:
        raise AssertionError("not asked in these tests")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


class Fleet:
    """Leases over real processes."""

    def __init__(self, hosts: Hosts, capacity: int, sources: SourceStore) -> None:
        self.hosts = hosts
        self.sources = sources
        self.episodes = OpenEpisodes()
        self.store = MemoryBlobStore()
        self.played: dict[str, str] = {}
        self.clock = Clock()
        self._ids = iter(range(10_000))
        self.leases = Leases(
            hosts,
            self.episodes,
            ScenarioTranscripts(self.store),
            LeaseRules(capacity, 60.0),
            now=self.clock,
            new_id=lambda prefix: f"{prefix}-{next(self._ids)}",
        )

    async def open(
        self,
        scenario: str = "fine",
        args: str = "{}",
        *,
        source: Any = HOSTILE,
        episode: str = "",
        digest: str = "",
        deadline_s: float = 0.0,
    ) -> Opened:
        """With the default deadline the lease lasts its 60 s."""
        episode = episode or f"episode-{next(self._ids)}"
        deadline = self.clock.now + timedelta(seconds=deadline_s)
        self.episodes.rows[episode] = EpisodeToPlay(
            episode, source, scenario, args, deadline, source_digest=digest
        )
        opened = await self.leases.open(episode)
        self.played[opened.lease_id] = episode
        return opened

    async def call(
        self, opened: Opened, name: str, args: str = "{}", call_id: str = "", limit_s: float | None = None
    ) -> Any:
        call_id = call_id or f"call-{next(self._ids)}"
        return await self.leases.call_tool(opened.lease_id, call_id, name, args, limit_s=limit_s)

    async def grade(self, opened: Opened, answer: str = "x", *turns: Turn) -> Any:
        """Grade the trajectory that the sampler stored."""
        return await self.leases.grade(opened.lease_id, await self.stored(opened, answer, *turns))

    async def stored(self, opened: Opened, answer: str = "x", *turns: Turn, episode: str = "") -> BlobRef:
        episode = episode or self.played[opened.lease_id]
        identity = EpisodeIdentity(episode_id=episode, trajectory_id=trajectory_id(episode))
        body = TrajectoryBody(episode=identity, answer=answer, turns=turns)
        return await self.store.put(f"bodies/{episode}", pack(body))

    @contextmanager
    def hasty(self, **timeouts: float) -> Iterator[None]:
        """What is opened within has these timeouts."""
        usual = self.hosts.forked._timeouts
        self.hosts.forked._timeouts = replace(usual, **timeouts)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self.hosts.forked._timeouts = usual

    async def works(self) -> bool:
        """A well-behaved episode from prompt to reward."""
        opened = await self.open("sum", '{"a": 1, "b": 2}', source=ARITH)
        return bool((await self.grade(opened, "3")).reward == 1.0)


@asynccontextmanager
async def running_fleet(*shared: Path) -> AsyncIterator[Fleet]:
    """Eight environments at most; all are closed at the end. shared: folders that they may write."""
    limits, cell = Limits(address_space_bytes=1 << 30), CellRules(folders=tuple(map(str, shared)))
    options = ZygoteOptions(limits, 64, start_timeout_s=30, fork_timeout_s=30, cell=cell)
    sources = SourceStore(MemoryBlobStore())
    forked = ForkedHost(options, TIMEOUTS, find_source=sources.find)
    running = Fleet(Hosts(forked, TcpHost(TIMEOUTS)), capacity=8, sources=sources)
    yield running
    await running.leases.close_all()
    await running.hosts.stop()
