"""What durable states cost a step: three ways to take the same steps, in turns.

Without states; with each state written beside the next step, as the trainer does; with each state written
before the next step begins. A state is everything: tensors in safetensors, the
marker, and the published policy, in a real object store. Rounds of the three ways follow one another, so that
a busy machine is busy for all of them.
"""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from examples.incident.recipe import RECIPE
from tests.local_servers import S3Server

from benchmarks.figures import Figure, Limit
from benchmarks.options import Options
from benchmarks.stacks import MODEL, POLICY_DIR
from benchmarks.trainer import record
from blob_store import BlobRef, BlobStore, S3BlobStore
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import PolicyCache, RegistryPolicies
from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.holding import ModelHolding
from grpo_trainer.learner.protocol import BatchGroup, Canary
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.group_buffer import GroupBuffer
from grpo_trainer.runs.persisting import Persistence
from grpo_trainer.runs.stores import BlobStates
from grpo_trainer.telemetry import TrainerInstruments
from identities.entities import checkpoint_id
from policy_files import PolicyFacts, manifest_ref, upload

_LIMIT: Final = Limit(5.0, " %", at_most=True)
_WAYS: Final = ("without", "beside", "before")
_LANDS_S: Final = 120.0


async def measure(options: Options) -> list[Figure]:
    """Stall per step in per cent, and what states cost a step all told."""
    groups = await asyncio.to_thread(record, options.sized(RECIPE.training.prompts_per_step, 4))
    with S3Server(options.scratch / "s3") as server:
        store = S3BlobStore(server.settings)
        await store.start()
        try:
            deps = await _deps(store, options.scratch)
            return _figures(await _in_turns(groups, deps, options))
        finally:
            await store.stop()


async def _in_turns(groups: Sequence[BatchGroup], deps: RunDeps, options: Options) -> Mapping[str, "_Line"]:
    rounds, length = options.repeats(5), options.sized(4, 2)
    thread = LearnerThread(LearnerOptions(num_threads=1))
    try:
        lines = {way: _Line(way, TorchLearner(thread), deps) for way in _WAYS}
        for line in lines.values():
            await line.begin(groups)
        for _ in range(rounds):
            for line in lines.values():
                await line.round(length)
        return lines
    finally:
        thread.close()


def _figures(lines: Mapping[str, "_Line"]) -> list[Figure]:
    without, beside = lines["without"], lines["beside"]
    step_s = statistics.median(without.step_s)
    durable_s = statistics.median(beside.durable_s)

    def stalls(way: str) -> tuple[float, ...]:
        return tuple(100 * seconds / step_s for seconds in lines[way].stall_s)

    cpu_s = statistics.median(without.cpu_s)
    return [
        Figure(
            "checkpoint stall of a step, states written beside the next one",
            "%",
            stalls("beside"),
            limit=_LIMIT,
            note=f"a step without states takes {step_s:.2f} s, a state is durable after {durable_s:.2f} s",
        ),
        Figure("the same, states written before the next one", "%", stalls("before")),
        Figure(
            "processor time of a state, of a step's",
            "%",
            tuple(100 * (seconds / cpu_s - 1) for seconds in beside.cpu_s),
            note=f"a step takes {cpu_s:.2f} s of one core",
        ),
    ]


