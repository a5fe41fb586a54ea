"""One history: a run from its submission to its end, under the faults that the seed chose.

It has two parts, as TigerBeetle's histories have: first faults, in which nothing wrong may happen; then
calm, in which the run must end. Promises are looked at after each commit and each stored message.
"""

import asyncio
import logging
import random
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch

from tests.simulation import services, stubs
from tests.simulation.before import AnyPolicy, base_policy, tasksets
from tests.simulation.bus import DecodedOnce
from tests.simulation.invariants import Broken, PromiseWatch
from tests.simulation.nats_server import SimulatedServer, StoredMessage
from tests.simulation.network import SimulatedNetwork, Weather
from tests.simulation.plans import FAULTS_S, FOR_GOOD, Fault, Plan
from tests.simulation.registry import REGISTRY_DB, HeadWatch, import_model, registry
from tests.simulation.rpc import SimulatedPeers
from tests.simulation.services import Infrastructure
from tests.simulation.storage import SimulatedDatabase, turn
from tests.simulation.virtual_time import (
    NothingLeft,
    SimulatedProcess,
    VirtualLoop,
    run_virtually,
    running_process,
)

from event_bus.topology import CHECKPOINT_REGISTRY, EVENTS, UPCYCLE
from grpo_trainer.domain.states import BasePolicy
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain.runs import FINAL_RUN_STATES
from scenario_runner.usecases import revisions
from scenario_runner.usecases.submitting import Runs, SubmitRun, TraceContext
from upcycle.retrying import retry

T = TypeVar("T")
_CALM_S: Final = 450.0
"""What a run gets to end once nothing fails any more: longer than every deadline of the platform."""
_REMEMBERS_S: Final = 60.0
"""How long a stream knows the id of a message: a tenth of production, so that more comes twice, and a run
that waits until it may repeat something waits for less."""
_POLLS_S: Final = {
    "scenario_runner.loops.SWEEP_S": 4.0,
    "scenario_runner.loops.PLAN_S": 4.0,
    "scenario_runner.loops.HOUSEKEEPING_S": 2.0,
}
"""Seconds between two looks of the planner, which looks every second in production: that costs, and finds
nothing that this does not."""
_AFTERWARDS_S: Final = 1.0
"""Between two events that were planned for a time at which the run is over: they need not wait for it."""
_BUGS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Errors that no fault of a history may cause."""
_STARTS: Final = {**services.STARTS, services.REGISTRY: registry}
PLANNER_DB, STORE_DB = "scenario_runner", "trajectory_store"


@dataclass(slots=True)
class Verdict:
    """How a history ended. broken: the promise that did not hold; empty where all did."""

    seed: int
    broken: str = ""
    run_ended: str = ""
    cpu_s: float = 0.0
    num_callbacks: int = 0
    trace: list[str] = field(default_factory=list)


class Simulation:
    """Plays histories one after the other; tables and statements are made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._objects, self._head = base_policy(folder)
        self._databases = {name: SimulatedDatabase(name) for name in (PLANNER_DB, STORE_DB, REGISTRY_DB)}
        for database in self._databases.values():
            database.prepare(self._fill)

    async def _fill(self, database: SimulatedDatabase) -> None:
        if database is self._databases[REGISTRY_DB]:
            await import_model(database, services.MODEL, self._head)

    def play(self, plan: Plan, *, traced: bool = False) -> Verdict:
        """The verdict about one history."""
        began = time.process_time()
        history = _History(plan, traced=traced)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            history.prepare(self._databases, dict(self._objects), self._head, Path(folder))
            verdict = history.verdict()
        verdict.cpu_s = time.process_time() - began
        return verdict


