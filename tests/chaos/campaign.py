"""Train while a random process is killed with -9 every few seconds; then let the run end and audit it."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.audit import Audit, audit

from event_bus import EventBus
from local_stack.stack import Stack
from service_kit.deadlines import deadline
from upcycle.api.registry.v1.service_pb2 import GetModelRequest
from upcycle.api.taskset.v1.taskset_pb2 import RunSpec
from upcycle.platform import Addresses, Platform
from upcycle.run_client import is_over, submit_run

PAUSE_S = (2.0, 6.0)
RECOVERY_LIMIT_S = 60.0
DRAIN_LIMIT_S = 300.0
SETTLE_LIMIT_S = 60.0


@dataclass(slots=True)
class Campaign:
    """One chaos run on a running stack. `victims`: names of processes that may be killed."""

    stack: Stack
    spec: RunSpec
    victims: Sequence[str]
    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    recovered_s: list[float] = field(default_factory=list)

    async def run(self, duration_s: float) -> dict[str, Any]:
        """Kill for `duration_s` seconds while training, then drain; the line that `make chaos` prints."""
        addresses = Addresses(self.stack.peers, "chaos", self.stack.gateway_key_file)
        async with Platform(addresses) as platform:
            run_id = (await submit_run(platform, self.spec)).run_id
            until = time.monotonic() + duration_s
            while time.monotonic() < until:
                await asyncio.sleep(self.rng.uniform(*PAUSE_S))
                await self._kill_one()
                if await self._is_over(platform, run_id):
                    run_id = (await submit_run(platform, self.spec)).run_id
            async with deadline("the runs to end after the last kill", DRAIN_LIMIT_S):
                while not await self._is_over(platform, run_id):
                    await asyncio.sleep(0.5)
            result = await self._audit(platform)
        return self._line(result)

    async def _kill_one(self) -> None:
        victim = self.rng.choice(self.victims)
        began = time.monotonic()
        await self.stack.kill(victim)
        self.kills[victim] += 1
        await self.stack.wait_ready(victim, timeout_s=RECOVERY_LIMIT_S)
        self.recovered_s.append(time.monotonic() - began)

    async def _is_over(self, platform: Platform, run_id: str) -> bool:
        from upcycle.api.taskset.v1.service_pb2 import GetRunRequest

        async with deadline(f"scenario_runner to answer for {run_id}", RECOVERY_LIMIT_S):
            request = GetRunRequest(run_id=run_id)
            run = (await _patiently(lambda: platform.tasksets.GetRun(request, timeout=5))).run
        return is_over(run)

    async def _audit(self, platform: Platform) -> Audit:
        base = await platform.registry.GetModel(GetModelRequest(model=self.spec.policy.model), timeout=10)
        bus = EventBus(self.stack.bus, client_name="chaos")
        await bus.start()
        try:
            until = time.monotonic() + SETTLE_LIMIT_S
            while True:
                result = await audit(platform, bus, base.base.digest)
                if result.in_flight == 0 or time.monotonic() > until:
                    return result
                await asyncio.sleep(1.0)
        finally:
            await bus.stop()

    def _line(self, result: Audit) -> dict[str, Any]:
        times = sorted(self.recovered_s)
        recovered = {"p50": round(times[len(times) // 2], 2), "max": round(times[-1], 2)} if times else {}
        return {"kills": dict(self.kills), **asdict(result), "recovered_s": recovered}


async def _patiently(call: Any) -> Any:
    """Repeat while the service is away; the caller's deadline ends it."""
    import grpc

    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            await asyncio.sleep(0.3)


def verdict(line: dict[str, Any]) -> bool:
    """Whether the platform kept its promises."""
    return not (line["lost"] or line["trained_twice"] or line["stale_served"] or line["in_flight"])
