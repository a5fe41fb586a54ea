"""One history: runs from their submission to their end, under the faults that the seed chose.

It has two parts, as TigerBeetle's histories have: first faults, in which nothing wrong may happen; then
calm, in which each run must end. Promises are looked at after each commit and each stored message.
"""

import asyncio
import logging
import random
import tempfile
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.simulation import services, stubs
from tests.simulation.before import base_policies, tasksets
from tests.simulation.bus import DecodedOnce
from tests.simulation.clients import CLIENT_RETRIES_S, Client, repeated
from tests.simulation.engines import SimulatedLeasedEngines, behind, engine
from tests.simulation.invariants import Broken, PromiseWatch, kind_of
from tests.simulation.moments import Moments
from tests.simulation.nats_server import SimulatedServer, StoredMessage
from tests.simulation.network import SimulatedNetwork, Weather
from tests.simulation.plans import FAULTS_S, FOR_GOOD, Fault, Plan
from tests.simulation.registry import REGISTRY_DB, HeadWatch, import_model, registry
from tests.simulation.rpc import SimulatedPeers
from tests.simulation.service_logs import BUGS, ServiceLogs, unmeasured
from tests.simulation.services import PLANNER_DB, STORE_DB, Infrastructure
from tests.simulation.storage import SimulatedDatabase, turn
from tests.simulation.virtual_time import NothingLeft, SimulatedProcess, VirtualLoop, run_virtually

from event_bus.topology import CHECKPOINT_REGISTRY, EVENTS, UPCYCLE
from grpo_trainer.domain.states import BasePolicy
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain.runs import FINAL_RUN_STATES
from scenario_runner.usecases import revisions

