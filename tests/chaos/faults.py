"""The faults: each is injected, lasts, and is healed. `heal` works also when `inject` failed half-way."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from tests.chaos.garbage import GarbageEngine
from tests.chaos.machine import WITH_DISK, Clocks, FullDisk, JumpedClock
from tests.chaos.procfs import family
from tests.chaos.proxy import LinkMode
from tests.chaos.replicated import DATABASES, INFRASTRUCTURE, ReplicatedStack, service_of
from tests.chaos.schedule import Planned
from tests.platform_recipes import MODEL
from tests.postgres import PostgresServer

_BACK_S: Final = 240.0
_SLOW_S: Final = (0.02, 0.5)
_UPLOAD_BYTES: Final = (100_000, 4_000_000)


class Fault(Protocol):
    """What is done to the platform, and how it ends."""

    async def inject(self) -> None:
        """Begin."""

    async def heal(self) -> None:
        """End."""


@dataclass(slots=True)
class Killed:
    """kill -9; the supervisor starts the process again."""

    stack: ReplicatedStack
    target: str

    async def inject(self) -> None:
        await self.stack.kill(self.target)

    async def heal(self) -> None:
        """The supervisor does it."""


@dataclass(slots=True)
class Frozen:
    """SIGSTOP to a process and all of its children, as a paused machine; then SIGCONT."""

    stack: ReplicatedStack
    target: str
    frozen: list[int] = field(default_factory=list)

    async def inject(self) -> None:
        self.frozen = family(self.stack.process(self.target).pid)
        self._signal(signal.SIGSTOP)

    async def heal(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> None:
        for pid in self.frozen:
            with suppress(ProcessLookupError):  # it ended, or was killed while it could not move
                os.kill(pid, what)


@dataclass(slots=True)
class RollingRestart:
    """Every process is stopped gracefully and started again: servers one by one, then the first replica of
    every service, then the second."""

    stack: ReplicatedStack

    async def inject(self) -> None:
        names = [process.name for process in self.stack.processes]
        servers = [name for name in names if name.startswith(INFRASTRUCTURE)]
        for name in servers:
            await self._restart(name)
        services = [name for name in names if name not in servers]
        for wave in (
            [n for n in services if not n.endswith("-2")],
            [n for n in services if n.endswith("-2")],
        ):
            async with asyncio.TaskGroup() as together:
                for name in wave:
                    together.create_task(self._restart(name))

    async def heal(self) -> None:
        """Nothing is left to do."""

    async def _restart(self, name: str) -> None:
        await self.stack.stop(name)
        await self.stack.start(name, timeout_s=_BACK_S)


@dataclass(slots=True)
class BadLink:
    """One process and one thing that it talks to: cut, silent, slow, or without whole uploads."""

    stack: ReplicatedStack
    target: str
    mode: LinkMode
    draw: float

    async def inject(self) -> None:
        process, dependency = self.target.split(">")
        for link in self.stack.links.of(process, dependency):
            link.set(
                self.mode,
                delay_s=_between(self.draw, *_SLOW_S),
                after_bytes=int(_between(self.draw, *_UPLOAD_BYTES)),
            )

    async def heal(self) -> None:
        process, dependency = self.target.split(">")
        for link in self.stack.links.of(process, dependency):
            link.set(LinkMode.OPEN)


@dataclass(slots=True)
class StoppedServer:
    """One NATS server of three is killed and stays away."""

    stack: ReplicatedStack
    target: str

    async def inject(self) -> None:
        await self.stack.kill(self.target)
        await self.stack.stop(self.target)

    async def heal(self) -> None:
        await self.stack.start(self.target, timeout_s=_BACK_S)


@dataclass(slots=True)
class StoppedPostgres:
    """The one Postgres of all services crashes and comes back."""

    server: PostgresServer

    async def inject(self) -> None:
        await asyncio.to_thread(self.server.stop)

    async def heal(self) -> None:
        await asyncio.to_thread(self.server.start)


def _between(draw: float, low: float, high: float) -> float:
    return low + draw * (high - low)


@dataclass(frozen=True, slots=True)
class Faults:
    """Makes faults of what was planned, and says what can be broken here."""

    stack: ReplicatedStack
    postgres: PostgresServer | None
    clocks: Clocks

    def make(self, planned: Planned) -> Fault:
        """The fault of one kind on its target."""
        target, draw, stack = planned.target, planned.draw, self.stack
        made: Mapping[str, Callable[[], Fault]] = {
            "kill": lambda: Killed(stack, target),
            "freeze": lambda: Frozen(stack, target),
            "rolling_restart": lambda: RollingRestart(stack),
            "cut": lambda: BadLink(stack, target, LinkMode.CUT, draw),
            "silence": lambda: BadLink(stack, target, LinkMode.SILENT, draw),
            "slow": lambda: BadLink(stack, target, LinkMode.SLOW, draw),
            "broken_upload": lambda: BadLink(stack, target, LinkMode.BREAKS_UPLOADS, draw),
            "nats_loss": lambda: StoppedServer(stack, target),
            "postgres_restart": self._stopped_postgres,
            "garbage_engine": lambda: GarbageEngine(stack.peers["registry"], stack.service_key, MODEL, draw),
            "disk_full": lambda: FullDisk(stack.homes[target]),
            "clock_jump": lambda: JumpedClock(self.clocks, target, draw),
        }
        return made[planned.kind]()

    def _stopped_postgres(self) -> Fault:
        if self.postgres is None:
            raise ValueError("postgres_restart needs BACKEND=postgres")
        return StoppedPostgres(self.postgres)


def clocked(processes: Sequence[str]) -> list[str]:
    """Those whose clock may jump: of each service the last replica."""
    last = {service_of(name): name for name in processes}
    return [last[service] for service in sorted(last) if not service.startswith("policy_engine")]


def _depends_on(process: str, with_postgres: bool) -> list[str]:
    """What a cut of makes a difference."""
    service = service_of(process)
    s3 = [] if service == "provision_watch" else ["s3"]
    registry = [] if service in ("checkpoint_registry", "reward_grader", "trajectory_store") else ["registry"]
    return ["nats", *s3, *registry, *(["postgres"] if with_postgres and service in DATABASES else [])]


def skipped(stack: ReplicatedStack, clocks: Clocks) -> dict[str, str]:
    """Kinds that this machine cannot do, with the reason."""
    found = {"disk_full": stack.disks.why_not(), "clock_jump": clocks.why_not()}
    return {kind: why for kind, why in found.items() if why is not None}


def targets(stack: ReplicatedStack, *, with_postgres: bool) -> dict[str, list[str]]:
    """What each kind may hit; the same for each start of the same arrangement."""
    names = [process.name for process in stack.processes]
    services = [name for name in names if not name.startswith(INFRASTRUCTURE)]
    links = [f"{name}>{each}" for name in services for each in _depends_on(name, with_postgres)]
    servers = [name for name in names if name.startswith("nats-")]
    uploads = [f"{name}>s3" for name in services if name.startswith(("grpo_trainer", "rollout_sampler"))]
    found = {
        "kill": names,
        "freeze": services,
        "rolling_restart": ["everything"],
        "cut": links,
        "silence": links,
        "slow": links,
        "broken_upload": uploads,
        "nats_loss": servers,
        "postgres_restart": ["postgres"] if with_postgres else [],
        "garbage_engine": ["latest"],
        "disk_full": [name for name in services if service_of(name) in WITH_DISK],
        "clock_jump": clocked(services),
    }
    return {kind: hit for kind, hit in found.items() if hit}
