"""A trainer in memory: the real sessions, learner and stores around a stream of facts that the test
writes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.services.grpo_trainer.fakes import START, Clock, HeldOut, Instruments, Policies, Recorder, Stream
from tests.services.grpo_trainer.learners import same
from tests.services.grpo_trainer.tiny import VOCAB, new_model, tiny_config

from blob_store import BlobRef, MemoryBlobStore
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.domain.trainers import StartingPoint
from grpo_trainer.handlers import FactReader, stored_facts
from grpo_trainer.holding import ModelHolding
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.sessions import RunSessions
from grpo_trainer.runs.stores import BlobBodies, BlobStates
from identities.objects import parse_training_run
from identities.objects import trajectory_body as body_key
from policy_files import KeptFacts, PolicyFacts, fetch, load, manifest_ref, upload
from trajectory_body import pack
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2 as taskset
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

MODEL = "tiny"
RUN = "run-0000000000ab"
MIXED = (1.0, 0.0, 0.0, 1.0)
"""Rewards of a group that teaches something."""
LEASE_S = 0.5
"""How long a trainer of these tests keeps a model without a sign of life."""
_NAMES = itertools.count()


def tiny_policy(directory: Path, *, seed: int = 0) -> Path:
    """A HF directory with a random Qwen3 of a few thousand parameters."""
    torch.manual_seed(seed)
    new_model(tiny_config()).module.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_text("{}")
    return directory


@dataclass
class World:
    """What outlives a trainer: objects, facts, heads."""

    folder: Path
    store: MemoryBlobStore = field(default_factory=MemoryBlobStore)
    stream: Stream = field(default_factory=Stream)
    recorder: Recorder = field(default_factory=Recorder)
    heads: dict[str, BasePolicy] = field(default_factory=dict)
    held_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def copy(self) -> World:
        """Everything as it is now; what happens to one does not reach the other."""
        copied = World(self.folder, heads=dict(self.heads), held_out=self.held_out, clock=self.clock)
        copied.store.objects.update(self.store.objects)
        copied.store.written.update(self.store.written)
        copied.stream.facts.extend(self.stream.facts)
        copied.recorder.events.update(self.recorder.events)
        copied.recorder.order.extend(self.recorder.order)
        copied.recorder.by_others.update(self.recorder.by_others)
        return copied

    async def publish_base(self, *, model: str = MODEL, version: int = 0, seed: int = 0) -> None:
        """Publish random weights and make them head."""
        directory = tiny_policy(self.folder / f"{model}-{version}-{seed}", seed=seed)
        facts = PolicyFacts(model=model, version=version, created_at=START)
        ref = manifest_ref(await upload(self.store, directory, facts))
        identity = f"ckpt-{model}-v{version:08d}"
        self.heads[model] = BasePolicy(version, identity, BlobRef(ref.key, ref.sha256, ref.size_bytes))

    def deps(self, thread: LearnerThread) -> RunDeps:
        """Fresh adapters over what outlives them."""
        work_dir = self.folder / "work"
        work_dir.mkdir(exist_ok=True)
        name, facts = f"trainer-{next(_NAMES)}", self.recorder.events
        holding = ModelHolding(TrainersStore(self.store), name, lease_s=LEASE_S)
        return RunDeps(
            new_learner=lambda: TorchLearner(thread),
            bodies=BlobBodies(self.store, train_parse_errors=False),
            states=BlobStates(self.store),
            policies=Policies(self.store, self.folder / f"cache-{name}", self.heads, holding.surely, facts),
            held_out=HeldOut(self.held_out),
            facts=BusFacts(self.recorder, KeptFacts(self.store), now=self.clock, check=holding.surely),
            holding=holding,
            instruments=Instruments(),
            model_of=self.model_of,
            now=self.clock,
            work_dir=work_dir,
        )

    async def model_of(self, run_id: str) -> str | None:
        """As the planner says it: the model of a run that has a folder."""
        found = (parse_training_run(key) for key in self.store.objects if "/training/" in key)
        return next((one.model for one in found if one.run_id == run_id), None)

    async def weights(self, version: int, *, model: str = MODEL) -> dict[str, torch.Tensor]:
        """Tensors of a published version."""
        directory = await fetch(self.store, await load(self.store, model, version), self.folder / "cache")
        return load_file(directory / "model.safetensors")

    async def settled(self, group_id: str, *, timeout_s: float = 60.0) -> Any:
        """Wait until a group is settled; returns the fact."""
        return await self.published(f"group.settled/{group_id}", timeout_s=timeout_s)

    async def published(self, event_id: str, *, timeout_s: float = 60.0) -> Any:
        """Wait for a fact of the trainer."""
        async with asyncio.timeout(timeout_s):
            while event_id not in self.recorder.events:
                self.recorder.published.clear()
                await self.recorder.published.wait()
        return self.recorder.events[event_id]


async def assert_same_bits(one: World, other: World, *, versions: int) -> None:
    """The first versions of both, to the last bit."""
    for version in range(1, versions + 1):
        assert same(await one.weights(version), await other.weights(version)), f"version {version} differs"


class Trainer:
    """One trainer process, as far as the event loop is concerned."""

    def __init__(
        self,
        world: World,
        *,
        change: Callable[[RunDeps], RunDeps] = lambda deps: deps,
        options: LearnerOptions | None = None,
        leases: ModelLeases | None = None,
    ) -> None:
        self._thread = LearnerThread(options or LearnerOptions(num_threads=1))
        self.sessions = RunSessions(
            change(world.deps(self._thread)), stored_facts(world.stream), leases=leases
        )
        self._reader = FactReader(world.stream, self.sessions)
        self._thawed = asyncio.Event()
        self._thawed.set()
        tick = self.sessions.holding.tick

        async def when_thawed(*, point: StartingPoint | None = None) -> None:
            await self._thawed.wait()
            await tick(point=point)

        vars(self.sessions.holding)["tick"] = when_thawed
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Trainer:
        self._task = asyncio.create_task(self._reader.run(self._stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._task is not None:
            async with asyncio.timeout(30):
                await asyncio.wait({self._task})
        self._thread.close()

    def freeze(self) -> None:
        """Renew no lease from now on, as a process that is frozen or cut off. Its sessions go on, and do what
        such a process may do when it wakes up."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Look at the leases again."""
        self._thawed.set()

    @property
    def ranks(self) -> list[int]:
        """Process ids of the other ranks."""
        return self._thread.group.children

    async def death(self) -> BaseException | None:
        """Wait until the trainer ends by itself; what it died of."""
        if self._task is None:
            raise RuntimeError("not started")
        async with asyncio.timeout(30):
            await asyncio.wait({self._task})
        return self._task.exception()


