"""Train while one thing after the other is broken and healed; then let the run end and audit it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

from tests.chaos.audit import BROKEN, Audit, audit_at_the_end
from tests.chaos.faults import Faults
from tests.chaos.runs import Runs
from tests.chaos.schedule import Planned

from service_kit.deadlines import DeadlineExceeded, deadline
from upcycle.api.taskset.v1.taskset_pb2 import RunSpec
from upcycle.platform import Addresses, Platform

RECOVERY_LIMIT_S: Final = 120.0
DRAIN_LIMIT_S: Final = 300.0


@dataclass(slots=True)
class Campaign:
    """One chaos run on a running stack. plan: what to break, without end. say: gets a line for each event."""

    faults: Faults
    plan: Iterator[Planned]
    spec: RunSpec
    say: Callable[[str], None]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Kinds of faults that this machine cannot do, with the reason."""
    wanted: Collection[str] = ()
    """Kinds that `plan` holds."""
    kills: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    not_recovered: list[str] = field(default_factory=list)

    async def run(self, duration_s: float) -> dict[str, Any]:
        """Break things for `duration_s` seconds while training, then drain; the line of `make chaos`."""
        stack = self.faults.stack
        where = Addresses(stack.peers, "chaos", operator_key_file=stack.operator_key_file)
        async with Platform(where) as platform:
            runs = Runs(platform, self.spec, self.say)
            watching = asyncio.create_task(runs.watch())
            try:
                await self._break(runs, watching, time.monotonic() + duration_s)
                runs.no_more = True
                await self._drain(runs, watching)
            finally:
                watching.cancel()
            result = await audit_at_the_end(platform, stack.bus, self.spec.policy.model, self.say)
        return self._line(result, runs)

    async def _break(self, runs: Runs, watching: asyncio.Task[None], until: float) -> None:
        async with asyncio.TaskGroup() as recovering:
            for planned in self.plan:
                await asyncio.sleep(planned.pause_s)
                if time.monotonic() > until or watching.done():
                    return
                await self._ready(planned)
                await self._one(planned, runs)
                healed = time.monotonic()
                if await self._settles(planned, runs):
                    recovering.create_task(self._recover(planned, healed))

    async def _one(self, planned: Planned, runs: Runs) -> None:
        fault = self.faults.make(planned)
        self.say(str(planned))
        self.injected[planned.kind] += 1
        if planned.kind == "kill":
            self.kills[planned.target] += 1
        try:
            await fault.inject()
            await asyncio.sleep(planned.hold_s)
        finally:
            await fault.heal()
        runs.begin_again()

    async def _settles(self, planned: Planned, runs: Runs) -> bool:
        """Whether the run settles another episode in time; nothing else is broken before."""
        settled = runs.settled
        return await self._in_time(f"an episode to be settled after {planned}", runs.beyond(settled))

    async def _recover(self, planned: Planned, healed: float) -> None:
        """Until what was hit is ready; meanwhile the next thing may be broken."""
        if await self._ready(planned):
            took = time.monotonic() - healed
            self.recovered_s.setdefault(planned.kind, []).append(took)
            self.say(f"fault {planned.number}: recovered {took:.1f} s after its end")

    async def _ready(self, planned: Planned) -> bool:
        """Whether the process that is hit, else every process, gets ready in time."""
        stack = self.faults.stack
        names = [process.name for process in stack.processes]
        hit = [name for name in names if name == planned.target.partition(">")[0]] or names
        ready = (stack.wait_ready(name, 2 * RECOVERY_LIMIT_S) for name in hit)
        return await self._in_time(f"all to be ready for or after {planned}", asyncio.gather(*ready))

    async def _in_time(self, what: str, happens: Awaitable[object]) -> bool:
        try:
            async with deadline(what, RECOVERY_LIMIT_S):
                await happens
        except DeadlineExceeded as error:
            self.not_recovered.append(str(error))
            self.say(str(error))
            return False
        return True

    async def _drain(self, runs: Runs, watching: asyncio.Task[None]) -> None:
        await asyncio.wait({watching}, timeout=DRAIN_LIMIT_S)
        if not watching.done():
            runs.hung.setdefault(runs.current, f"not over {DRAIN_LIMIT_S:g} s after the last fault")
        elif (error := watching.exception()) is not None:
            raise error

    def _line(self, result: Audit, runs: Runs) -> dict[str, Any]:
        recovered = {
            kind: {"p50": round(median(times), 2), "max": round(max(times), 2)}
            for kind, times in sorted(self.recovered_s.items())
        }
        return {
            "faults": dict(sorted(self.injected.items())),
            "skipped": dict(self.skipped),
            "not_reached": not_reached(self.wanted, self.injected),
            "kills": dict(self.kills),
            "broken_uploads": self.faults.stack.links.broken(),
            **asdict(result),
            "hung": len(runs.hung) + len(self.not_recovered),
            "hangs": [*runs.hung.values(), *self.not_recovered],
            "waited": dict(runs.waited),
            "paused": dict(runs.paused),
            "runs": dict(runs.finished),
            "recovered_s": recovered,
        }


def verdict(line: Mapping[str, Any]) -> bool:
    """Whether the platform kept its promises, and each run that the campaign submitted was completed."""
    return not any(line[what] for what in (*BROKEN, "hung")) and set(line["runs"]) == {"completed"}


def not_reached(wanted: Collection[str], injected: Mapping[str, int]) -> list[str]:
    """Kinds for which the campaign was too short."""
    return sorted(kind for kind in wanted if not injected.get(kind))