_CALM_S: Final = CLIENT_RETRIES_S
"""What a run gets to end once nothing fails any more, and the run before it is over."""
_REMEMBERS_S: Final = 60.0
"""How long a stream knows the id of a message: a tenth of production, so that more comes twice, and a run
that waits until it may repeat something waits for less."""
_POLLS_S: Final = {
    "scenario_runner.loops.SWEEP_S": 4.0,
    "scenario_runner.loops.PLAN_S": 4.0,
    "scenario_runner.loops.HOUSEKEEPING_S": 2.0,
    "checkpoint_registry.loops.LOST_FACTS_S": 20.0,
    "event_bus.faststream_ext.held._LOOK_EVERY_S": 2.0,
}
"""Seconds between two looks, which come two to four times as often in production: that costs, and finds
nothing that this does not."""
_COUNTED_AT_ONCE: Final = (4096, 3)
"""Episodes of a run that are counted in the transaction that ends it: every other history has large runs."""
_MAY_BE_LOST: Final = (
    *("group.settled", "step.completed", "session.failed", "run.stopping", "run.finished"),
    *("policy.published", "checkpoint.saved"),
)
"""Facts that the planner, or who decided them, tells again, or that are asked for, or looked up in the object
store."""
_AFTERWARDS_S: Final = 1.0
"""Between two events that were planned for a time at which the run is over: they need not wait for it."""
_STARTS: Final = {**services.STARTS, services.REGISTRY: registry, services.ENGINE: engine}


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
        self._objects, self._heads = base_policies(folder)
        self._databases = {name: SimulatedDatabase(name) for name in (PLANNER_DB, STORE_DB, REGISTRY_DB)}
        for database in self._databases.values():
            database.prepare(self._fill)

    async def _fill(self, database: SimulatedDatabase) -> None:
        if database is self._databases[REGISTRY_DB]:
            for model, head in self._heads.items():
                await import_model(database, model, head, self._objects)

    def play(self, plan: Plan, *, traced: bool = False) -> Verdict:
        """The verdict about one history."""
        began = time.process_time()
        history = _History(plan, traced=traced)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            history.prepare(self._databases, dict(self._objects), self._heads, Path(folder))
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
            plan.engines_fail,
        )
        self._losses = random.Random(f"losses {plan.seed}")
        self._lives: dict[tuple[str, int], SimulatedProcess] = {}
        self._moments = Moments(self._loop)
        self._clients: list[Client] = []
        self._is_over = asyncio.Event()
        self._is_calm = False

    def prepare(
        self,
        databases: dict[str, SimulatedDatabase],
        objects: dict[str, bytes],
        heads: dict[str, BasePolicy],
        folder: Path,
    ) -> None:
        """Empty tables, an empty stream, and one policy of each model in the object store."""
        has_registry, models = services.REGISTRY in self._plan.replicas, self._plan.models
        without = () if has_registry else (CHECKPOINT_REGISTRY,)
        self._given = Infrastructure(
            loop=self._loop,
            rng=self._rng,
            network=self._network,
            server=SimulatedServer(self._loop, UPCYCLE, models, without=without, remembers_s=_REMEMBERS_S),
            peers=SimulatedPeers(self._loop, self._network),
            databases=databases,
            objects=objects,
            luck=self._luck,
            models=models,
            heads=heads,
            has_registry=has_registry,
            has_engines=services.ENGINE in self._plan.replicas,
            engines={},
            new_engines=SimulatedLeasedEngines,
            folder=folder,
            on_object=lambda key: self._watch.on_object(key),
            wake_planner=[],
        )
        self._watch = PromiseWatch(self._given, self._say, self._moments)
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
            logs = [ServiceLogs(self._loop, self._say)]
            patches.enter_context(patch.object(logging.getLogger(), "handlers", logs))
            patches.enter_context(patch("time.monotonic", self._loop.time))
            for name, seconds in _POLLS_S.items():
                patches.enter_context(patch(name, seconds))
            at_once = _COUNTED_AT_ONCE[self._plan.seed % 2]
            patches.enter_context(patch("scenario_runner.domain.recounts.COUNTED_AT_ONCE", at_once))
            for module in ("sql_plan", "planned_episodes"):
                patches.enter_context(patch(f"scenario_runner.adapters.{module}.take_turn", turn))
            patches.enter_context(patch("event_bus.codec._parsed", DecodedOnce()))
            patches.enter_context(unmeasured())
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
        await self._register()
        people = [asyncio.create_task(one.run()) for one in self._clients]
        events = asyncio.create_task(self._events())
        await self._ends_of_runs(FAULTS_S)
        self._is_over.set()
        await events
        self._calm()
        if self._ends() is None and not await self._ends_of_runs(_CALM_S * len(people)):
            raise Broken("HUNG", self._watch.describe())
        await asyncio.gather(*people)
        await self._gate_decided()
        await self._everything_delivered()
        self._watch.at_the_end()
        ends = list((self._ends() or {}).values())
        return next((one for one in ends if one != "completed"), "completed")

    async def _register(self) -> None:
        """The tasksets; and the people who will submit runs."""
        plan = SqlPlan(self._given.databases[PLANNER_DB], now=self._given.now)
        for taskset in tasksets(self._plan.num_tasks):
            store = partial(revisions.store, taskset=taskset)
            await repeated(partial(plan.transact, store))
        for planned in self._plan.runs:
            self._clients.append(Client(planned, self._given, self._moments, self._until))

    async def _events(self) -> None:
        """Everything that befalls the processes, at its moment."""
        for fault in self._plan.faults:
            if fault.on is not None:
                self._moments.at(fault.on, partial(self._befall, fault))
        for fault in self._plan.faults:
            if fault.on is None:
                await self._until(fault.at_s)
                self._befall(fault)

    async def _until(self, at_s: float) -> None:
        """A moment; once the run is over, soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(at_s):
                await self._is_over.wait()
                await asyncio.sleep(_AFTERWARDS_S)

    def _befall(self, fault: Fault) -> None:
        if self._is_calm:
            return
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

    async def _ends_of_runs(self, within_s: float) -> bool:
        """Whether each run was submitted and is over by then."""
        until = self._loop.time() + within_s
        while self._loop.time() < until:
            if self._ends() is not None:
                return True
            if self._is_calm:
                await self._resume_the_paused()
            self._restart_the_dead()
            await asyncio.sleep(0.5)
        return False

    def _ends(self) -> dict[str, str] | None:
        """The final state of each run; None while one has none."""
        states = self._watch.states()
        found = {one.run_id: states.get(one.run_id, "") for one in self._clients}
        return found if all(state in FINAL_RUN_STATES for state in found.values()) else None

    async def _resume_the_paused(self) -> None:
        """Too much failed: a person sees that it no longer does."""
        states = self._watch.states()
        for client in self._clients:
            if states.get(client.run_id) == "paused":
                await client.resume()

    async def _gate_decided(self) -> None:
        """A run that was trained has a checkpoint, and every candidate is promoted or held. Raises Broken."""
        until, ends = self._loop.time() + _CALM_S, self._ends() or {}
        for client in self._clients:
            gated = client.planned.spec.gate is not None
            while gated and (undecided := self._head_watch.undecided(client.run_id, ends[client.run_id])):
                if self._loop.time() > until:
                    raise Broken("HUNG", f"the gate has not decided: {undecided}")
                self._restart_the_dead()
                await asyncio.sleep(1.0)

    async def _everything_delivered(self) -> None:
        until = self._loop.time() + _CALM_S
        while self._loop.time() < until and (self._watch.difference() or self._behind()) is not None:
            self._restart_the_dead()
            await asyncio.sleep(1.0)
        if (late := self._behind()) is not None:
            raise Broken("STALE", late)

    def _behind(self) -> str | None:
        return behind(self._given) if self._given.has_engines else None

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
        """The stream of facts loses what it may lose; what was decided stands."""
        share = self._network.weather.forgotten
        kind = kind_of(message.subject)
        if stream != EVENTS or not share or kind not in _MAY_BE_LOST:
            return False
        if self._losses.random() >= share:
            return False
        self._say(f"stream {message.sequence} is lost", "")
        return True

    def _restart_the_dead(self) -> None:
        """A process of which a worker ended exits; the machine starts it again."""
        for process in list(self._lives.values()):
            if process.died_of is not None and not process.is_dead:
                if isinstance(process.died_of, BUGS):
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


def _note_failed_start(process: SimulatedProcess, starting: asyncio.Task[None]) -> None:
    if not starting.cancelled() and starting.exception() is not None:
        process.died_of = starting.exception()