async def refused(world: World, run_id: str) -> None:
    """Wait until a running trainer has refused a new run: it has handled everything before that."""
    world.stream.append(submission(run_id=run_id, model="marker", learning_rate=-1.0))
    await world.published(f"session.failed/{run_id}")


def shortened(index: int, expected_members: int) -> taskset_events.GroupShortened:
    """A member of that group failed for good."""
    group_id = f"{RUN}-g{index:05d}"
    return taskset_events.GroupShortened(group_id=group_id, run_id=RUN, expected_members=expected_members)


def submission(**config: Any) -> taskset_events.RunSubmitted:
    """A training run: 2 prompts of 4 rollouts per step unless said otherwise. One that says how far sampling
    runs ahead throws away what is older, unless it says otherwise: few steps then show it."""
    run_id, group_size = config.pop("run_id", RUN), config.pop("group_size", 4)
    gate, model = config.pop("gate", ""), config.pop("model", MODEL)
    split, sessions = config.pop("split", common.SPLIT_TRAIN), config.pop("sessions", "")
    defaults: dict[str, Any] = {
        "steps": 3,
        "prompts_per_step": 2,
        "learning_rate": 1e-2,
        "checkpoint_every_steps": 2,
    }
    if "max_staleness" in config:
        defaults["stale_after"] = config["max_staleness"]
    spec = taskset.RunSpec(
        taskset="train-set",
        purpose=common.PURPOSE_TRAIN,
        policy=common.PolicySelector(model=model),
        group_size=group_size,
        training=taskset.TrainingConfig(**{**defaults, **config}),
        gate=taskset.GateConfig(taskset=gate) if gate else None,
        sessions=sessions,
    )
    return taskset_events.RunSubmitted(run_id=run_id, spec=spec, split=split)


