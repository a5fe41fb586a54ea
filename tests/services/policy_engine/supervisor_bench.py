"""An engine supervisor over doubles."""

import asyncio

from tests.services.policy_engine.doubles import HostDouble, PlatformDouble
from tests.support.waiting import until

from engine_client import EngineState
from policy_engine.domain import LeaseFacts, PinRequests
from policy_engine.ports import PolicyStore
from policy_engine.usecases.pins import PinDeps, PinnedPolicies
from policy_engine.usecases.reload import ReloadProtocol
from policy_engine.usecases.supervisor import EngineSupervisor, SupervisorDeps, SupervisorTimings


class SupervisorBench:
    """An engine supervisor over doubles, with short waits."""

    def __init__(
        self,
        *,
        max_held: int = 2,
        refused_s: float = 0.01,
        prove_s: float = 60.0,
        store: PolicyStore | None = None,
    ) -> None:
        """prove_s: between two proofs of what serves. store: where versions are fetched from; the platform's
        double by default."""
        self.host, self.platform, self.requests = HostDouble(), PlatformDouble(), PinRequests()
        clock = asyncio.get_running_loop().time
        protocol = ReloadProtocol(self.host, "m", recompute_running=False, clock=clock)
        platform = self.platform
        deps = PinDeps(store or platform, platform, platform)
        pins = PinnedPolicies("m", self.requests, deps, protocol, max_held=max_held)
        supervisor_deps = SupervisorDeps(self.host, store or platform, platform, platform, platform, clock)
        timings = SupervisorTimings(
            poll_s=0.02, prove_s=prove_s, retry_s=0.01, refused_s=refused_s, max_refused_s=60.0
        )
        self.supervisor = EngineSupervisor(supervisor_deps, protocol, pins, timings)
        self.states: list[EngineState] = []
        self.while_starting: list[LeaseFacts] = []
        """What the lease said when its state was `starting`."""
        self.supervisor.on_change(self._note)
        self._stop = asyncio.Event()

    def _note(self) -> None:
        facts = self.supervisor.facts()
        if facts is None:
            return
        if facts.state is EngineState.STARTING:
            self.while_starting.append(facts)
        if not self.states or self.states[-1] is not facts.state:
            self.states.append(facts.state)

    async def __aenter__(self) -> "SupervisorBench":
        self._task = asyncio.create_task(self.supervisor.run(self._stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.wait_for(self._task, 60)

    async def until(self, fact: str) -> None:
        await until(lambda: fact in self.platform.facts, f"{fact!r} to be published")

    async def rounds(self, number: int) -> None:
        """So many more looks at what the channel wants."""
        wanted = self.platform.looks + number
        await until(lambda: self.platform.looks >= wanted, f"{number} more rounds")

    def facts(self) -> LeaseFacts:
        found = self.supervisor.facts()
        assert found is not None
        return found

    def version(self) -> int:
        serving = self.facts().serving
        assert serving is not None
        return serving.version