class _History:
    def __init__(self, plan: Plan, *, traced: bool) -> None:
        self._plan = plan
        self._trace: list[str] | None = [] if traced else None
        self._rng = random.Random(f"history {plan.seed}")
        self._loop = VirtualLoop(self._rng, self._on_crash)
        self._network = SimulatedNetwork(self._loop, self._rng, plan.weather)
        self._luck = stubs.Luck(
            random.Random(f"luck {plan.seed}"),
            plan.opening_fails,
            plan.playing_fails,
            plan.grading_fails,
            plan.learning_fails,
        )
        self._losses = random.Random(f"losses {plan.seed}")
        self._lives: dict[tuple[str, int], SimulatedProcess] = {}
        self._run_id = ""
        self._is_over = asyncio.Event()
        self._is_calm = False

    def prepare(
        self,
        databases: dict[str, SimulatedDatabase],
        objects: dict[str, bytes],
        head: BasePolicy,
        folder: Path,
    ) -> None:
        """Empty tables, an empty stream, and one policy in the object store."""
        without = () if services.REGISTRY in self._plan.replicas else (CHECKPOINT_REGISTRY,)
        self._given = Infrastructure(
            loop=self._loop,
            rng=self._rng,
            network=self._network,
            server=SimulatedServer(
                self._loop, UPCYCLE, [services.MODEL], without=without, remembers_s=_REMEMBERS_S
            ),
            peers=SimulatedPeers(self._loop, self._network),
            databases=databases,
            objects=objects,
            luck=self._luck,
            head=head,
            folder=folder,
            wake_planner=[],
        )
        self._watch = PromiseWatch(self._given, self._say)
        self._given.server.on_stored = self._watch.on_stored
        self._given.server.loses = self._is_lost
        interleaved = self._loop if self._plan.interleaved else None
        databases[PLANNER_DB].begin_history(self._network, self._watch.on_planned, interleaved)
        databases[STORE_DB].begin_history(self._network, self._watch.on_counted, interleaved)
        self._head_watch = HeadWatch(self._given, self._watch)
        databases[REGISTRY_DB].begin_history(self._network, self._head_watch.on_committed, interleaved)

    def verdict(self) -> Verdict:
        """Play it."""
        verdict = Verdict(self._plan.seed)
        self._loop.set_exception_handler(self._on_unhandled)
        with ExitStack() as patches:
            logs = [_ServiceLogs(self._loop, self._say)]
            patches.enter_context(patch.object(logging.getLogger(), "handlers", logs))
            patches.enter_context(patch("time.monotonic", self._loop.time))
            for name, seconds in _POLLS_S.items():
                patches.enter_context(patch(name, seconds))
            for module in ("sql_plan", "planned_episodes"):
                patches.enter_context(patch(f"scenario_runner.adapters.{module}.take_turn", turn))
            patches.enter_context(patch("event_bus.codec._parsed", DecodedOnce()))
            patches.enter_context(
                patch("rollout_sampler.usecases.play_episode.EpisodePlayer", stubs.StubPlayer)
            )
            patches.enter_context(patch("environment_client.client.connect", self._given.peers.channel))
            try:
                verdict.run_ended = run_virtually(self._loop, self._play())
            except Broken as broken:
                verdict.broken = str(broken)
            except NothingLeft:
                verdict.broken = "HUNG: no task waits for anything that will come"
        verdict.num_callbacks = self._loop.num_callbacks
        verdict.trace = self._trace or []
        return verdict

    async def _play(self) -> str:
        for name, count in self._plan.replicas.items():
            for replica in range(count):
                self._start(name, replica, 1)
        await self._submit()
        events = asyncio.create_task(self._events())
        await self._end_of_run(FAULTS_S)
        self._is_over.set()
        await events
        self._calm()
        ended = await self._end_of_run(_CALM_S)
        if not ended:
            raise Broken("HUNG", self._watch.describe(self._run_id))
        await self._gate_decided(ended)
        await self._everything_delivered()
        self._watch.at_the_end()
        return ended

    async def _submit(self) -> None:
        """As a client does, which asks again until it is answered."""
        plan = SqlPlan(self._given.databases[PLANNER_DB], now=self._given.now)
        submit = SubmitRun(plan, AnyPolicy(), new_id=self._given.new_id, wake=self._wake_planner)
        self._runs = Runs(plan, wake=self._wake_planner)
        for taskset in tasksets(self._plan.num_tasks):
            store = partial(revisions.store, taskset=taskset)
            await _repeated(partial(plan.transact, store))
        view = await _repeated(lambda: submit("request", self._plan.spec, TraceContext("", {})))
        self._run_id = view.run.run_id

    def _wake_planner(self) -> None:
        for wake in self._given.wake_planner:
            wake()

    async def _events(self) -> None:
        """Everything that befalls the run and its processes, at its moment."""
        due: list[tuple[float, Callable[[], Awaitable[object]]]] = [
            (fault.at_s, lambda fault=fault: self._befall(fault))  # type: ignore[misc]
            for fault in self._plan.faults
        ]
        if self._plan.cancel_at_s is not None:
            due.append((self._plan.cancel_at_s, lambda: self._runs.cancel(self._run_id, "by a person")))
        if self._plan.stop_at_s is not None:
            due.append((self._plan.stop_at_s, lambda: self._runs.stop(self._run_id, "by a person")))
        for at_s, act in sorted(due, key=lambda one: one[0]):
            await self._until(at_s)
            await _repeated(act)

    async def _until(self, at_s: float) -> None:
        """A moment; once the run is over, soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(at_s):
                await self._is_over.wait()
                await asyncio.sleep(_AFTERWARDS_S)

    async def _befall(self, fault: Fault) -> None:
        process = self._lives[fault.service, fault.replica]
        self._say(f"{fault.what} {fault.server} for {fault.lasts_s:g} s", process.name)
        if fault.what == "crash":
            process.steps_to_crash, process.down_s = fault.steps, fault.lasts_s
        elif fault.what == "forget":
            self._forget_behind_trainers(fault.lasts_s)
        elif fault.what == "freeze":
            process.is_frozen = True
            self._loop.later(fault.lasts_s, self._loop.wake, process)
        else:
            link = f"{fault.service}/{fault.replica}"
            self._network.cut(link, fault.server)
            self._loop.later(fault.lasts_s, self._network.heal, link, fault.server)

    def _forget_behind_trainers(self, down_s: float) -> None:
        """All trainers crash; before they are back, the stream removes all that was acknowledged, as a stream
        does at its bounds. They have not read it."""
        for process in [one for one in self._lives.values() if one.service == services.TRAINER]:
            if not process.is_dead:
                process.down_s = down_s
                self._on_crash(process)
        self._loop.later(down_s, self._given.server.forget, EVENTS)

    def _calm(self) -> None:
        """From now on nothing fails."""
        self._say("calm", "")
        self._is_calm = True
        self._network.weather = Weather()
        self._network.heal_all()
        self._luck.be_kind()
        for process in self._lives.values():
            process.steps_to_crash = None
            if process.is_frozen:
                self._loop.wake(process)

    async def _end_of_run(self, within_s: float) -> str:
        """The final state of the run; empty where it has none by then."""
        until = self._loop.time() + within_s
        while self._loop.time() < until:
            if (state := self._watch.state_of(self._run_id)) in FINAL_RUN_STATES:
                return state
            if state == "paused" and self._is_calm:  # too much failed: a person sees that it no longer does
                await _repeated(lambda: self._runs.resume(self._run_id))
            self._restart_the_dead()
            await asyncio.sleep(0.5)
        return ""

    async def _gate_decided(self, ended: str) -> None:
        """A run that was trained has a checkpoint, and every candidate is promoted or held. Raises Broken."""
        until = self._loop.time() + _CALM_S
        while self._plan.spec.gate is not None and (undecided := self._head_watch.undecided(ended)):
            if self._loop.time() > until:
                raise Broken("HUNG", f"the gate has not decided: {undecided}")
            self._restart_the_dead()
            await asyncio.sleep(1.0)

    async def _everything_delivered(self) -> None:
        until = self._loop.time() + _CALM_S
        while self._loop.time() < until and self._watch.difference() is not None:
            self._restart_the_dead()
            await asyncio.sleep(1.0)

    def _start(self, name: str, replica: int, life: int) -> None:
        process = SimulatedProcess(name, replica, life)
        self._lives[name, replica] = process
        self._say("starts", process.name)
        starting = self._loop.spawn(process, _STARTS[name](self._given, process))
        starting.add_done_callback(lambda done: _note_failed_start(process, done))

    def _on_crash(self, process: SimulatedProcess) -> None:
        self._say("crashed", process.name)
        process.is_dead = True
        down_s = min(process.down_s, 0.5) if self._is_calm else process.down_s
        if process.down_s != FOR_GOOD:
            self._loop.later(down_s, self._start, process.service, process.replica, process.life + 1)

    def _is_lost(self, message: StoredMessage, stream: str) -> bool:
        """The stream of facts loses ends of groups; what was decided stands."""
        share = self._network.weather.forgotten
        if stream != EVENTS or ".group.settled." not in message.subject or self._losses.random() >= share:
            return False
        self._say(f"stream {message.sequence} is lost", "")
        return True

    def _restart_the_dead(self) -> None:
        """A process of which a worker ended exits; the machine starts it again."""
        for process in list(self._lives.values()):
            if process.died_of is not None and not process.is_dead:
                if isinstance(process.died_of, _BUGS):
                    raise Broken("BUG", f"{process.name}: {process.died_of!r}")
                self._say(f"died of {process.died_of!r}", process.name)
                self._on_crash(process)

    def _on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "".join(traceback.format_exception(error)[-3:]) if error is not None else ""
        self._say(f"unhandled: {context['message']} {where}", "")

    def _say(self, what: str, who: str) -> None:
        if self._trace is not None:
            self._trace.append(f"{self._loop.time():9.3f}  {who:<16} {what}")


async def _repeated(ask: Callable[[], Awaitable[T]]) -> T:
    return await retry(ask, budget_s=_CALM_S)


def _note_failed_start(process: SimulatedProcess, starting: asyncio.Task[None]) -> None:
    if not starting.cancelled() and starting.exception() is not None:
        process.died_of = starting.exception()


class _ServiceLogs(logging.Handler):
    """What the services log is part of the trace. A bug that a service survives ends the history."""

    def __init__(self, loop: VirtualLoop, say: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self._loop = loop
        self._say = say
        self._usual = set(vars(logging.makeLogRecord({}))) | {"message"}

    def emit(self, record: logging.LogRecord) -> None:
        if self._loop.is_over:
            return
        extra = {name: value for name, value in vars(record).items() if name not in self._usual}
        error = record.exc_info[1] if record.exc_info else None
        process = running_process()
        who = process.name if process else ""
        self._say(
            f"{record.getMessage()} {extra} {error!r}" if error else f"{record.getMessage()} {extra}", who
        )
        if isinstance(error, _BUGS):
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._loop.failure = Broken(
                "BUG", f"{who}: {error!r} in {Path(where.filename).name}:{where.lineno}"
            )