@dataclass
class Episodes:
    """Makes rollouts with seeded random tokens: same seed, same bytes."""

    world: World
    run_id: str = RUN
    group_size: int = 4

    async def group(self, index: int, rewards: Sequence[float], **changes: Any) -> str:
        """Store and announce all members of a group; returns its id."""
        group_id = f"{self.run_id}-g{index:05d}"
        for event in await self.facts(index, rewards, **changes):
            self.world.stream.append(event)
        return group_id

    async def groups(self, indexes: Iterable[int], **changes: Any) -> list[str]:
        """As `group`, several with rewards MIXED."""
        return [await self.group(index, MIXED, **changes) for index in indexes]

    async def facts(self, index: int, rewards: Sequence[float], **changes: Any) -> list[TrajectoryGraded]:
        """Store the bodies of a group; returns its facts without announcing them."""
        return [await self.fact(index, member, reward, **changes) for member, reward in enumerate(rewards)]

    async def fact(self, index: int, member: int, reward: float, **changes: Any) -> TrajectoryGraded:
        """Store one body; returns its fact. changes: fields of the fact, or version, split, purpose of
        both."""
        body = self.body(index, member, **changes)
        ref = await self._store(body)
        fact = TrajectoryGraded(
            episode=body.episode,
            body=common.BlobRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes),
            sampled_by=body.sampled_by,
            reward=reward,
            success=reward > 0.5,
        )
        return fact

    async def _store(self, body: trajectory.TrajectoryBody) -> BlobRef:
        return await self.world.store.put(body_key(body.episode.run_id, body.episode.episode_id), pack(body))

    def body(self, index: int, member: int, **changes: Any) -> trajectory.TrajectoryBody:
        """Two turns: prompt, call, observation, answer."""
        group_id = f"{self.run_id}-g{index:05d}"
        episode_id = f"{group_id}-e{member:03d}-a0"
        version = changes.get("version", 0)
        shared = torch.Generator().manual_seed(index)
        own = torch.Generator().manual_seed(1000 * index + member + 1)
        turns = changes.get("turns") or [
            _turn(torch.randint(VOCAB, (9,), generator=shared).tolist(), own, version),
            _turn(torch.randint(VOCAB, (5,), generator=own).tolist(), own, version),
        ]
        episode = common.EpisodeIdentity(
            tenant="default",
            trajectory_id=f"traj-{episode_id}",
            episode_id=episode_id,
            run_id=self.run_id,
            group_id=group_id,
            member=member,
            group_size=self.group_size,
            model=MODEL,
            purpose=changes.get("purpose", common.PURPOSE_TRAIN),
            split=changes.get("split", common.SPLIT_TRAIN),
            task_slug=f"task-{index}",
            task_digest=changes.get("task_digest", f"digest-{index}"),
        )
        return trajectory.TrajectoryBody(
            episode=episode,
            turns=turns,
            temperature=1.0,
            sampled_by=common.VersionSpan(oldest=version, newest=version),
        )


def _turn(prompt: list[int], generator: torch.Generator, version: int) -> trajectory.Turn:
    count = int(torch.randint(3, 8, (1,), generator=generator))
    logprobs = -4.2 + 0.2 * torch.rand(count, generator=generator)
    return trajectory.Turn(
        new_prompt_ids=prompt,
        sampled_ids=torch.randint(VOCAB, (count,), generator=generator).tolist(),
        sampled_logprobs=logprobs.tolist(),
        versions=[trajectory.TokenVersions(version=version, num_tokens=count)],
        finish_reason=trajectory.FINISH_REASON_STOP,
    )
