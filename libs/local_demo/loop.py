"""The steps of the demo, in order, all through the platform's public APIs."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from rich.console import Console

from event_bus import EventBus
from local_demo.feed import FACTS, LoopState, apply
from local_demo.head_watch import WATCH_SETTINGS, WatchedHead, is_watch_over, pairs_played, watch_runs
from local_demo.plan import AUDIT_TASKSET, FIRST_TASKSET, MODEL, PRACTICE_TASKSET, DemoPlan
from local_demo.production import Production
from local_demo.report import DemoReport, Fed, Ledger, Reloads, Selected, Served, Walls, parts_of
from local_demo.view import make_view
from local_stack.stack import Stack, StackSettings
from local_stack.supervisor import lock_folder
from service_kit.deadlines import deadline
from upcycle.api.registry.v1.service_pb2 import GetModelRequest, ListEnginesRequest
from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
from upcycle.api.taskset.v1.taskset_pb2 import Run
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest, GetLedgerResponse
from upcycle.audits import Audit, audit_spec, head_of, read_audit, wait_for_verdicts
from upcycle.cli.tasksets import load_source
from upcycle.errors import Failed
from upcycle.platform import Addresses, Platform
from upcycle.run_client import completed, follow_run, state_word, submit_run
from upcycle.run_config import RunSpec
from upcycle.run_config.flags import evaluation_run
from upcycle.run_config.wire import spec_to_wire
from upcycle.usage import total_usage
from upcycle.wire import usage_of

EVAL_TIMEOUT_S, TRAIN_TIMEOUT_S, SETTLE_TIMEOUT_S = 300.0, 900.0, 180.0
WATCH_TIMEOUT_S = 300.0


class RunDidNotComplete(Failed):
    """A run of the demo failed or was cancelled."""

    kind = "run_did_not_complete"


class Demo:
    """One demo; entering starts the platform, leaving stops it."""

    def __init__(self, plan: DemoPlan, console: Console) -> None:
        self.plan = plan
        self.state = LoopState()
        self._view = make_view(self.state, console)
        self._open = AsyncExitStack()
        self._began = time.monotonic()
        self._walls: dict[str, float] = {}
        self._last_run = ""

    async def __aenter__(self) -> Self:
        with lock_folder(self.plan.data_dir):  # a demo that still runs there keeps its files
            shutil.rmtree(self.plan.data_dir, ignore_errors=True)
        self.plan.data_dir.mkdir(parents=True)
        self._view.start()
        self._open.callback(self._view.stop)
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def _start(self) -> None:
        async with self._phase("setup", "starting NATS, S3, services and engines"):
            settings = StackSettings(
                data_dir=self.plan.data_dir,
                engine=self.plan.engine,
                model=MODEL,
                model_dir=self.plan.policy_dir,
                environment_roots=(self.plan.repository,),
                extra_env=WATCH_SETTINGS,
                on_event=self._view.event,
            )
            self.stack = await self._open.enter_async_context(Stack(settings))
            gateway, operator = self.stack.gateway_key_file, self.stack.operator_key_file
            self._addresses = Addresses(self.stack.peers, "the demo", gateway, operator_key_file=operator)
            self.platform = await self._open.enter_async_context(Platform(self._addresses))
            await self._follow_facts()

    async def _follow_facts(self) -> None:
        bus = EventBus(self.stack.bus, client_name="demo")
        await bus.start()
        self._open.push_async_callback(bus.stop)
        task = asyncio.create_task(self._feed(bus), name="demo-feed")
        self._open.callback(task.cancel)

    async def _feed(self, bus: EventBus) -> None:
        async for delivery in bus.replay(FACTS, after_sequence=0):
            self._view.event(apply(self.state, delivery.message))

    @asynccontextmanager
    async def _phase(self, name: str, title: str) -> AsyncIterator[None]:
        self._view.phase(title)
        began = time.monotonic()
        yield
        self._walls[name] = time.monotonic() - began

    async def run(self) -> DemoReport:
        """Baseline, training with promotions under production traffic, the audit, the watch of head."""
        await load_source(str(self.plan.tasks_file), PRACTICE_TASKSET).register(self.platform)
        async with self._phase("baseline", "measuring the base policy on train tasks"):
            first = await self._first_batch()
        production = Production(
            self._addresses.gateway_url,
            self._addresses.gateway_key(),
            MODEL,
            [{"role": "user", "content": self.plan.recipe.production_prompt}],
        )
        await production.start()
        try:
            async with self._phase("training", "training while production asks and a user evaluates"):
                trained, beside = await self._train_beside_a_user(first)
                await self._candidates_judged()
            async with self._phase("audit", "playing base and head side by side on the audit tasks"):
                audited = await self._audit()
            async with self._phase("watch", "watching head: pairs of it and the version before it"):
                await self._head_watched()
        finally:
            await production.stop()
        return await self._report(audited, trained, (first, beside), production)

    async def _first_batch(self) -> Run:
        """The base policy on train tasks: measured, and what the training run begins with."""
        spec = self._evaluation(FIRST_TASKSET, self._training.group_size)
        return await self._finish(await submit_run(self.platform, spec_to_wire(spec)), EVAL_TIMEOUT_S)

    async def _train_beside_a_user(self, first: Run) -> tuple[Run, Run]:
        """The training run, and the evaluation that a user starts beside it and that feeds it."""
        user = asyncio.create_task(self._user_evaluates(), name="demo-user")
        try:
            trained = await self._train(first.run_id)
            return trained, await user
        finally:
            user.cancel()
            await asyncio.wait({user})

    async def _user_evaluates(self) -> Run:
        """Once the run has made its first step: the newest weights on its tasks, free to train."""
        async with deadline("the first step of the training run", TRAIN_TIMEOUT_S):
            while not self.state.step:
                await asyncio.sleep(0.2)
        spec = self._evaluation(PRACTICE_TASKSET, self._training.group_size, trainable=True)
        return await self._finish(await submit_run(self.platform, spec_to_wire(spec)), TRAIN_TIMEOUT_S)

    async def _audit(self) -> Audit:
        """The one opening of the audit tasks. Where nothing was promoted, the base stands for both."""
        head = await head_of(self.platform, MODEL)
        spec = audit_spec(MODEL, AUDIT_TASKSET, head=head, base=0, sampling=self._training.sampling)
        run = await self._finish(await submit_run(self.platform, spec_to_wire(spec)), EVAL_TIMEOUT_S)
        return await read_audit(self.platform, [run.run_id])

    async def _train(self, source: str) -> Run:
        spec = replace(self._training, taskset=PRACTICE_TASKSET, source_runs=(source,))
        return await self._finish(await submit_run(self.platform, spec_to_wire(spec)), TRAIN_TIMEOUT_S)

    @property
    def _training(self) -> RunSpec:
        """The run of examples/incident/demo.toml, with the demo's seeds."""
        run: RunSpec = self.plan.recipe.run.run
        training = run.training and replace(run.training, seed=self.plan.seed)
        return replace(run, training=training, sampling=replace(run.sampling, seed=self.plan.seed))

    def _evaluation(self, taskset: str, group: int, *, trainable: bool = False) -> RunSpec:
        """An evaluation that samples as the training run does."""
        spec = evaluation_run(MODEL, taskset, group=group, trainable=trainable)
        return replace(spec, sampling=self._training.sampling)

    async def _finish(self, run: Run, timeout_s: float) -> Run:
        self._last_run = run.run_id
        done = await follow_run(self.platform, run.run_id, timeout_s=timeout_s)
        if not completed(done) or done.counts.in_flight:
            hint = f"ask `upcycle why {run.run_id}`; logs are in {self.plan.data_dir / 'logs'}"
            raise RunDidNotComplete(
                f"run {run.run_id} is {state_word(done)}: {done.failure or 'episodes in flight'}", hint
            )
        return done

    async def _candidates_judged(self) -> None:
        """Every checkpoint is promoted or held before the verdict, so that head is final."""
        async with deadline("the gate's judgement of the last candidate", SETTLE_TIMEOUT_S):
            await wait_for_verdicts(self.platform, MODEL)

    async def _head_watched(self) -> None:
        """The rest of what the registry plays by itself; part of it was played beside the audit."""
        if not self.state.promotions:
            return
        version = self.state.promotions[-1].version
        async with deadline("the watch of head", WATCH_TIMEOUT_S):
            while not self.state.rollbacks and not is_watch_over(watch_runs(await self._runs(), version)):
                await asyncio.sleep(1)

    async def _runs(self) -> Sequence[Run]:
        return (await self.platform.tasksets.ListRuns(ListRunsRequest(limit=1000), timeout=10)).runs

    async def _report(
        self, audited: Audit, trained: Run, evaluations: tuple[Run, Run], production: Production
    ) -> DemoReport:
        ledger = await self._balanced_ledger()
        head = await self.platform.registry.GetModel(GetModelRequest(model=MODEL), timeout=10)
        served = await self._served(production)
        counts = self.state.checkpoints
        runs = await self._runs()
        return DemoReport(
            audit=audited,
            gate=self._selected(),
            ledger=Ledger(ledger.requested, ledger.settled, ledger.in_flight, dict(ledger.by_state)),
            fed=self._fed(evaluations),
            policy_versions=self.state.latest_version,
            checkpoints_saved=counts["saved"],
            checkpoints_promoted=counts["promoted"],
            checkpoints_held=counts["held"],
            reloads=Reloads(
                len(self.state.reloads), len(self.state.failed_reloads), self._promotion_waits_ms(production)
            ),
            served=served,
            promoted_digest=head.head.digest,
            production_requests=production.requests,
            production_failures=len(production.failures),
            trace_id=trained.trace_id,
            seed=self.plan.seed,
            wall_s=self._walls_so_far(),
            usage=total_usage(usage_of(run.usage) for run in runs),
            parts=parts_of(runs),
            watched=self._watched(runs),
        )

    def _selected(self) -> Selected | None:
        """What the gate saw when it promoted head: the figures that selected it."""
        reports = [one for one in self.state.verdicts if one.version == self.state.head_version]
        if not reports:
            return None
        report = reports[-1].report
        return Selected(reports[-1].version, report.candidate_rate, report.head_rate, report.attempts)

    def _watched(self, runs: Sequence[Run]) -> WatchedHead | None:
        if not self.state.promotions:
            return None
        version = self.state.promotions[-1].version
        reason = self.state.rollbacks[-1].reason if self.state.rollbacks else ""
        return WatchedHead(version, pairs_played(watch_runs(runs, version)), reason)

    def _fed(self, evaluations: tuple[Run, Run]) -> Fed:
        groups = {run.run_id: self.state.groups_from[run.run_id] for run in evaluations}
        return Fed(groups, self.state.sampled_before_first_step)

    def _promotion_waits_ms(self, production: Production) -> list[float]:
        """From each promotion to the first token that production received from it."""
        return [
            (
                production.first_answers[event.version].first_token_at
                - event.promoted_at.ToMicroseconds() / 1e6
            )
            * 1e3
            for event in self.state.promotions
            if event.version in production.first_answers
        ]

    def _walls_so_far(self) -> Walls:
        walls = self._walls
        total = time.monotonic() - self._began
        return Walls(
            walls["setup"], walls["baseline"], walls["training"], walls["audit"], walls["watch"], total
        )

    async def _balanced_ledger(self) -> GetLedgerResponse:
        """The ledger once no episode is in flight, or as it is at the deadline; the report shows the
        difference.
        """
        until = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            ledger = await self.platform.trajectories.GetLedger(GetLedgerRequest(), timeout=10)
            if ledger.in_flight == 0 or time.monotonic() > until:
                return ledger
            await asyncio.sleep(0.5)

    async def _served(self, production: Production) -> Served:
        await production.start()
        try:
            answer = await production.ask()
        finally:
            await production.stop()
        engines = (
            await self.platform.registry.ListEngines(ListEnginesRequest(model=MODEL), timeout=10)
        ).engines
        diffs = [engine.canary_max_abs_diff for engine in engines if engine.digest == answer.digest]
        return Served(MODEL, answer.version, answer.digest, max(diffs, default=float("nan")))

    def start_again(self) -> str:
        """What starts the platform of this demo once it is stopped."""
        return f"upcycle up --model {MODEL} --data-dir {_short(self.plan.data_dir)}"

    def next_commands(self) -> list[str]:
        """What a person can type now; they work while the platform runs."""
        key_file = self.stack.gateway_key_file
        prompt = self.plan.recipe.production_prompt.splitlines()[0]
        body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{prompt}"}}]}}'
        url = f"{self._addresses.gateway_url}/chat/completions"
        return [
            f'curl -i {url} -H "Authorization: Bearer $(cat {_short(key_file)})"'
            f" -H 'Content-Type: application/json' -d '{body}'",
            "upcycle trajectories show last",
            f"upcycle why {self._last_run}",
            f"upcycle models checkpoints {MODEL}",
        ]


def _short(path: Path) -> Path:
    """Relative where that is shorter to read."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