@dataclass
class _Line:
    """A session that steps on one batch, and its way with states. Of single steps: step_s, what they took;
    stall_s, their waits; durable_s, from their end until the marker is written. cpu_s: of this process, means
    of rounds."""

    way: str
    learner: TorchLearner
    deps: RunDeps
    step_s: list[float] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)
    durable_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    async def begin(self, groups: Sequence[BatchGroup]) -> None:
        """On the incident policy; takes the first step, which is not timed."""
        model, rate = f"{MODEL}-{self.way}", RECIPE.training.learning_rate
        spec = TrainingSpec(f"run-{self.way}", model, RECIPE.run.group_size, learning_rate=rate)
        base = await self.deps.policies.head(MODEL)
        self._groups = groups
        self._state = _first_state(spec, base)
        buffer = GroupBuffer(spec, SettledGroups(spec.run_id), {}, self.deps)
        self._persistence = Persistence(
            self.deps, RetryUntilAvailable(), durable=self._became_durable, buffer=buffer
        )
        await self.learner.begin(spec, POLICY_DIR)
        await self.round(1)
        for samples in (self.step_s, self.stall_s, self.durable_s, self.cpu_s):
            samples.clear()

    async def round(self, length: int) -> None:
        """So many steps; what is in flight at the end lands outside of the time that is measured."""
        cpu_began = time.process_time()
        for _ in range(length):
            began = time.perf_counter()
            await self._step()
            self.step_s.append(time.perf_counter() - began)
        async with asyncio.timeout(_LANDS_S):
            await self._persistence.landed()
        self.cpu_s.append((time.process_time() - cpu_began) / length)

    async def _step(self) -> None:
        numbers = await self.learner.step(self._groups)
        if self.way == "without":
            return
        self._ended = time.perf_counter()
        await self._persistence.landed()
        snapshot = await self.learner.snapshot()
        self._state = _following(self._state, numbers.values, snapshot.canary)
        self._persistence.begin(self._state, snapshot)
        if self.way == "before":
            await self._persistence.landed()
        self.stall_s.append(time.perf_counter() - self._ended)

    async def _became_durable(self, state: SessionState) -> None:
        self.durable_s.append(time.perf_counter() - self._ended)


def _first_state(spec: TrainingSpec, base: BasePolicy) -> SessionState:
    return SessionState(
        spec=spec,
        base=base,
        first_version=0,
        version=0,
        step=0,
        cursor=0,
        seen=0,
        settled={},
        settled_counts={},
        held_out_tasks=(),
        opened_at=datetime.now(UTC),
        parent_checkpoint_id="",
        trace_headers={},
    )


def _following(state: SessionState, values: Mapping[str, float], canary: Canary) -> SessionState:
    record = StepRecord(
        step=state.step + 1,
        version=state.version + 1,
        trajectory_ids=(),
        settlements=(),
        metrics=values,
        staleness={},
        completed_at=datetime.now(UTC),
        traceparent="",
        saves_checkpoint=False,
        is_final=False,
        parent_checkpoint_id="",
    )
    return replace(state, step=record.step, version=record.version, canary=canary, last_step=record)


class _Policies(RegistryPolicies):
    """The real publishing; the head is the incident policy."""

    def __init__(self, store: BlobStore, cache_dir: Path, head: BasePolicy) -> None:
        self._store, self._head = store, head
        self.cache = PolicyCache(store, cache_dir, in_use=lambda: ())

    async def head(self, model: str) -> BasePolicy:
        return self._head


class _SilentFacts(BusFacts):
    """The bus is no part of a state."""

    def __init__(self) -> None:
        pass

    async def confirm_step(self, *_: Any) -> None:
        """Nothing stands."""

    async def publish_step(self, *_: Any) -> None:
        """Publish nothing."""

    async def publish_policy(self, *_: Any, **__: Any) -> None:
        """Publish nothing."""


class _SilentInstruments:
    def count_step(self, *_: Any) -> None:
        """Records nothing."""


async def _deps(store: S3BlobStore, scratch: Path) -> RunDeps:
    manifest = await upload(store, POLICY_DIR, PolicyFacts(MODEL, 0, datetime.now(UTC)))
    ref = manifest_ref(manifest)
    head = BasePolicy(0, checkpoint_id(MODEL, 0), BlobRef(ref.key, ref.sha256, ref.size_bytes))
    unused: Any = None
    return RunDeps(
        new_learner=unused,
        bodies=unused,
        states=BlobStates(store),
        policies=_Policies(store, scratch / "policies", head),
        held_out=unused,
        facts=_SilentFacts(),
        holding=ModelHolding(TrainersStore(store), "benchmark"),
        instruments=cast(TrainerInstruments, _SilentInstruments()),
        model_of=unused,
        now=lambda: datetime.now(UTC),
        work_dir=scratch,
    )
